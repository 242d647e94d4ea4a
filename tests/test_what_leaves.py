"""What leaves a client, method by method: exactly these fields, and only a declared one may grow with the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tiny_settings import SETTINGS
from unseen import Experiment
from unseen.data.domain import Domain, DomainDataset
from unseen.training import Silent, train

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
    "fedprox": {("train", "model"), ("train", "samples")},
    "feddyn": {("train", "parameters"), ("train", "buffers")},  # the weights, in two pieces
    "feddyn-masks": {("train", "parameters")},  # the U-Net has no buffers
    "feddyn+rc": {("train", "parameters"), ("train", "buffers")},
    "fedgca": {("train", "parameters"), ("train", "buffers")},
    "fedgca-kl": {("train", "parameters"), ("train", "buffers")},
    "fedgca-local": {("train", "parameters"), ("train", "buffers")},
    "fedsam": {("train", "model")},
    "fedsam-masks": {("train", "model")},
    "fedavg+rc+mixstyle+sam": {("train", "model"), ("train", "samples")},
    "fedavg+rc+mixstyle+sam-masks": {("train", "model"), ("train", "samples")},
    "fedprox+rc": {("train", "model"), ("train", "samples")},
    "fedsb": {("train", "model")},
    "fedsb-released": {("train", "model")},
}


def sent(name: str, data: DomainDataset) -> dict[tuple[str, str], tuple[int, bool]]:
    result = train(Experiment(SETTINGS[name].build(), data, "c", rounds=2), None, watch=Silent())
    rows = [row for record in result.records for row in record["travelled"] if row["direction"] == "sent"]
    return {(row["task"], row["field"]): (row["bytes"] * len(row["clients"]), row["grows"]) for row in rows}


def doubled(data: DomainDataset) -> DomainDataset:
    def twice(domain: Domain) -> Domain:
        return replace(domain, images=np.concatenate([domain.images] * 2), labels=np.concatenate([domain.labels] * 2))

    return replace(data, domains=tuple(map(twice, data.domains)))


@pytest.mark.parametrize("name", SETTINGS)
def test_exactly_what_is_named_leaves(name: str, tiny: DomainDataset, tiny_masks: DomainDataset) -> None:
    data = tiny if SETTINGS[name].task == "classification" else tiny_masks
    once, twice = sent(name, data), sent(name, doubled(data))
    assert set(once) == LEAVES[name]
    for field, (size, grows) in once.items():
        assert (twice[field][0] != size) == grows, f"{field} {'should' if grows else 'must not'} grow with the data"
