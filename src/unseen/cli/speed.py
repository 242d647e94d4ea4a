"""`unseen speed`: how fast this machine trains."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.answers import answering, errors, refuse_unwritable, screen
from unseen.cli.options import among, settings_from
from unseen.cli.progress import steps as steps_bar
from unseen.machine import cores

if TYPE_CHECKING:
    from unseen.speed.measuring import Case, SpeedMeasured, SpeedPlan

__all__ = ["speed"]

_STRANGE = 1.15  # a ratio above this says more of the measurement than of the round
_SHORT_TIME = 0.05  # seconds below which a clock and a scheduler weigh
_NOT_OF_THE_PLAN = ("to_json", "quiet", "federation", "megabytes", "start")
_SHORT = {  # phases as the table's headings have them
    "data": "data",
    "augmentation": "augment",
    "forward and backward": "fwd+bwd",
    "optimiser": "optimiser",
    "rest of the client": "client",
    "aggregation": "aggregate",
    "evaluation": "evaluate",
    "bytes": "bytes",
}


def speed(
    methods: Annotated[str, typer.Option(help="methods, separated by commas, or all")] = "fedavg",
    networks: Annotated[str, typer.Option(help="task networks, separated by commas")] = "resnet18,mobilenet_v2",
    batch: Annotated[int | None, typer.Option(help="images in a batch; default 32, on a GPU 64")] = None,
    size: Annotated[int | None, typer.Option(help="image side in pixels; default 64, on a GPU 224, with --data its own")] = None,
    steps: Annotated[int | None, typer.Option(help="batches that each of three clients has; default 10, on a GPU 25")] = None,
    data: Annotated[str | None, typer.Option(help="a data set's name, folder:PATH or csv:FILE, instead of noise")] = None,
    target: Annotated[str | None, typer.Option(help="the domain of --data that stays unseen")] = None,
    augment: Annotated[str, typer.Option(help="augmentation recipe, timed apart")] = "domainbed",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda", autocompletion=among("auto", "cpu", "cuda"))] = "auto",
    precision: Annotated[
        str | None, typer.Option(help="fp32 or bf16; default fp32, on a GPU bf16", autocompletion=among("fp32", "bf16", "auto"))
    ] = None,
    threads: Annotated[int | None, typer.Option(help="threads on a CPU; default one per core")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="a method's field, NAME=VALUE, repeatable: for all methods")] = None,
    beside: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, repeatable: one more round with this field, held against the round without it")
    ] = None,
    compile: Annotated[
        str, typer.Option(help="compiled passes on a GPU; auto: where faster", autocompletion=among("auto", "on", "off"))
    ] = "auto",
    repeats: Annotated[int, typer.Option(help="how often each side is timed; the fastest counts")] = 2,
    start: Annotated[bool, typer.Option(help="time a process of its own from the command to its first batch, for each network")] = True,
    federation: Annotated[
        bool, typer.Option("--federation", help="the exchange between sites instead: real processes on this machine")
    ] = False,
    megabytes: Annotated[float, typer.Option(help="of the model that is exchanged, with --federation")] = 100.0,
    to_json: Annotated[Path | None, typer.Option("--json", help="file to write the numbers to, for programs")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress")] = False,
) -> None:
    """Images a second of a federated round on this machine, against the bare training step of the same network.

    Both are timed in this process, in turns, and the fastest of several counts. Scoring is not part of a round's training part.

    Example: unseen speed --methods fedavg,fedsb --networks resnet18,mobilenet_v2 --batch 16 --size 64 --json speed.json
    """
    given = {key: value for key, value in locals().items() if key not in _NOT_OF_THE_PLAN and value is not None}
    with answering():
        from unseen.speed.measuring import measure
        from unseen.speed.start import seconds_to_first_batch

        refuse_unwritable(to_json)
        if federation:
            from unseen.cli.speed_federation import show_exchange

            exchanged = show_exchange(megabytes, repeats, quiet)
            _write(to_json, {"exchange": exchanged})
            return
        plan = _plan(given)
        rows: list[SpeedMeasured] = []
        with _progress(quiet) as tell:
            for total, case, row in measure(plan, say=lambda text: errors.print(text, markup=False)):
                rows.append(row)
                tell(len(rows), total, case, row)
                _write(to_json, {"plan": _plain(plan), "measured": [row.plain() for row in rows], "start": {}})
        starts = {network: seconds_to_first_batch(plan, network) for network in dict.fromkeys(row.network for row in rows) if start}
        _show(plan, rows)
        if start:
            _show_starts(starts)
        _write(to_json, {"plan": _plain(plan), "measured": [row.plain() for row in rows], "start": starts})


def _write(file: Path | None, found: dict[str, Any]) -> None:
    """The numbers so far: a measurement that is cut keeps the rows it has."""
    from unseen.files import write_atomically
    from unseen.speed.measuring import machine

    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps({"machine": machine(), **found}, indent=1) + "\n")


def _plan(given: dict[str, Any]) -> SpeedPlan:
    """What was asked for, and for the rest what suits the device."""
    import torch

    from unseen.errors import BadInput, choose
    from unseen.speed.measuring import SpeedPlan

    choose("device", given["device"], ("auto", "cpu", "cuda"))
    choose("precision", given.get("precision", "fp32"), ("fp32", "bf16", "auto"))
    choose("compile", given["compile"], ("auto", "on", "off"))
    given["settings"], given["beside"] = settings_from(given.pop("set_", [])), settings_from(given.pop("beside", []))
    if "steps" in given and "data" in given:
        raise BadInput("--steps is the size of made-up data; with --data a round is one pass over those")
    on_gpu = given["device"] == "cuda" or (given["device"] == "auto" and torch.cuda.is_available())
    usual: dict[str, Any] = {
        "batch": 64 if on_gpu else 32,
        "size": None if "data" in given else 224 if on_gpu else 64,
        "steps": 25 if on_gpu else 10,
        "precision": "bf16" if on_gpu else "fp32",
        "threads": cores(),
    }
    chosen = {**usual, **given}
    for several in ("methods", "networks"):
        chosen[several] = tuple(name.strip() for name in _outside_options(chosen[several]) if name.strip())
    if not chosen["methods"]:
        raise BadInput("no method is named; give at least one, as in --methods fedavg, or all")
    if chosen["methods"] == ("all",):
        chosen["methods"] = ()
    return SpeedPlan(**chosen)


def _outside_options(text: str) -> list[str]:
    """The names between commas; a network's options have commas of their own: unet:width=8,depth=4."""
    names: list[str] = []
    for piece in text.split(","):
        if names and "=" in piece and ":" not in piece:
            names[-1] += f",{piece}"
        else:
            names.append(piece)
    return names


@contextmanager
def _progress(quiet: bool) -> Iterator[Any]:
    """A bar in a terminal; and a line for each row as soon as it is measured, also where no progress is wanted."""
    from unseen.runs.screen import is_live

    with steps_bar("measuring", quiet) as told:

        def tell(done: int, total: int, case: Case, row: SpeedMeasured) -> None:
            told(done, total, f"{case.method}, {case.network}")
            line = f"{done}/{total} {_in_a_line(row)}"
            if quiet or not is_live(errors):
                typer.echo(line)
                sys.stdout.flush()  # a pipe would keep it until the end
            else:
                errors.print(line, markup=False)  # above the bar

        yield tell


def _in_a_line(row: SpeedMeasured) -> str:
    """
    >>> from unseen.speed.measuring import SpeedMeasured
    >>> rates = {"bare": 200.0, "round": 190.0, "augmented": 150.0, "scored": 120.0, "beside": None}
    >>> _in_a_line(SpeedMeasured("fedsam", "resnet18", 96, 2.0, False, **rates, seconds={}, sent=1, received=2))
    'fedsam, resnet18: bare 200, round 190 (0.95; 1.90 of passes), augmented 150 (0.75), scoring 20%'
    """
    beside = "" if row.beside is None else f", beside {_rate(row.beside)} ({row.beside_ratio:.2f} of the round)"
    return (
        f"{row.method}, {row.network}: bare {_rate(row.bare)}, round {_rate(row.round)} ({row.ratio:.2f}; {row.pass_ratio:.2f} of passes), "
        f"augmented {_rate(row.augmented)} ({row.augmented_ratio:.2f}), scoring {row.scoring_share:.0%}{beside}"
    )


def _plain(plan: SpeedPlan) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(plan)


def _show(plan: SpeedPlan, rows: list[SpeedMeasured]) -> None:
    from unseen.speed.measuring import machine

    about = machine()
    where = about["gpu"] if rows and plan.device != "cpu" and about["gpu"] else f"{plan.threads} CPU threads ({about['cpu']})"
    what = plan.data or f"noise, {plan.steps} batches for each of 3 clients"
    size = f", {plan.size} px" if plan.size else ""
    typer.echo(f"{where}, torch {about['torch']}; batch {plan.batch}{size}, {plan.precision}; {what}")
    rates: list[tuple[str, ...]] = [
        ("network", "method", "bare step", "round", "ratio", "augmented", "ratio", "passes", "of passes", "scored", "scoring")
    ]
    for row in rows:
        bare, plain, augmented = (_rate(rate) for rate in (row.bare, row.round, row.augmented))
        rates.append(
            (
                row.network,
                row.method,
                bare,
                plain,
                f"{row.ratio:.2f}",
                augmented,
                f"{row.augmented_ratio:.2f}",
                f"{row.passes:.2f}",
                f"{row.pass_ratio:.2f}",
                _rate(row.scored),
                f"{row.scoring_share:.0%}",
            )
        )
    typer.echo(f"\nimages a second, training part of a round; ratios to the bare step; augmented: with {plan.augment}")
    typer.echo(_fitted(rates))
    for row in rows:
        if row.beside is not None:
            fields = ", ".join(f"{name}={value}" for name, value in plan.beside.items())
            typer.echo(f"{row.method} with {row.network} and {fields}: {_rate(row.beside)}, {row.beside_ratio:.2f} of the round")
    for doubt in doubts(rows):
        screen.print(doubt, markup=False, soft_wrap=not screen.is_terminal)
    if any(row.compiled for row in rows):
        typer.echo("compiled: " + ", ".join(f"{row.method} with {row.network}" for row in rows if row.compiled))
    split: list[tuple[str, ...]] = [("network", "method", *_SHORT.values(), "MB sent", "MB received")]
    for row in rows:
        phases = (f"{1e3 * row.seconds[phase]:,.1f}" for phase in _SHORT)
        split.append((row.network, row.method, *phases, *(f"{n / 1e6:,.1f}" for n in (row.sent, row.received))))
    typer.echo("\nmilliseconds of one augmented round, clocks inside; evaluation and bytes (to bytes and back) come on top")
    typer.echo(_fitted(split))


def doubts(rows: list[SpeedMeasured]) -> list[str]:
    """What a reader should know before believing a ratio: it is near 1 or below, unless one side was disturbed or too short."""
    strange = [row for row in rows if row.ratio > _STRANGE]
    short = [row for row in rows if min(row.images / row.bare, row.images / row.round) < _SHORT_TIME]
    found = []
    if strange:
        worst = max(strange, key=lambda row: row.ratio)
        found.append(
            f"doubtful: {worst.method} with {worst.network} has a ratio of {worst.ratio:.2f}. A round cannot be faster than its own steps: "
            "the bare step was disturbed, as small networks are by many threads; try --threads 1, and more --steps"
        )
    if short:
        least = min(min(row.images / row.bare, row.images / row.round) for row in short)
        found.append(f"doubtful: the shortest side took {1e3 * least:.0f} ms, too short to be timed well; try more --steps")
    return found


def _fitted(rows: list[tuple[str, ...]]) -> str:
    """Aligned; where the terminal is too narrow, turned by a quarter: what was a column becomes a line."""
    plain = _aligned(rows)
    if not screen.is_terminal or max(map(len, plain.splitlines())) <= screen.width:
        return plain
    heads = [(f"{row[0]}, {row[1]}", *row[2:]) for row in rows[1:]]
    sides = list(zip(("", *rows[0][2:]), *heads, strict=True))
    return _aligned([(line[0], "", *line[1:]) for line in sides])


def _show_starts(starts: dict[str, dict[str, float] | None]) -> None:
    typer.echo("\nseconds from the command to the first trained batch, FedAvg, in a process of its own")
    for network, times in starts.items():
        if times is None:
            typer.echo(f"{network}  could not be measured")
            continue
        steps = ", ".join(f"{what} {when:.1f}" for what, when in times.items() if what != "step")
        typer.echo(f"{network}  {times['step']:.1f}  (until then: {steps})")


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _aligned(rows: list[tuple[str, ...]]) -> str:
    """Columns as wide as they need to be: two of names, the rest numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{'<' if n < 2 else '>'}{w}}" for n, (cell, w) in enumerate(zip(row, widths, strict=True))) for row in rows
    )
