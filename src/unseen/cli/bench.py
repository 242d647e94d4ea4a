"""`unseen bench`: methods x targets x seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.answers import answering, errors, screen
from unseen.cli.options import (
    MACHINE,
    SHOWING,
    TRACKER_NAMES,
    among,
    default_workers,
    experiment_option,
    read_toml,
    settings_from,
)
from unseen.cli.progress import looking_on_at_many

if TYPE_CHECKING:
    from unseen.bench.plan import BenchmarkCell
    from unseen.bench.slurm import SlurmJobs


__all__ = ["bench", "jobs_of", "refuse_mixture", "seeds_of"]

_NOTES = 5  # on runs that are left out of the table


def bench(
    file: Annotated[Path, typer.Argument(help="a TOML file: the keys of `unseen run`, and methods, targets, seeds")],
    out: Annotated[Path, typer.Option(help="folder for all runs")],
    seeds: Annotated[str | None, typer.Option(help="in place of the file's: 0,1,2", show_default=False)] = None,
    row: Annotated[
        list[str] | None, typer.Option(help="narrow to this row of the table by its label, repeatable", show_default=False)
    ] = None,
    targets: Annotated[
        str | None, typer.Option(help="unseen domains in place of the file's: plain,outline, or all", show_default=False)
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="communication rounds in place of the file's", show_default=False)] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="FIELD=VALUE for every row whose method has that field, or METHOD.FIELD=VALUE for one; repeatable",
            show_default=False,
        ),
    ] = None,
    data: Annotated[str | None, experiment_option("data", in_place=True)] = None,
    size: Annotated[int | None, experiment_option("size", in_place=True)] = None,
    network: Annotated[str | None, experiment_option("network", in_place=True)] = None,
    weights: Annotated[str | None, experiment_option("weights", in_place=True)] = None,
    partition: Annotated[str | None, experiment_option("partition", in_place=True)] = None,
    clients: Annotated[int | None, experiment_option("clients", in_place=True)] = None,
    participation: Annotated[float | None, experiment_option("participation", in_place=True)] = None,
    validation: Annotated[float | None, experiment_option("validation", in_place=True)] = None,
    augment: Annotated[str | None, experiment_option("augment", in_place=True)] = None,
    device: Annotated[str | None, experiment_option("device", in_place=True)] = None,
    precision: Annotated[str | None, experiment_option("precision", in_place=True)] = None,
    threads: Annotated[int | None, experiment_option("threads", in_place=True)] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="client tasks in parallel processes", min=1, show_default="one per core, on a GPU one", rich_help_panel=MACHINE),
    ] = None,
    jobs: Annotated[
        str,
        typer.Option(
            help="runs at the same time, each in a process of its own: a number, or auto: as many as this machine is best at",
            rich_help_panel=MACHINE,
        ),
    ] = "auto",
    engine: Annotated[
        str,
        typer.Option(
            help="local, ray: runs spread over a Ray cluster, or slurm: each run a job of a Slurm cluster",
            autocompletion=among("local", "ray", "slurm"),
            rich_help_panel=MACHINE,
        ),
    ] = "local",
    slurm: Annotated[
        list[str] | None,
        typer.Option(
            help="KEY=VALUE of each Slurm job, repeatable: time (needed), partition, gpus, cpus, memory, account, qos, constraint",
            show_default=False,
            rich_help_panel=MACHINE,
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(help="the Ray cluster, such as 10.0.0.1:6379; none: one on this machine", show_default=False, rich_help_panel=MACHINE),
    ] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            help="tensorboard, wandb or mlflow, repeatable; they work offline",
            autocompletion=among(*TRACKER_NAMES),
            show_default=False,
            rich_help_panel=SHOWING,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print the table alone", rich_help_panel=SHOWING)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="print every metric of every round", rich_help_panel=SHOWING)] = False,
    show_target: Annotated[
        bool,
        typer.Option("--show-target", help="show the scores on the unseen domains while training, too", rich_help_panel=SHOWING),
    ] = False,
) -> None:
    """Run methods x targets x seeds, skipping what is finished and resuming what is half done; then print the table.

    Example: unseen bench experiments/demo.toml --out runs/demo --seeds 0
    """
    around = ("rounds", "data", "size", "network", "weights", "partition", "clients", "participation", "validation", "augment")
    given = {key: value for key, value in locals().items() if key in (*around, "device", "precision", "threads") and value is not None}
    with answering(f"To go on: the same command again (runs are in {out})."):
        from unseen.bench.cluster import on_ray
        from unseen.bench.failures import keep_failures
        from unseen.bench.jobs import in_processes
        from unseen.bench.overriding import overridden
        from unseen.bench.plan import read_benchmark, refuse_early, write_plan
        from unseen.bench.sequential import run_benchmark
        from unseen.bench.sharing import best_jobs
        from unseen.bench.slurm import on_slurm

        values, notes = overridden(read_toml(file), given, _several(targets), settings_from(set_ or []))
        cells = read_benchmark(values, seeds_of(seeds), row)
        number = workers or default_workers(cells[0].experiment)
        wanted = jobs_of(jobs)
        refuse_mixture(engine, wanted or 1, workers, address, ("local", "ray", "slurm"))
        asked = _slurm(engine, slurm)
        _refuse_unknown_trackers(track or [])
        refuse_early(cells, out)
        alone = engine != "local" or workers is not None
        at_once = wanted or (1 if alone else best_jobs(cells, out))
        write_plan(values, cells, out)
        with looking_on_at_many(quiet, verbose, show_target) as watch:
            for note in notes:
                watch.say(note)
            if engine == "ray":
                failed = on_ray(cells, out, address, watch, track or [])
            elif asked is not None:
                failed = on_slurm(cells, out, asked, wanted, watch, track or [])
            elif at_once > 1:
                failed = in_processes(cells, out, at_once, watch, track or [])
            else:
                failed = run_benchmark(cells, out, number, watch, track or [])
        keep_failures(out, cells, failed)
        _tell_failures(failed, len(cells), out, told=not quiet)
        if len(failed) < len(cells):
            again = _words(file, out, {**given, "targets": targets, "row": row, "set": set_})
            _show(again, out, cells, failed, quiet)
    if failed:
        raise typer.Exit(1)


def _tell_failures(failed: dict[str, str], runs: int, out: Path, told: bool) -> None:
    """Each reason once, however many runs it stopped; where it was `told` while they ran, how many it stopped."""
    from rich.text import Text

    from unseen.bench.failures import grouped

    for reason, folders in grouped(failed, out):
        which = folders[0] if len(folders) == 1 else f"{len(folders)} of {runs} runs, first {folders[0]}"
        if not told or len(folders) > 1:
            why = "for the reason above" if told else reason
            errors.print(Text.assemble(("failed: ", "bold red"), f"{which}: {why}"), soft_wrap=not errors.is_terminal)


def _words(file: Path, out: Path, given: dict[str, Any]) -> list[Any]:
    """The command that was given, without its seeds."""
    words: list[Any] = ["unseen", "bench", file, "--out", out]
    for key, value in given.items():
        for one in value if isinstance(value, list) else [value] if value is not None else []:
            words += [f"--{key.replace('_', '-')}", one]
    return words


def _show(again: list[Any], out: Path, cells: Sequence[BenchmarkCell], failed: dict[str, str], quiet: bool) -> None:
    """The table, what it says, and what one would do next."""
    from unseen.cli.tables import in_shell, next_steps, say_below, say_where_others_are, show_comparison
    from unseen.report.collect import collect
    from unseen.report.saying import scores_compared, what_was_found
    from unseen.report.telling import best_of
    from unseen.runs.selection import DEFAULT_RULE

    found = collect(out, force=True)
    show_comparison(found.cells, DEFAULT_RULE)
    notes = [note for note in found.notes if not any(f"({folder})" in note for folder in failed)]  # those were told of
    for note in notes[:_NOTES] + ([f"and {len(notes) - _NOTES} more: unseen runs {out}"] if len(notes) > _NOTES else []):
        screen.print(note, markup=False, soft_wrap=not screen.is_terminal)
    if quiet:
        return
    say_below(what_was_found(found.cells, DEFAULT_RULE))
    say_where_others_are(found.cells, out)
    seeds = sorted({cell.experiment.seed for cell in cells})
    more = ",".join(map(str, range(max(3, len(seeds) + 2))))
    best = best_of(scores_compared(found.cells, DEFAULT_RULE))
    model = out / next(run.folder for run in found.finished if best is None or run.name == best.name)
    steps: list[tuple[Sequence[Any], str]] = []
    if failed:
        steps.append((("unseen", "runs", out), "what failed, and why; the same command again goes on with it"))
    steps += [
        ([*again, "--seeds", more], "more seeds: whether a difference is more than chance"),
        (("unseen", "report", out, "--format", "html", "--out", "report.html"), "the page: tests, learning curves, what travelled"),
        (("unseen", "export", model), "one of the models with its card, to use elsewhere"),
    ]
    next_steps([(in_shell(*words), why) for words, why in steps[:3]])


def _several(text: str | None) -> list[str] | str | None:
    """Names between commas, or `all`."""
    from unseen.errors import BadInput

    if text is None or text == "all":
        return text
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise BadInput(f"--targets {text!r}; expected names of domains separated by commas, or all")
    return names


def jobs_of(text: str) -> int | None:
    """A number of runs, or None for auto."""
    from unseen.errors import BadInput

    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise BadInput(f"--jobs {text!r}; expected auto, or a whole number of at least 1")
    return int(text)


def _slurm(engine: str, words: list[str] | None) -> SlurmJobs | None:
    """What each job asks for, where runs are jobs."""
    from unseen.bench.slurm import slurm_jobs
    from unseen.errors import BadInput

    if engine == "slurm":
        return slurm_jobs(words or [])
    if words:
        raise BadInput("--slurm is for --engine slurm; add it, or leave --slurm out")
    return None


def refuse_mixture(engine: str, jobs: int, workers: int | None, address: str | None, engines: tuple[str, ...] = ("local", "ray")) -> None:
    """Options that contradict each other."""
    from unseen.errors import BadInput, choose

    choose("engine", engine, engines)
    if engine != "ray" and address is not None:
        raise BadInput("--address is for --engine ray; add it, or leave --address out")
    if engine == "ray" and (jobs > 1 or workers):
        raise BadInput("--engine ray decides itself how many runs go at once; leave --jobs and --workers out")
    if engine == "slurm" and workers:
        raise BadInput("--engine slurm runs each run in one process of its job; leave --workers out")
    if jobs > 1 and workers:
        raise BadInput("--jobs runs whole runs at once, --workers the clients of one; choose one of them")


def _refuse_unknown_trackers(track: list[str]) -> None:
    from unseen.report.trackers import refuse_missing

    refuse_missing(track)


def seeds_of(text: str | None) -> list[int] | None:
    """`0,1,2` as numbers."""
    from unseen.errors import BadInput

    if text is None:
        return None
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"--seeds {text!r}; expected whole numbers separated by commas, such as 0,1,2") from None
    if len(set(seeds)) < len(seeds):
        raise BadInput(f"--seeds {text!r} names a seed twice; a run is made once")
    return seeds
