"""`unseen run`: one federation."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli.answers import answering, screen
from unseen.cli.options import TRACKER_NAMES, among, default_workers, experiment_option, merge, read_toml, settings_from

__all__ = ["run"]

_RUN_KEYS = (
    "out",
    "workers",
    "resume",
    "engine",
    "federation",
    "deadline",
    "minimum_clients",
    "study",
    "carrier",
    "secure_sums",
    "track",
)  # of the command, not of the experiment


def run(
    file: Annotated[
        Path | None, typer.Argument(help="a TOML file with the same keys as the options; options win", show_default=False)
    ] = None,
    method: Annotated[str | None, typer.Option(help="a method's name (see `unseen methods`) or FILE.py:CLASS")] = None,
    data: Annotated[str | None, experiment_option("data")] = None,
    target: Annotated[str | None, experiment_option("target")] = None,
    rounds: Annotated[int | None, experiment_option("rounds")] = None,
    seed: Annotated[int | None, experiment_option("seed")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for the run; default runs/METHOD-FOLD-SEED")] = None,
    network: Annotated[str | None, experiment_option("network")] = None,
    weights: Annotated[str | None, experiment_option("weights")] = None,
    preset: Annotated[str | None, experiment_option("preset")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE of the method, repeatable")] = None,
    protocol: Annotated[str | None, experiment_option("protocol")] = None,
    source: Annotated[str | None, experiment_option("source")] = None,
    sources: Annotated[str | None, experiment_option("sources")] = None,
    held_out: Annotated[str | None, experiment_option("held_out")] = None,
    partition: Annotated[str | None, experiment_option("partition")] = None,
    clients: Annotated[int | None, experiment_option("clients")] = None,
    participation: Annotated[float | None, experiment_option("participation")] = None,
    minimum: Annotated[int | None, experiment_option("minimum")] = None,
    validation: Annotated[float | None, experiment_option("validation")] = None,
    size: Annotated[int | None, experiment_option("size")] = None,
    augment: Annotated[str | None, experiment_option("augment")] = None,
    metric: Annotated[str | None, experiment_option("metric")] = None,
    device: Annotated[str | None, experiment_option("device")] = None,
    precision: Annotated[str | None, experiment_option("precision")] = None,
    compile: Annotated[str | None, experiment_option("compile")] = None,
    threads: Annotated[int | None, experiment_option("threads")] = None,
    workers: Annotated[
        int | None, typer.Option(help="client tasks in parallel processes; default one per core, on a GPU one", min=1)
    ] = None,
    label: Annotated[str | None, experiment_option("label")] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(help="tensorboard, wandb or mlflow, repeatable; they work offline", autocompletion=among(*TRACKER_NAMES)),
    ] = None,
    engine: Annotated[str | None, typer.Option(help="local (default), or flower: between machines")] = None,
    federation: Annotated[Path | None, typer.Option(help="folder made by `unseen federation init`: run between its sites")] = None,
    study: Annotated[
        Path | None, typer.Option(help="the study that the sites approved; without one it is proposed now, to sites that approve by rule")
    ] = None,
    carrier: Annotated[str | None, typer.Option(help="flower (default), or folder:PATH for sites without a line")] = None,
    secure_sums: Annotated[bool | None, typer.Option("--secure-sums", help="the server reads sums over the sites alone")] = None,
    deadline: Annotated[float | None, typer.Option(help="seconds that sites have to answer, between machines; default 600")] = None,
    minimum_clients: Annotated[int | None, typer.Option(help="answers without which a round does not count; default 1")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on where the run in --out stopped")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print nothing but errors")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="print every metric of every round")] = False,
) -> None:
    """Train one federation and score it on the domain it never saw.

    Example: unseen run --method fedsb --data styled-digits --target outline --rounds 20 --seed 0 --out runs/first
    """
    options = {k: v for k, v in locals().items() if k not in ("file", "set_", "quiet", "verbose", "resume")}
    with answering():
        values = merge(read_toml(file) if file else {}, {**options, "set": settings_from(set_ or [])})
        about = {key: values.pop(key) for key in _RUN_KEYS if key in values}
        _run(values, about, resume or bool(about.get("resume", False)), quiet, verbose)


def _run(values: dict[str, Any], about: dict[str, Any], resume: bool, quiet: bool, verbose: bool) -> None:
    from unseen.errors import BadInput
    from unseen.experiment import read_experiment

    problems = []
    if not isinstance(about.get("workers", 1), int) or about.get("workers", 1) < 1:
        problems.append(f"workers is {about['workers']!r}; expected a whole number, at least 1")
    if not isinstance(about.get("out", ""), str | Path):
        problems.append(f"out is {about['out']!r}; expected a folder")
    try:
        experiment = read_experiment(values, own_code=True)
    except BadInput as bad:
        raise BadInput([*problems, *bad.problems]) from None
    if problems:
        raise BadInput(problems)
    between, track = _refuse_half_between(about), _trackers(about.get("track"))
    fold = experiment.target or experiment.source or "all"
    out = Path(about.get("out") or Path("runs") / f"{experiment.name}-{fold}-{experiment.seed}".replace("/", "_").replace(" ", "-"))
    with answering(f"To go on: the same command with --resume (the run is in {out})."):
        if between:
            _train_between_sites(experiment, out, about, resume, quiet, verbose, track)
        else:
            _train(experiment, out, about.get("workers"), resume, quiet, verbose, track)


def _refuse_half_between(about: dict[str, Any]) -> bool:
    """Whether the run is between machines; BadInput where that is said by halves."""
    from unseen.errors import BadInput, choose

    remote = ("deadline", "minimum_clients", "study", "carrier", "secure_sums")
    flower = choose("engine", str(about.get("engine", "local")), ("local", "flower")) == "flower"
    if "federation" in about:
        return True
    if flower:
        raise BadInput("--engine flower needs --federation DIR, the folder made by `unseen federation init`")
    given = [key for key in remote if key in about]
    if given:
        raise BadInput(f"{given[0]} is for runs between machines; add --federation DIR")
    return False


def _trackers(given: Any) -> list[str]:
    """The names that --track, or `track` in the file, gives: one or several."""
    from unseen.errors import BadInput

    names = [given] if isinstance(given, str) else given or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput(f"track is {given!r}; expected tensorboard, wandb or mlflow, or a list of them")
    return names


def _looking_on(stack: ExitStack, out: Path, quiet: bool, verbose: bool, track: list[str]) -> Any:
    from unseen.cli.progress import Screen
    from unseen.report.trackers import Tracked

    watch = stack.enter_context(Screen(screen, quiet, verbose))
    return stack.enter_context(Tracked(watch, track, out)) if track else watch


def _train_between_sites(
    experiment: Any, out: Path, about: dict[str, Any], resume: bool, quiet: bool, verbose: bool, track: list[str]
) -> None:
    from unseen.cli.between import carrier_of, needs_cryptography, terms_of

    needs_cryptography()
    from unseen.device.heap import give_back_at_once
    from unseen.federation.kits import read_federation
    from unseen.federation.server.proposing import begin, propose, read_study_file
    from unseen.training import train

    known = read_federation(Path(about["federation"]))
    terms = terms_of(about.get("deadline", 600.0), about.get("minimum_clients", 1))
    begun = out / "study.json"
    file = Path(about["study"]) if "study" in about else begun if resume and begun.exists() else None
    study = read_study_file(file, known) if file else None
    give_back_at_once()
    with ExitStack() as stack:
        watch = _looking_on(stack, out, quiet, verbose, track)
        carrier = stack.enter_context(carrier_of(str(about.get("carrier", "flower")), known, watch.say))
        if study is None:
            study = propose(experiment, known, carrier, terms, watch.say, bool(about.get("secure_sums", False)))
        elsewhere = begin(experiment, study, known, carrier, terms, watch.say)
        result = train(experiment, out, resume=resume, watch=watch, elsewhere=elsewhere)
    _show(result, out, quiet)


def _train(experiment: Any, out: Path, workers: int | None, resume: bool, quiet: bool, verbose: bool, track: list[str]) -> None:
    from unseen.engines.workers import Workers
    from unseen.training import train
    from unseen.world import build_world

    world = build_world(experiment)  # mistakes about the data come before any process is started or anything written
    number = workers or default_workers(experiment)
    with ExitStack() as stack:
        pool = stack.enter_context(Workers(number, experiment.threads)) if number > 1 and experiment.rebuildable else None
        watch = _looking_on(stack, out, quiet, verbose, track)
        result = train(experiment, out, resume=resume, workers=pool, watch=watch, world=world)
    _show(result, out, quiet)


def _show(result: Any, out: Path, quiet: bool) -> None:
    from unseen.report.tables import Cell, own_comparison, to_markdown

    if not quiet:
        screen.print()
        screen.print(result.table("source"), markup=False)
        own = own_comparison([Cell.of(result.world.experiment.name, result.records)], "source")
        if own.columns:
            screen.print()
            screen.print(to_markdown(own), markup=False)
        screen.print(f"\nrecords, model and checkpoint are in {out}", markup=False)
