"""`unseen run`: one federation."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from typer.core import TyperCommand

from unseen.cli.answers import answering, screen
from unseen.cli.options import (
    BETWEEN,
    MACHINE,
    SHOWING,
    TRACKER_NAMES,
    TRUST_CODE,
    among,
    default_workers,
    experiment_option,
    merge,
    method_option,
    read_toml,
    settings_from,
)
from unseen.cli.progress import looking_on_at_one

if TYPE_CHECKING:
    from unseen.experiment import Experiment
    from unseen.training import Result

__all__ = ["RunCommand", "run"]

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


class RunCommand(TyperCommand):
    """`--resume` alone, as a flag beside --out, or with the folder of the run: `--resume DIR`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ready = []
        for word, following in zip(args, [*args[1:], "-"], strict=False):
            is_flag = word == "--resume" and (following.startswith("-") or Path(following).is_file())
            ready.append("--resume=" if is_flag else word)
        return super().parse_args(ctx, ready)


def run(
    file: Annotated[
        Path | None, typer.Argument(help="a TOML file with the same keys as the options; options win", show_default=False)
    ] = None,
    method: Annotated[str | None, method_option("a method's name, or FILE.py:CLASS of your own. Names")] = None,
    data: Annotated[str | None, experiment_option("data")] = None,
    target: Annotated[str | None, experiment_option("target")] = None,
    rounds: Annotated[int | None, experiment_option("rounds")] = None,
    seed: Annotated[int | None, experiment_option("seed")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for the run", show_default="runs/METHOD-FOLD-SEED")] = None,
    network: Annotated[str | None, experiment_option("network")] = None,
    weights: Annotated[str | None, experiment_option("weights")] = None,
    preset: Annotated[str | None, experiment_option("preset")] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", help="FIELD=VALUE of the method, repeatable; `unseen methods NAME` lists the fields", show_default=False),
    ] = None,
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
        int | None,
        typer.Option(help="client tasks in parallel processes", min=1, show_default="one per core, on a GPU one", rich_help_panel=MACHINE),
    ] = None,
    label: Annotated[str | None, experiment_option("label")] = None,
    track: Annotated[
        list[str] | None,
        typer.Option(
            help="tensorboard, wandb or mlflow, repeatable; they work offline",
            autocompletion=among(*TRACKER_NAMES),
            show_default=False,
            rich_help_panel=SHOWING,
        ),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="local, or flower: between machines", show_default="local", rich_help_panel=BETWEEN)
    ] = None,
    federation: Annotated[
        Path | None, typer.Option(help="folder made by `unseen federation init`: run between its sites", rich_help_panel=BETWEEN)
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(
            help="the study that the sites approved; without one it is proposed now, to sites that approve by rule", rich_help_panel=BETWEEN
        ),
    ] = None,
    carrier: Annotated[
        str | None, typer.Option(help="flower, or folder:PATH for sites without a line", show_default="flower", rich_help_panel=BETWEEN)
    ] = None,
    secure_sums: Annotated[
        bool | None, typer.Option("--secure-sums", help="the server reads sums over the sites alone", rich_help_panel=BETWEEN)
    ] = None,
    deadline: Annotated[
        float | None, typer.Option(help="seconds that sites have to answer", show_default="600", rich_help_panel=BETWEEN)
    ] = None,
    minimum_clients: Annotated[
        int | None, typer.Option(help="answers without which a round does not count", show_default="1", rich_help_panel=BETWEEN)
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            "--resume",
            metavar="[DIR]",
            help="go on with the run in DIR, with the settings it has; alone: with the run in --out, whose settings are given again",
        ),
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help=f"with --resume DIR: {TRUST_CODE}")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print nothing but errors", rich_help_panel=SHOWING)] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="print every metric of every round", rich_help_panel=SHOWING)] = False,
    show_target: Annotated[
        bool,
        typer.Option("--show-target", help="show the score on the unseen domain while training, too", rich_help_panel=SHOWING),
    ] = False,
) -> None:
    """Train one federation and score it on the domain it never saw.

    Example: unseen run --method fedsb --data styled-digits --target outline --rounds 20 --seed 0 --out runs/first
    """
    options = {k: v for k, v in locals().items() if k not in ("file", "set_", "quiet", "verbose", "show_target", "resume", "trust")}
    with answering():
        from unseen.errors import BadInput

        given = {**options, "set": settings_from(set_ or [])}
        if trust and not resume:
            raise BadInput("--trust is for --resume DIR, whose folder may name code; what you name yourself is run anyway")
        before = _described(Path(resume), file, given, trust) if resume else read_toml(file) if file else {}
        values = merge(before, given)
        about = {key: values.pop(key) for key in _RUN_KEYS if key in values}
        looks = {"quiet": quiet, "verbose": verbose, "show_target": show_target}
        _run(values, about, resume is not None or bool(about.get("resume", False)), looks)


def _described(folder: Path, file: Path | None, given: dict[str, Any], trust: bool) -> dict[str, Any]:
    """The settings of the run in a folder, as its run.json has them."""
    from unseen.errors import BadInput
    from unseen.own_code import MEMORY, names_code, texts_in
    from unseen.runs.folder import read_run

    if file is not None:
        raise BadInput(
            f"--resume {folder} takes the settings from the run itself; leave {file} out, or give --resume alone and --out {folder}"
        )
    if given.get("out") not in (None, folder):
        raise BadInput(f"--resume {folder} goes on in that folder; leave --out {given['out']} out")
    found = read_run(folder)
    if found is None:
        raise BadInput(f"no run in {folder} (it has no run.json); give the --out of `unseen run`, or start one")
    if not isinstance(found["experiment"], dict):
        raise BadInput(f"{folder / 'run.json'} cannot be read as a run; restore it, or choose another folder")
    texts = list(texts_in({k: v for k, v in found["experiment"].items() if k != "label"}))
    named = [text for text in texts if names_code(text)]
    if named and not trust:
        raise BadInput(f"the run in {folder} names code in a file ({named[0]}); if you know who wrote the folder, add --trust")
    if any(text.startswith(MEMORY) for text in texts):
        raise BadInput(f"the run in {folder} uses data or code that was handed over in Python; go on with unseen.run(..., resume=True)")
    if found.get("between_sites") and given.get("federation") is None:
        raise BadInput(f"the run in {folder} is between sites; add --federation DIR")
    return {**found["experiment"], "out": str(folder)}


def _run(values: dict[str, Any], about: dict[str, Any], resume: bool, looks: dict[str, bool]) -> None:
    from unseen.device.heap import lasting_imports
    from unseen.errors import BadInput

    with lasting_imports():
        import unseen.training  # noqa: F401 -- and all that it takes
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
    more = f" --federation {about['federation']}" if between else ""
    with answering(f"To go on: unseen run --resume {out}{more}"):
        if between:
            result = _train_between_sites(experiment, out, about, resume, looks, track)
        else:
            result = _train(experiment, out, about.get("workers"), resume, looks, track)
    if not looks["quiet"]:
        _show(result, out)


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


def _looking_on(stack: ExitStack, experiment: Experiment, out: Path, looks: dict[str, bool], track: list[str]) -> Any:
    from unseen.report.trackers import Tracked

    watch = stack.enter_context(looking_on_at_one(**looks))
    return stack.enter_context(Tracked(watch, track, out, experiment)) if track else watch


def _train_between_sites(
    experiment: Experiment, out: Path, about: dict[str, Any], resume: bool, looks: dict[str, bool], track: list[str]
) -> Result:
    from unseen.cli.between import carrier_of, needs_cryptography, steps_of_sums, terms_of

    needs_cryptography()
    from unseen.device.heap import give_back_at_once
    from unseen.federation.activity import Event
    from unseen.federation.kits import read_federation
    from unseen.federation.server.proposing import begin, propose, read_study_file
    from unseen.federation.server.standing import StudyFile
    from unseen.training import train

    known = read_federation(Path(about["federation"]))
    terms = terms_of(about.get("deadline", 600.0), about.get("minimum_clients", 1))
    begun = out / "study.json"
    file = Path(about["study"]) if "study" in about else begun if resume and begun.exists() else None
    study = read_study_file(file, known) if file else None
    give_back_at_once()
    with ExitStack() as stack:
        watch = _looking_on(stack, experiment, out, looks, track)
        carrier = stack.enter_context(carrier_of(str(about.get("carrier", "flower")), known, watch.say))
        if study is None:
            study = propose(experiment, known, carrier, terms, watch.say, bool(about.get("secure_sums", False)))
        standing = stack.enter_context(StudyFile(known.path, study, out, steps_of_sums(watch.within)))
        elsewhere = begin(experiment, study, known, carrier, terms, watch.say, standing)
        result = train(experiment, out, resume=resume, watch=watch, elsewhere=elsewhere)
        standing(Event("ended", study=study.digest))
    return result


def _train(experiment: Experiment, out: Path, workers: int | None, resume: bool, looks: dict[str, bool], track: list[str]) -> Result:
    from unseen.engines.workers import Workers
    from unseen.training import train
    from unseen.world import build_world

    world = build_world(experiment)  # mistakes about the data come before any process is started or anything written
    number = workers or default_workers(experiment)
    with ExitStack() as stack:
        pool = stack.enter_context(Workers(number, experiment.threads)) if number > 1 and experiment.rebuildable else None
        watch = _looking_on(stack, experiment, out, looks, track)
        return train(experiment, out, resume=resume, workers=pool, watch=watch, world=world)


def _show(result: Result, out: Path) -> None:
    """The table, what it says, and what one would do next."""
    from importlib.util import find_spec

    from unseen.cli.tables import in_shell, next_steps, say_below, say_where_others_are, show_comparison
    from unseen.report.saying import what_was_found
    from unseen.report.tables import Cell
    from unseen.runs.selection import DEFAULT_RULE, RULES

    cell = Cell.of(result.world.experiment.name, result.records)
    index = RULES[DEFAULT_RULE].picks(result.records)
    chosen = f"That was round {result.records[index]['round']} of {len(result.records)}. " if index is not None else ""
    show_comparison([cell], DEFAULT_RULE)
    say_below(chosen + what_was_found([cell], DEFAULT_RULE))
    say_where_others_are([cell], out)
    screen.print(f"Records, model and checkpoint are in {out}", markup=False)
    looks = ("unseen", "figure", "confusion", out, "--out", "confusion.png"), "which classes are taken for which"
    page = (
        ("unseen", "report", out, "--format", "html", "--out", "report.html"),
        "learning curve, what travelled, time and settings on a page",
    )
    classes = result.world.dataset.task.name == "classification"
    steps = [
        (("unseen", "run", "--resume", out, "--rounds", 2 * len(result.records)), "train on, with more rounds"),
        looks if classes and find_spec("matplotlib") else page,
        (("unseen", "export", out), "the model with its card, to use elsewhere"),
    ]
    next_steps([(in_shell(*words), why) for words, why in steps])
