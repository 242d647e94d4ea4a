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
    "fedavg": {("train", "model"), ("train", "samples")},
    "fedavg-masks": {("train", "model"), ("train", "samples")},
    "fedprox": {("train", "model"), ("train", "samples")},
    "fedsb": {("train", "model")},
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
