"""`unseen advise`: which method for these data, why, what it costs and what leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.answers import answering, errors
from unseen.cli.options import experiment_option
from unseen.machine import cores

if TYPE_CHECKING:
    from unseen.advice.advising import Advice
    from unseen.advice.looking import Look

__all__ = ["advise"]


def advise(
    data: Annotated[str, typer.Option(help="your data: folder:PATH, csv:FILE, FILE.py:NAME or a data set's name")],
    target: Annotated[
        str | None, typer.Option(help="the domain that stays unseen, which takes no part in the advice; none: all are sources")
    ] = None,
    rounds: Annotated[int, typer.Option(help="communication rounds that you plan", min=1)] = 20,
    network: Annotated[str | None, experiment_option("network")] = None,
    size: Annotated[int | None, experiment_option("size")] = None,
    device: Annotated[str, experiment_option("device")] = "auto",
    seconds: Annotated[float, typer.Option(help="how long steps are timed, about; 0: not at all", min=0)] = 20.0,
    cache: Annotated[
        Path | None, typer.Option(help="where prepared data lie; default UNSEEN_CACHE, else the platform's cache folder")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """Look at the data and recommend a command, with the reasons, their evidence, the cost in time and traffic, and what leaves.

    Example: unseen advise --data folder:ours --target south
    """
    with answering():
        from dataclasses import asdict

        from unseen.advice.advising import RECOMMENDED, Request
        from unseen.advice.advising import advise as advise_on
        from unseen.advice.costing import time_steps
        from unseen.advice.looking import look_at, sources_of
        from unseen.methods import method_class

        sources = sources_of(_open(data, size, cache), target)
        look = look_at(sources)
        asked = Request(data, target, rounds, network, size, device, timed=seconds > 0)
        costs = None
        if asked.timed:
            errors.print(f"timing a few steps of {RECOMMENDED}, for about {seconds:g} s at most after the first", markup=False)
            costs = time_steps(method_class(RECOMMENDED)(), sources, seconds, network=network, device=device)
        advice = advise_on(look, asked, costs, cores(), RECOMMENDED)
        if as_json:
            typer.echo(json.dumps({"data": _plain(look), "advice": asdict(advice)}, indent=1))
        else:
            typer.echo(_told(look, advice, target), nl=False)


def _open(data: str, size: int | None, cache: Path | None) -> Any:
    from unseen.data import load
    from unseen.data.own import open_data
    from unseen.experiment_options import options

    value, problem = next(s for s in options() if s.name == "data").read(data)
    if problem:
        from unseen.errors import BadInput

        raise BadInput(problem)
    return load(value, cache=cache, size=size) if isinstance(value, str) else open_data(value, size)


def _plain(look: Look) -> dict[str, Any]:
    gaps = look.gaps
    style = None
    if gaps is not None:
        between = {f"{a} - {b}": gap for (a, b), gap in gaps.between.items()}
        style = {"between": between, "within": dict(gaps.within), "images": gaps.images, "times": gaps.times}
    return {
        "name": look.data,
        "task": look.task,
        "size": list(look.size),
        "images": dict(look.images),
        "shares": {site: list(shares) for site, shares in look.shares.items()},
        "uneven": look.uneven,
        "style": style,
    }


def _told(look: Look, advice: Advice, target: str | None) -> str:
    from unseen.speed.measuring import machine

    here = machine()
    hardware = here["gpu"] or f"no GPU, {here['cores']} cores"
    sites = ", ".join(f"{name} {count:,}" for name, count in look.images.items())
    kind = f"{len(look.labels)} classes" if look.task == "classification" else f"masks of {', '.join(look.labels)}"
    seen = [f"{look.task}, {kind}, {look.size[0]} x {look.size[1]} pixels", f"{len(look.images)} sources: {sites}"]
    seen += [f"unseen: {target}; its images and labels take no part here"] if target else []
    if look.gaps is not None:
        pair, gap = max(look.gaps.between.items(), key=lambda one: one[1])
        farthest = f"farthest {pair[0]} and {pair[1]} ({gap:.2f}, from 0 to 1)"
        seen.append(f"style: {look.gaps.times:.1f} times as far between two sites as within one; {farthest}")
    if look.shares:
        seen.append(f"class shares differ by up to {100 * look.uneven:.0f} % between two sites")
    seen.append(f"hardware: {hardware}")
    parts = [_section("Your data", seen), "Run\n" + "\n".join(f"  {command}" for command in advice.commands) + "\n"]
    parts.append(_section("Why", advice.reasons))
    parts += [_section("Mind", advice.warnings)] if advice.warnings else []
    if advice.evidence:
        parts.append(_section("Evidence, points against FedAvg with a 95 % interval", [str(one) for one in advice.evidence]))
    else:
        parts.append(_section("Evidence", [f"no committed table has {advice.method} on {look.task} yet (docs/which-method.md)"]))
    parts.append(_section("Cost", advice.cost))
    parts += [_section("What leaves a site", advice.leaves)] if advice.leaves else []
    return "\n".join(parts)


def _section(title: str, lines: Any) -> str:
    import shutil
    import textwrap

    width = min(shutil.get_terminal_size().columns, 100)
    return "\n".join([title, *(textwrap.fill(line, width, initial_indent="  - ", subsequent_indent="    ") for line in lines)]) + "\n"
