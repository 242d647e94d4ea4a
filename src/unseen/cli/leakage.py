"""`unseen leakage`: what could a curious server learn from what this study takes from our site?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from unseen.cli.answers import answering, screen
from unseen.cli.options import merge, read_toml

__all__ = ["experiment_of", "leakage"]

_OF_THE_RUN = ("out", "workers", "resume", "engine", "federation", "deadline", "minimum_clients", "track")
_MOST_BYTES = 2**26
_SHORT = {"images": "IMAGES", "better": "better than guessing", "clear": "in the clear", "guessing": "guessing", "silent": "says nothing"}


def leakage(
    file: Annotated[Path, typer.Argument(help="the study: a TOML file as for `unseen run`, or study.json")],
    data: Annotated[str, typer.Option(help="the site's data: folder:PATH, csv:FILE or a data set's name")],
    domain: Annotated[str | None, typer.Option(help="which domain of the data is the site's")] = None,
    size: Annotated[int | None, typer.Option(help="image side in pixels; default the study's")] = None,
    policy: Annotated[Path | None, typer.Option(help="the site's policy: its noise is put on what leaves")] = None,
    rounds: Annotated[int | None, typer.Option(help="play at most so many of the study's rounds", min=1)] = None,
    budget: Annotated[float, typer.Option(help="seconds that it may take, about", min=1)] = 300.0,
    seed: Annotated[int, typer.Option(help="of the meter's own draws; the study's seed is in its file", min=0)] = 0,
    out: Annotated[Path, typer.Option(help="folder for leakage.html and leakage.json")] = Path("leakage"),
) -> None:
    """Play a study on the site's own data and attack what would leave: images, membership, labels. Nothing leaves the machine.

    Example: unseen leakage study.toml --data folder:ours --policy policy.toml --out leakage
    """
    with answering():
        from unseen.federation.site.policy import read_policy
        from unseen.federation.site.process import site_data
        from unseen.leakage.meter import measure
        from unseen.leakage.playing import SITE

        rules = read_policy(policy)
        experiment, schema = experiment_of(file)
        _make(out)
        dataset = fitting(site_data(data, domain, SITE, size or experiment.size), schema)
        with screen.status("", spinner="dots") as status:
            found = measure(
                experiment, dataset, policy=rules if policy else None, rounds=rounds, budget=budget, seed=seed, say=_telling(status)
            )
        _write(out, found)
        _say(found, out)


def experiment_of(file: Path) -> tuple[Any, dict[str, Any] | None]:
    """The study's experiment, and what its data must be like, where the file says so.

    A TOML file is the user's own, so code that it names is imported. A study.json came from a server: code that it names is refused.
    """
    from unseen.errors import BadInput
    from unseen.experiment import read_experiment

    if file.suffix != ".json":
        values = merge(read_toml(file), {})
        return read_experiment({k: v for k, v in values.items() if k not in _OF_THE_RUN}, own_code=True), None
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise BadInput(f"{file} is larger than {_MOST_BYTES} bytes; expected a study.json")
        values = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{file} cannot be read as a study: {type(error).__name__}") from None
    study = values.get("study", values) if isinstance(values, dict) else {}  # with its signature around it, or without
    if not isinstance(study, dict) or not isinstance(study.get("experiment"), dict) or not isinstance(study.get("schema"), dict):
        raise BadInput(f"{file} holds no study; expected the file that `unseen federation propose` wrote")
    if study["experiment"].get("weights") not in (None, "imagenet"):
        raise BadInput(f"{file} names a file of weights; a study that came from elsewhere opens no file here")
    return read_experiment({"data": "elsewhere", **study["experiment"]}), study["schema"]


def fitting(dataset: Any, schema: dict[str, Any] | None) -> Any:
    """The site's data as the study has them; BadInput where they are of another kind."""
    if schema is None:
        return dataset
    from unseen.errors import BadInput
    from unseen.federation.cards import as_agreed

    here = {"task": dataset.task.name, "channels": dataset.channels, "size": list(dataset.size)}
    problems = [f"the study has {key} {schema.get(key)!r}, these data {value!r}" for key, value in here.items() if schema.get(key) != value]
    if problems:
        raise BadInput(problems)
    try:
        return as_agreed(dataset, schema)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"the study's schema cannot be read: {type(error).__name__}: {error}") from None


def _telling(status: Any) -> Any:
    from rich.text import Text

    return lambda text: status.update(Text(text))


def _make(out: Path) -> None:
    """The folder for the page, before minutes are spent on what goes into it."""
    from unseen.errors import BadInput

    try:
        out.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise BadInput(f"{out} cannot be written ({error.strerror}); choose another --out") from error


def _write(out: Path, found: Any) -> None:
    from unseen.files import write_atomically
    from unseen.leakage.leakage_page import render_leakage

    write_atomically(out / "leakage.json", json.dumps(found.values(), indent=1) + "\n")
    write_atomically(out / "leakage.html", render_leakage(found))


def _say(found: Any, out: Path) -> None:
    from rich.table import Table
    from rich.text import Text

    screen.print(Text(found.headline, style="bold"))
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    for name, width in (("what left", 18), ("attack", 20), ("figure", 6), ("interval", 10), ("guess", 5), ("verdict", 12)):
        table.add_column(name, width=width, overflow="fold")
    for a in found.attempts:
        if a.outcome != "untried":
            interval = f"{a.low:.2f}..{a.high:.2f}" if a.low is not None else ""
            figure, guess = (f"{v:.3g}" if v is not None else "" for v in (a.value, a.baseline))
            table.add_row(*(Text(t) for t in (a.what, a.attack, figure, interval, guess, _SHORT[a.outcome])))
    screen.print(table)
    screen.print(
        f"{found.rounds} of {found.planned} rounds, {found.seconds:.0f} s; 99 % intervals; a failed attack is no proof", markup=False
    )
    screen.print(f"{out / 'leakage.html'}, {out / 'leakage.json'}", markup=False)
