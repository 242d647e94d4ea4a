"""Cards: what kind of data a site has, and the worlds that are made of them at the server, at a site and in a rehearsal.

A card says nothing of how many images there are; an approval does, where the site's policy lets it. The server holds no data: where
the code of a run expects some, it gets stand-ins of the right shape and length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unseen.data.domain import Domain, DomainDataset, Fold, Holding, Pixels, Samples
from unseen.data.partition.partitions import per_domain
from unseen.data.reading.class_folders import in_order
from unseen.errors import BadInput
from unseen.experiment import Experiment
from unseen.task import Classification, Segmentation, Task
from unseen.world import World, assemble, refuse_obstacles

__all__ = [
    "Counts",
    "Schema",
    "SiteCard",
    "agree",
    "as_agreed",
    "card_of",
    "made_up_world",
    "refuse_bad_card",
    "server_world",
    "site_world",
]

SiteCard = dict[str, Any]  # of one site
Schema = dict[str, Any]  # what the sites of a run agree on
Counts = tuple[int, int]  # of training and of validation samples, as far as a site tells
_SAME_EVERYWHERE = ("task", "channels", "size", "pixels", "network", "augment")


def card_of(dataset: DomainDataset, evaluates: bool) -> SiteCard:
    """What a site tells of its one domain before there is a study."""
    return {
        "evaluates": evaluates,
        "task": dataset.task.name,
        "classes": list(_names(dataset.task)),
        "channels": dataset.channels,
        "size": list(dataset.size),
        "pixels": [list(dataset.pixels.mean), list(dataset.pixels.std)],
        "network": dataset.network,
        "augment": dataset.augment,
    }


def refuse_bad_card(card: Any) -> SiteCard:
    """The card if every entry is of its kind and within reason, else BadInput."""
    kinds = {
        "evaluates": bool,
        "task": str,
        "classes": list,
        "channels": int,
        "size": list,
        "pixels": list,
        "network": str,
        "augment": str,
    }
    whole = isinstance(card, dict) and card.keys() == kinds.keys() and all(type(card[k]) is kind for k, kind in kinds.items())
    if not whole or not 1 <= card["channels"] <= 64:
        raise BadInput("sent a card that cannot be read")
    sizes_fit = len(card["size"]) == 2 and all(type(n) is int and 1 <= n <= 16384 for n in card["size"])
    names_fit = 1 <= len(card["classes"]) <= 10_000 and all(type(c) is str and len(c) <= 200 for c in card["classes"])
    names_fit = names_fit and len(set(card["classes"])) == len(card["classes"]) and max(len(card["network"]), len(card["augment"])) <= 200
    pixels_fit = len(card["pixels"]) == 2 and all(
        type(p) is list and len(p) in (1, card["channels"]) and all(type(v) is float and abs(v) <= 1e6 for v in p) for p in card["pixels"]
    )
    if not (sizes_fit and names_fit and pixels_fit and card["task"] in ("classification", "segmentation")):
        raise BadInput("sent a card that cannot be read")
    return dict(card)


def agree(name: str, cards: Mapping[str, SiteCard]) -> Schema:
    """What all sites have in common, or BadInput that says who differs in what. A site may lack a class, not have its own order."""
    first, card = next(iter(sorted(cards.items())))
    problems = [
        f"{other} has {key} {cards[other][key]!r}, {first} has {card[key]!r}; the sites of a run need the same"
        for key in _SAME_EVERYWHERE
        for other in sorted(cards)
        if cards[other][key] != card[key]
    ]
    if problems:
        raise BadInput(problems)
    lists = [c["classes"] for c in cards.values()]
    classes = lists[0] if all(one == lists[0] for one in lists) else in_order({name for one in lists for name in one})
    return {"name": name, "classes": classes, **{key: card[key] for key in _SAME_EVERYWHERE}}


def server_world(experiment: Experiment, schema: Schema, sites: Mapping[str, Counts], evaluates: Mapping[str, bool]) -> World:
    """The world as the server knows it: who holds how much, as far as the sites tell."""
    stand_ins = {name: _stand_in(name, sum(counts), schema) for name, counts in sorted(sites.items())}
    sources = tuple(d for name, d in stand_ins.items() if not evaluates[name])
    targets = tuple(d for name, d in stand_ins.items() if evaluates[name])
    dataset = _dataset(schema, tuple(stand_ins.values()))
    fold = Fold("+".join(d.name for d in targets) or "none", sources, targets)
    world = assemble(experiment, dataset, fold, {d.name: _stand_in_holding(d, sites[d.name]) for d in sources})
    refuse_obstacles(world)
    return world


def made_up_world(experiment: Experiment, schema: Schema, domains: Sequence[Domain]) -> World:
    """The world of a rehearsal: each site has images that nobody took."""
    dataset = _dataset(schema, tuple(domains))
    holdings = {d.name: per_domain(0.25)([d], 0)[0] for d in domains}
    return assemble(replace(experiment, data=dataset), dataset, Fold("rehearsal", tuple(domains), ()), holdings)


def site_world(experiment: Experiment, dataset: DomainDataset, evaluates: bool) -> World:
    """The world of a site: its own data and nothing else. Training and validation are split as they are in process."""
    domain = dataset.domains[0]
    if evaluates:
        return assemble(experiment, dataset, Fold(domain.name, (), (domain,)), {})
    holding = per_domain(experiment.validation)([domain], experiment.seed)[0]
    return assemble(experiment, dataset, Fold("site", (domain,), ()), {domain.name: holding})


def as_agreed(dataset: DomainDataset, schema: Schema) -> DomainDataset:
    """A site's data under the run's name and class numbers."""
    domain = dataset.domains[0]
    own, agreed = _names(dataset.task), tuple(schema["classes"])
    missing = sorted(set(own) - set(agreed))
    if missing:
        raise BadInput(f"the run has no class {missing[0]!r}, which this site has")
    labels = domain.labels
    if own != agreed and dataset.task.name == "classification":
        labels = np.array([agreed.index(name) for name in own], dtype=np.int64)[np.asarray(labels)]
    elif own != agreed:
        raise BadInput(f"the run segments {', '.join(agreed)}; this site has masks of {', '.join(own)}")
    renumbered = Domain(domain.name, domain.images, labels, domain.groups, domain.split, domain.spacing)
    return _dataset({**schema, "pixels": [list(dataset.pixels.mean), list(dataset.pixels.std)]}, (renumbered,))


def _names(task: Task) -> tuple[str, ...]:
    assert isinstance(task, Classification | Segmentation)
    return task.classes if isinstance(task, Classification) else task.structures


def _dataset(schema: Schema, domains: tuple[Domain, ...]) -> DomainDataset:
    kinds = {"classification": Classification, "segmentation": Segmentation}
    task: Task = kinds[schema["task"]](tuple(schema["classes"]))
    mean, std = schema["pixels"]
    pixels = Pixels(tuple(mean), tuple(std))
    return DomainDataset(schema["name"], task, domains, pixels=pixels, network=schema["network"], augment=schema["augment"])


def _stand_in(name: str, n: int, schema: Schema) -> Domain:
    """Of the right shape, without memory behind it."""
    height, width = schema["size"]
    images: NDArray[np.uint8] = np.broadcast_to(np.uint8(0), (n, schema["channels"], height, width))
    if schema["task"] == "classification":
        return Domain(name, images, np.broadcast_to(np.int64(0), (n,)))
    return Domain(name, images, np.broadcast_to(np.uint8(0), (n, len(schema["classes"]), height, width)))


def _stand_in_holding(domain: Domain, counts: Counts) -> Holding:
    """Its numbers are all the same one: a site may tell any count, and it must cost the server nothing."""
    train, validation = (np.broadcast_to(np.int64(0), (n,)) for n in counts)
    return Holding(domain.name, domain.name, Samples(((domain, train),)), Samples(((domain, validation),)))
