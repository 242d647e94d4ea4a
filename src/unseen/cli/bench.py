"""`unseen bench`: methods x targets x seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.answers import answering, errors, screen
from unseen.cli.options import TRACKER_NAMES, among, default_workers, read_toml

__all__ = ["bench", "jobs_of", "refuse_mixture", "seeds_of"]


def bench(
    file: Annotated[Path, typer.Argument(help="a TOML file: the keys of `unseen run`, and methods, targets, seeds")],
    out: Annotated[Path, typer.Option(help="folder for all runs")],
    seeds: Annotated[str | None, typer.Option(help="these seeds in place of the file's: 0,1,2")] = None,
    row: Annotated[list[str] | None, typer.Option(help="narrow to this row of the table by its label, repeatable")] = None,
    workers: Annotated[
        int | None, typer.Option(help="client tasks in parallel processes; default one per core, on a GPU one", min=1)
    ] = None,
    jobs: Annotated[
        str, typer.Option(help="runs at the same time, each in a process of its own: a number, or auto: as many as this machine is best at")
    ] = "auto",
    engine: Annotated[
        str, typer.Option(help="local, or ray: runs spread over a Ray cluster", autocompletion=among("local", "ray"))
    ] = "local",
    address: Annotated[str | None, typer.Option(help="the Ray cluster, such as 10.0.0.1:6379; none: one on this machine")] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(help="tensorboard, wandb or mlflow, repeatable; they work offline", autocompletion=among(*TRACKER_NAMES)),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print the table alone")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="print every metric of every round")] = False,
) -> None:
    """Run methods x targets x seeds, skipping what is finished and resuming what is half done; then print the table.

    Example: unseen bench experiments/demo.toml --out runs/demo --seeds 0
    """
    with answering(f"To go on: the same command again (runs are in {out})."):
        from unseen.bench.cluster import on_ray
        from unseen.bench.jobs import in_processes
        from unseen.bench.plan import read_benchmark, write_plan
        from unseen.bench.sequential import run_benchmark
        from unseen.bench.sharing import best_jobs
        from unseen.cli.progress import Screen
        from unseen.cli.report import tables_below
        from unseen.report.tables import to_markdown

        values = read_toml(file)
        cells = read_benchmark(values, seeds_of(seeds), row)
        number = workers or default_workers(cells[0].experiment)
        wanted = jobs_of(jobs)
        refuse_mixture(engine, wanted or 1, workers, address)
        _refuse_untold(track or [], engine, wanted or 1)
        alone = engine == "ray" or workers is not None or bool(track)
        at_once = wanted or (1 if alone else best_jobs(cells))
        write_plan(values, cells, out)
        with Screen(screen, quiet, verbose) as watch:
            if engine == "ray":
                failed = on_ray(cells, out, address, watch)
            elif at_once > 1:
                failed = in_processes(cells, out, at_once, watch)
            else:
                failed = run_benchmark(cells, out, number, watch, track or [])
        for name, reason in failed.items():
            errors.print(f"[bold red]failed:[/] {name}: {reason}")
        if len(failed) < len(cells):
            tables, notes = tables_below(out, ["source"], force=True)
            for table in tables:
                screen.print()
                screen.print(to_markdown(table), markup=False)
            for note in notes:
                screen.print(note, markup=False)
    if failed:
        raise typer.Exit(1)


def jobs_of(text: str) -> int | None:
    """A number of runs, or None for auto."""
    from unseen.errors import BadInput

    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise BadInput(f"--jobs {text!r}; expected auto, or a whole number of at least 1")
    return int(text)


def refuse_mixture(engine: str, jobs: int, workers: int | None, address: str | None) -> None:
    """Options that contradict each other."""
    from unseen.errors import BadInput, choose

    choose("engine", engine, ("local", "ray"))
    if engine == "local" and address is not None:
        raise BadInput("--address is for --engine ray; add it, or leave --address out")
    if engine == "ray" and (jobs > 1 or workers):
        raise BadInput("--engine ray decides itself how many runs go at once; leave --jobs and --workers out")
    if jobs > 1 and workers:
        raise BadInput("--jobs runs whole runs at once, --workers the clients of one; choose one of them")


def _refuse_untold(track: list[str], engine: str, jobs: int) -> None:
    from unseen.errors import BadInput
    from unseen.report.trackers import refuse_missing

    refuse_missing(track)
    if track and (engine == "ray" or jobs > 1):
        raise BadInput("--track follows one run at a time; leave out --jobs and --engine ray, or --track")


def seeds_of(text: str | None) -> list[int] | None:
    """`0,1,2` as numbers."""
    from unseen.errors import BadInput

    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BadInput(f"--seeds {text!r}; expected whole numbers separated by commas, such as 0,1,2") from None
