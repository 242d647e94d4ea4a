"""Which answers are summed, and which methods cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from unseen.codec import hints_of, without_none
from unseen.federation.sums.context import FEWEST_SITES
from unseen.method import Method, task_types
from unseen.payload import OF_A_NETWORK, Payload, declarations
from unseen.settings import parts_in

__all__ = ["drawn_sites", "is_summed", "refusals"]


def is_summed(answer: type[Payload]) -> bool:
    """Whether every field is one of which the mean is enough, or the only count, or can stay empty: a site that fills it is refused."""
    told, hints = declarations(answer), hints_of(answer)
    others = [name for name, one in told.items() if not one.mean and one.kind != "count"]
    return any(one.mean for one in told.values()) and all(without_none(hints[name])[1] for name in others)


def drawn_sites(participation: float) -> Iterator[str]:
    """Why rounds of drawn sites are not summed. The models of two rounds may be nearly equal, so their sums may differ in a site alone."""
    if participation != 1:
        yield (
            f"participation is {participation:g} under secure sums, expected 1: sums over different sites, taken from each other, "
            "tell single answers; let every site take part in each round, or propose the study without secure sums"
        )


def refusals(method: Method[Any], sites: int, participation: float = 1.0) -> Iterator[str]:
    """Why this method cannot run under secure sums among so many sites, one sentence each."""
    yield from drawn_sites(participation)
    if sites < FEWEST_SITES:
        yield f"a secure sum takes {FEWEST_SITES} sites, and there are {sites}; a site could work out the others' answers"
    yield from (f"{why}; a secure sum would hide it" for why in method.needs_each())
    for owner in (method, *parts_in(method)):
        for name in dir(type(owner)):
            task = getattr(type(owner), name, None)
            if not hasattr(task, "__payloads__"):
                continue
            _, answer = task_types(task)  # type: ignore[arg-type]
            weights = [field for field, told in declarations(answer).items() if told.kind in OF_A_NETWORK]
            if weights and not is_summed(answer):
                yield (
                    f"{type(owner).__name__}.{name} answers with {weights[0]}, of which it is not said that the mean is enough; "
                    "a field says so by carries(..., mean=True)"
                )
