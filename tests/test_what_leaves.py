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
from unseen.runs.watch import Silent
from unseen.training import train
from unseen.world import World

LEAVES = {
    "elcfs": {("spectra", "low"), ("train", "model"), ("train", "samples")},
    "elcfs-masks": {("spectra", "low"), ("train", "model"), ("train", "samples")},
    "elcfs-released": {("spectra", "low"), ("train", "model"), ("train", "samples")},
    "elcfs-sha": {("spectra", "low"), ("train", "model"), ("train", "perturbed"), ("assess", "losses")},
    "elcfs+sam": {("spectra", "low"), ("train", "model"), ("train", "samples")},
    "elcfs-no-interpolation": {("train", "model"), ("train", "samples")},
    "elcfs-no-episodes": {("spectra", "low"), ("train", "model"), ("train", "samples")},
    "fedadg": {("train", "model"), ("train", "generator")},
    "fedadg-released": {("train", "model"), ("train", "generator")},
    "fedadg-laplace": {("train", "model")},
    "fedadg-bare": {("train", "model"), ("train", "generator")},
    "fedadg-no-gd": {("train", "model")},
    "fedadg-mini-batches": {("train", "model"), ("train", "generator")},
    "fedavg": {("train", "model"), ("train", "samples")},
    "fedavg-masks": {("train", "model"), ("train", "samples")},
    "fedavg-cea": {("train", "model"), ("assess", "losses")},
    "fedavg-sha": {("train", "model"), ("train", "perturbed"), ("assess", "losses")},
    "fedavg-sha-masks": {("train", "model"), ("train", "perturbed"), ("assess", "losses")},
    "feddag": {("train", "teacher"), ("train", "generator"), ("train", "perturbed"), ("assess", "losses")},
    "feddag-no-ndag": {("train", "teacher"), ("train", "perturbed"), ("assess", "losses")},
    "feddag-no-sha": {("train", "teacher"), ("train", "generator"), ("train", "samples")},
    "feddag-global-student": {*(("train", f) for f in ("teacher", "generator", "perturbed", "student")), ("assess", "losses")},
    "feddag-sam": {("train", "teacher"), ("train", "generator"), ("assess", "losses")},
    "feddag-perturbations": {("train", "teacher"), ("train", "generator")},
    "feddag+rc+mixstyle+sam": {("train", "teacher"), ("train", "generator"), ("train", "samples")},
    "fedprox": {("train", "model"), ("train", "samples")},
    "feddyn": {("train", "parameters"), ("train", "buffers")},  # the weights, in two pieces
    "feddyn-masks": {("train", "parameters")},  # the U-Net has no buffers
    "feddyn+rc": {("train", "parameters"), ("train", "buffers")},
    "fedgca": {("train", "parameters"), ("train", "buffers")},
    "fedgca-kl": {("train", "parameters"), ("train", "buffers")},
    "fedgca-local": {("train", "parameters"), ("train", "buffers")},
    "fedgca+mixstyle+sam": {("train", "parameters"), ("train", "buffers")},
    "fedsam": {("train", "model")},
    "fedsam-masks": {("train", "model")},
    "fedavg+rc+mixstyle+sam": {("train", "model"), ("train", "samples")},
    "fedavg+rc+mixstyle+sam-masks": {("train", "model"), ("train", "samples")},
    "fedprox+rc": {("train", "model"), ("train", "samples")},
    "fedsb": {("train", "model")},
    "fedsb-released": {("train", "model")},
}


Rows = list[dict[str, Any]]


def sent(name: str, data: DomainDataset) -> tuple[Rows, World]:
    result = train(Experiment(SETTINGS[name].build(), data, "c", rounds=2), None, watch=Silent())
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


def allowed(field: str, world: World) -> int:
    """What one client may send of a field that does not grow, from the networks themselves."""
    net, part = world.builders["task"](), getattr(world.experiment.method, "aggregation", None)
    whole, trained = net.state_dict(), dict(net.named_parameters())
    if field in ("parameters", "buffers"):
        return bytes_of(value for key, value in whole.items() if (key in trained) == (field == "parameters"))
    if field == "perturbed":
        return bytes_of(whole.values(), double=part.float64)
    if field == "generator":
        return bytes_of(world.builders["generator"]().state_dict().values())
    if field == "losses":
        return 8 * (len(world.clients) - (not part.own))
    return 8 if field == "samples" else bytes_of(whole.values())  # a model, teacher or student


def doubled(data: DomainDataset) -> DomainDataset:
    def twice(domain: Domain) -> Domain:
        return replace(domain, images=np.concatenate([domain.images] * 2), labels=np.concatenate([domain.labels] * 2))

    return replace(data, domains=tuple(map(twice, data.domains)))


@pytest.mark.parametrize("name", SETTINGS)
def test_exactly_what_is_named_leaves(name: str, tiny: DomainDataset, tiny_masks: DomainDataset) -> None:
    data = tiny if SETTINGS[name].task == "classification" else tiny_masks
    (once, world), (twice, _) = sent(name, data), sent(name, doubled(data))
    assert set(weigh(once)) == LEAVES[name]
    for row in once:
        assert row["grows"] or row["bytes"] == allowed(row["field"], world), row
    more = weigh(twice)
    for field, size in weigh(once).items():
        grows = any(row["grows"] for row in once if (row["task"], row["field"]) == field)
        assert (more[field] != size) == grows, f"{field} {'should' if grows else 'must not'} grow with the data"
