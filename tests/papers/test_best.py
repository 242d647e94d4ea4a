"""The recommended recipe: it is FedAvg with its parts, to the bit, for classes and for masks."""

from __future__ import annotations

from typing import Any

import pytest

from cases import Case
from unseen import Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.methods.best import Best
from unseen.parts import PARTS
from unseen.parts.aggregation import Uniform
from unseen.parts.views import RandConv
from unseen.runs.watch import Silent
from unseen.settings import build
from unseen.state import State, same_bits
from unseen.training import Result, train

TINY = {
    "best": Case("best", {"lr": 0.02, "batch": 8}, leaves="train.model"),
    "best-masks": Case("best", {"lr": 0.02, "batch": 4}, task="segmentation", rounds=16, reaches=0.6, leaves="train.model"),
}


def trained(method: Any, data: DomainDataset) -> Result:
    return train(Experiment(method, data, "c", rounds=2), None, watch=Silent())


def test_without_its_ingredients_it_is_fedavg_with_the_plain_mean(tiny: DomainDataset) -> None:
    bare = trained(Best(lr=0.02, batch=8, restyling="none", smoothing=0.0), tiny)
    assert same_bits(bare.state, trained(FedAvg(lr=0.02, batch=8, aggregation=Uniform()), tiny).state)


def test_for_classes_it_is_fedavg_with_random_convolutions_and_smoothed_labels(tiny: DomainDataset) -> None:
    recipe = trained(Best(lr=0.02, batch=8, copies=2, smoothing=0.2, agreement=0.3), tiny)
    parts = {"lr": 0.02, "batch": 8, "views": RandConv(copies=2, weight=0.3), "aggregation": Uniform()}
    assert same_bits(recipe.state, trained(FedAvg(**parts, smoothing=0.2), tiny).state)
    assert not same_bits(recipe.state, trained(FedAvg(**parts), tiny).state)


def test_for_masks_it_is_fedavg_with_light_colour_and_amplitudes_and_nothing_is_smoothed(tiny_masks: DomainDataset) -> None:
    def with_copies(weight: float) -> State:
        gentle = RandConv(copies=1, weight=weight, styles="amplitudes, tones")
        return trained(FedAvg(lr=0.02, batch=4, views=gentle, aggregation=Uniform()), tiny_masks).state

    assert same_bits(trained(Best(lr=0.02, batch=4, copies=1), tiny_masks).state, with_copies(0.0))  # sure and empty masks agree too
    assert same_bits(trained(Best(lr=0.02, batch=4, copies=1, agreement=0.1), tiny_masks).state, with_copies(0.1))


@pytest.mark.parametrize("name", Best.variants)
def test_every_variant_can_be_built_and_differs(name: str) -> None:
    made = build(Best, Best.variants[name], PARTS)
    assert made not in [build(Best, values, PARTS) for other, values in Best.variants.items() if other != name]
