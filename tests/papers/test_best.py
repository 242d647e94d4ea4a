"""The recommended recipe: it is FedAvg with its parts, to the bit, for classes and for masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cases import Case
from unseen import Experiment, FedAvg, training
from unseen.data.domain import DomainDataset
from unseen.errors import BadInput
from unseen.methods.best import Best
from unseen.parts import PARTS
from unseen.parts.affine import Affine
from unseen.parts.aggregation import Uniform
from unseen.parts.mixstyle import MixStyle
from unseen.parts.round_averages import Polynomial
from unseen.parts.views import Restyled
from unseen.runs.watch import Silent
from unseen.settings import build, values_of
from unseen.state import same_bits
from unseen.training import Result, train
from unseen.world import build_world

TINY = {
    "best": Case("best", {"lr": 0.02, "batch": 8}, leaves="train.model"),
    "best-masks": Case("best", {"lr": 0.02, "batch": 4}, task="segmentation", rounds=16, reaches=0.6, leaves="train.model"),
}


OFF = {"affine": None, "mixstyle": None, "average": None}
MOVES = Affine(degrees=10.0, zoom=1.1, shift=0.05)
TEXTURES, GENTLE = "randconv, repeated, mixing, texture", "amplitudes, tones"


def trained(method: Any, data: DomainDataset, **settings: Any) -> Result:
    return train(Experiment(method, data, "c", rounds=2, **settings), None, watch=Silent())


def test_without_its_ingredients_it_is_fedavg_with_the_plain_mean(tiny: DomainDataset) -> None:
    bare = trained(Best(lr=0.02, batch=8, visits=1, restyling="none", smoothing=0.0, **OFF), tiny)
    assert same_bits(bare.state, trained(FedAvg(lr=0.02, batch=8, aggregation=Uniform()), tiny).state)


def test_for_classes_it_is_fedavg_with_these_parts(tiny: DomainDataset) -> None:
    recipe = trained(Best(lr=0.02, batch=8, visits=2, share=0.7, kinds=2, smoothing=0.2), tiny)
    views = Restyled(share=0.7, kinds=2, styles=TEXTURES)
    parts = {"epochs": 2.0, "smoothing": 0.2, "affine": MOVES, "views": views, "mixstyle": MixStyle(), "average": Polynomial()}
    assert same_bits(recipe.state, trained(FedAvg(lr=0.02, batch=8, aggregation=Uniform(), **parts), tiny).state)
    for left_out in parts:
        plain = {"epochs": 1.0, "smoothing": 0.0}.get(left_out)
        without = FedAvg(lr=0.02, batch=8, aggregation=Uniform(), **{**parts, left_out: plain})
        assert not same_bits(recipe.state, trained(without, tiny).state), left_out


@pytest.mark.parametrize("asked", [{}, {"affine": MOVES}, {"mixstyle": MixStyle()}, {"average": Polynomial()}])
def test_for_masks_it_is_fedavg_with_light_colour_and_amplitudes_and_what_is_asked_for(
    asked: dict[str, Any], tiny_masks: DomainDataset
) -> None:
    plain = FedAvg(lr=0.02, batch=4, steps=6, aggregation=Uniform(), views=Restyled(styles=GENTLE), **asked)
    assert same_bits(trained(Best(lr=0.02, batch=4, visits=3, steps=2, **asked), tiny_masks).state, trained(plain, tiny_masks).state)


def test_what_compiling_may_win_is_reckoned_over_all_visits(tiny: DomainDataset) -> None:
    steps = [
        work.steps
        for method in (FedAvg(batch=1), Best(batch=1), FedAvg(steps=3), Best(visits=2, steps=3))
        if (work := training._work(build_world(Experiment(method, tiny, "c", rounds=2))))
    ]
    assert steps[1] == 4 * steps[0] and steps[3] == 2 * steps[2]


def test_a_network_that_names_no_stages_mixes_no_styles_unless_it_was_asked_to(tiny: DomainDataset) -> None:
    own = f"{Path(__file__).parents[1] / 'own_code_for_tests.py'}:Tiny"
    by_itself, without = (trained(Best(lr=0.02, batch=8, **given), tiny, network=own).state for given in ({}, {"mixstyle": None}))
    assert same_bits(by_itself, without)
    with pytest.raises(BadInput, match="mixstyle acts after 2 stages of the network, and OwnNet names 0"):
        trained(Best(mixstyle=MixStyle()), tiny, network=own)


@pytest.mark.parametrize("word", ["affine", "mixstyle", "average"])
def test_what_a_recipe_leaves_to_the_task_is_written_down_and_read_again(word: str) -> None:
    assert values_of(Best())[word] == "auto" and build(Best, values_of(Best()), PARTS) == Best()
    assert build(Best, {word: "none"}, PARTS) == Best(**{word: None})
    for make in (lambda: build(Best, {word: "atuo"}, PARTS), lambda: Best(**{word: "atuo"})):
        with pytest.raises(BadInput, match=f"{word} is 'atuo'; did you mean 'auto'"):
            make()


@pytest.mark.parametrize("name", Best.variants)
def test_every_variant_can_be_built_and_differs(name: str) -> None:
    made = build(Best, Best.variants[name], PARTS)
    assert made not in [build(Best, values, PARTS) for other, values in Best.variants.items() if other != name]
