"""What leaves a client, method by method: exactly these fields, to the byte, and only a declared one may grow with the data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from tiny_settings import SETTINGS
from unseen import Experiment
from unseen.data.domain import Domain, DomainDataset
from unseen.method import task_types
from unseen.payload import declarations
from unseen.runs.watch import Silent
from unseen.training import train
from unseen.world import World

Rows = list[dict[str, Any]]


def sent(name: str, data: DomainDataset) -> tuple[Rows, World]:
    result = train(Experiment(SETTINGS[name].build(), data, "c", rounds=2, partition=SETTINGS[name].partition), None, watch=Silent())
    return [row for record in result.records for row in record["travelled"] if row["direction"] == "sent"], result.world


def weigh(rows: Rows) -> dict[tuple[str, str], int]:
    """Bytes of a field over both rounds and all clients."""
    total: dict[tuple[str, str], int] = {}
    for row in rows:
        key = row["task"], row["field"]
        total[key] = total.get(key, 0) + row["bytes"] * len(row["clients"])
    return total


def bytes_of(tensors: Iterable[Tensor], double: bool = False) -> int:
    return sum(t.numel() * (8 if double and t.is_floating_point() else t.element_size()) for t in tensors)


def allowed(row: dict[str, Any], world: World) -> int:
    """What one client may send of a field that does not grow: as its declaration says, from the networks themselves."""
    method = world.experiment.method
    aggregation = getattr(method, "aggregation", None)
    task = getattr(method, row["task"], None) or getattr(aggregation, row["task"])
    told = declarations(task_types(task)[1])[row["field"]]
    if told.kind == "score":
        if row["task"] == "compare":
            return 8 * 2  # ga: of the mean, and of the client's own model
        return 8 * (len(world.clients) - (not aggregation.own))  # a number for each model that a client assesses
    if told.kind == "statistic":
        return int(row["bytes"])  # of a size that its method chooses; that it does not grow with the data is looked at below
    if told.kind in ("count", "number"):
        return 8
    state, names = world.builders[told.role]().state_dict(), world.entries(told.role).names(told.part)
    return bytes_of((state[name] for name in names), double=row["field"] == "perturbed" and aggregation.float64)


def doubled(data: DomainDataset) -> DomainDataset:
    def twice(domain: Domain) -> Domain:
        return replace(domain, images=np.concatenate([domain.images] * 2), labels=np.concatenate([domain.labels] * 2))

    return replace(data, domains=tuple(map(twice, data.domains)))


@pytest.mark.parametrize("name", SETTINGS)
def test_exactly_what_is_named_leaves(name: str, few: DomainDataset, few_masks: DomainDataset) -> None:
    data = few if SETTINGS[name].task == "classification" else few_masks
    (once, world), (twice, _) = sent(name, data), sent(name, doubled(data))
    assert {f"{task}.{field}" for task, field in weigh(once)} == set(SETTINGS[name].leaves.split())
    for row in once:
        assert row["grows"] or row["bytes"] == allowed(row, world), row
    more = weigh(twice)
    for field, size in weigh(once).items():
        grows = any(row["grows"] for row in once if (row["task"], row["field"]) == field)
        assert (more[field] != size) == grows, f"{field} {'should' if grows else 'must not'} grow with the data"
