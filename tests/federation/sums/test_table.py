"""The tables of docs/secure-sums.md: what is summed and what is refused, as the methods declare it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from unseen.federation.sums.summable import is_summed, refusals
from unseen.method import Method, task_types
from unseen.methods import METHODS
from unseen.parts import PARTS
from unseen.parts.aggregation import Aggregation
from unseen.payload import Declaration, declarations
from unseen.settings import build, parts_in

TEXT = (Path(__file__).parents[3] / "docs/secure-sums.md").read_text()
OTHERWISE = {"feddag": {"aggregation": "mean"}, "fedgma": {"aggregation": "mean"}}  # what makes a refused method one that can be summed
PLURALS = {"model": "models", "update": "updates", "statistic": "statistics", "spectrum": "spectra", "score": "scores", "number": "numbers"}


def answers(method: Method[Any]) -> Iterator[tuple[bool, dict[str, Declaration]]]:
    """Of each task of a method, whether its answers are summed, and what its fields declare."""
    for owner in (method, *parts_in(method)):
        for name in dir(type(owner)):
            task = getattr(type(owner), name, None)
            if hasattr(task, "__payloads__"):
                up = task_types(task)[1]  # type: ignore[arg-type]
                yield is_summed(up), declarations(up)


def row(title: str, method: Method[Any]) -> str:
    why = [told.removesuffix("; a secure sum would hide it") for told in refusals(method, 3)]
    if why:
        return f"| {title} | refused: {why[0]} | |"
    summed, plain = dict[str, None](), dict[str, None]()
    for is_sum, fields in answers(method):
        for name, told in fields.items():
            if is_sum and told.mean:
                summed[f"`{name}`"] = None
            elif not is_sum:
                plain[f"`{name}` ({PLURALS[told.kind]})"] = None
    return f"| {title} | {', '.join(sorted(summed))} | {', '.join(sorted(plain))} |"


def rows() -> Iterator[str]:
    for name, kind in METHODS.items():
        yield row(name, kind())
        if name in OTHERWISE:
            settings = ", ".join(f"`{key} = {value}`" for key, value in OTHERWISE[name].items())
            yield row(f"{name}, {settings}", build(kind, OTHERWISE[name], PARTS))


def test_every_method_has_the_row_that_it_declares() -> None:
    assert [line for line in rows() if line.replace(" |  |", " | |") not in TEXT] == []
    titles = [line.split("|")[1].strip() for line in TEXT.splitlines() if line.startswith("| ")]
    assert {*METHODS} <= {*titles} and {title.split(",")[0] for title in titles if title.split(",")[0] in METHODS} == {*METHODS}


def parts_told() -> Iterator[str]:
    """Every aggregation of FedAvg, and a bound."""
    for name in sorted(name for name, part in PARTS.items() if issubclass(part, Aggregation)):
        why = [*refusals(build(METHODS["fedavg"], {"aggregation": name}, PARTS), 3)]
        yield f"| `aggregation = {name}` | {'refused: ' + why[0].removesuffix('; a secure sum would hide it') if why else 'summed'} |"
    why = [*refusals(build(METHODS["fedavg"], {"bound": "norm"}, PARTS), 3)]
    yield f"| `bound = norm` | refused: {why[0].removesuffix('; a secure sum would hide it')} |"


def test_every_aggregation_has_the_row_that_it_declares() -> None:
    assert [line for line in parts_told() if line not in TEXT] == []
