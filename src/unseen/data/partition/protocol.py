"""Which domains train and which stay unseen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from unseen.data.domain import DomainDataset, Fold, Protocol
from unseen.errors import BadInput, choose, nearest

__all__ = ["PROTOCOLS", "choose_fold", "leave_one_domain_out", "single_source"]


def leave_one_domain_out(dataset: DomainDataset) -> Iterator[Fold]:
    """Every domain in turn is the unseen one and the others train. A fold bears its target's name."""
    _refuse_lone_domain(dataset)
    for target in dataset.domains:
        yield Fold(target.name, tuple(d for d in dataset.domains if d is not target), (target,))


def single_source(dataset: DomainDataset) -> Iterator[Fold]:
    """Every domain in turn trains alone, and one training is scored on all the others. A fold bears its source's name."""
    _refuse_lone_domain(dataset)
    for source in dataset.domains:
        yield Fold(source.name, (source,), tuple(d for d in dataset.domains if d is not source))


PROTOCOLS: dict[str, Protocol] = {"leave-one-domain-out": leave_one_domain_out, "single-source": single_source}


def choose_fold(
    dataset: DomainDataset,
    protocol: str,
    *,
    target: str | None,
    source: str | None,
    sources: Sequence[str] | None = None,
    held_out: str | None = None,
) -> Fold:
    """One fold of a protocol.

    Leave-one-domain-out is chosen by its `target`; `sources` names the domains that train when not all the others shall.
    Single-source is chosen by its `source`. `held_out` is a domain that neither trains nor is a target: it serves selection.
    """
    choose("protocol", protocol, PROTOCOLS)
    lodo = protocol == "leave-one-domain-out"
    problems = _unknown(dataset, target, source, held_out, *(sources or ()))
    problems += _misfits_lodo(target, source, sources, held_out) if lodo else _misfits_single(target, source, sources, held_out)
    if problems:
        raise BadInput(problems)
    fold = next(fold for fold in PROTOCOLS[protocol](dataset) if fold.name == (target if lodo else source))
    kept = tuple(d for d in fold.sources if d.name != held_out and (sources is None or d.name in sources))
    targets = tuple(d for d in fold.targets if d.name != held_out)
    for what, left in (("source", kept), ("target", targets)):
        if not left:
            raise BadInput(f"no {what} domain is left once {held_out!r} is held out; hold out another, or none")
    return dataclasses.replace(fold, sources=kept, targets=targets, held_out=() if held_out is None else (dataset[held_out],))


def _refuse_lone_domain(dataset: DomainDataset) -> None:
    if len(dataset.domains) < 2:
        raise BadInput(f"data set {dataset.name!r} has {len(dataset.domains)} domain(s); expected a source and an unseen target at least")


def _unknown(dataset: DomainDataset, *names: str | None) -> list[str]:
    strangers = dict.fromkeys(n for n in names if n is not None and n not in dataset.names)
    return [f"no domain of {dataset.name} {name!r}{nearest(name, dataset.names)}" for name in strangers]


def _misfits_lodo(target: str | None, source: str | None, sources: Sequence[str] | None, held_out: str | None) -> list[str]:
    problems = []
    if target is None:
        problems.append(
            "leave-one-domain-out needs a target, the domain that stays unseen: --target NAME; `unseen bench` takes each in turn"
        )
    if source is not None:
        problems.append(f"source is {source!r}, but only single-source takes one; name the domains that train in sources")
    if sources is not None and not sources:
        problems.append("sources is empty; name at least one domain, or leave it out to train on all but the target")
    if target is not None and target in (sources or ()):
        problems.append(f"{target!r} is the target and asked for as a source; the unseen domain cannot train")
    if target is not None and target == held_out:
        problems.append(f"{target!r} is the target and asked for as the held-out source; selection must not see the target")
    problems += [f"{name!r} is named twice in sources" for name in dict.fromkeys(sources or ()) if list(sources or ()).count(name) > 1]
    return problems


def _misfits_single(target: str | None, source: str | None, sources: Sequence[str] | None, held_out: str | None) -> list[str]:
    problems = []
    if source is None:
        problems.append("single-source needs a source: the one domain that trains")
    if target is not None:
        why = "is the source, and the unseen domain cannot train" if target == source else "need not be named"
        problems.append(f"target {target!r} {why}: single-source scores every domain but its source; leave target out")
    if sources is not None:
        problems.append(f"sources is {list(sources)}, but single-source trains on one domain; give it as source")
    if source is not None and source == held_out:
        problems.append(f"{source!r} is the only source and asked for as the held-out one; a held-out domain does not train")
    return problems
