"""The recommended recipe: it is FedAvg with its parts, to the bit, for classes and for masks."""

from __future__ import annotations

from typing import Any

import pytest

from cases import Case
from unseen import Experiment, FedAvg, training
from unseen.data.domain import DomainDataset
from unseen.errors import BadInput
from unseen.experiment import departures, read_experiment
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


OFF = {"affine": None, "average": None}
TEXTURES, GENTLE = "randconv, repeated, mixing, texture", "amplitudes, tones"


def trained(method: Any, data: DomainDataset, **settings: Any) -> Result:
    return train(Experiment(method, data, "c", rounds=2, **settings), None, watch=Silent())


def test_without_its_ingredients_it_is_fedavg_with_the_plain_mean(tiny: DomainDataset) -> None:
    bare = trained(Best(lr=0.02, batch=8, visits=1, restyling="none", smoothing=0.0, **OFF), tiny)
    assert same_bits(bare.state, trained(FedAvg(lr=0.02, batch=8, aggregation=Uniform()), tiny).state)


def test_for_classes_it_is_fedavg_with_these_parts(tiny: DomainDataset) -> None:
    recipe = trained(Best(lr=0.02, batch=8, visits=2, share=0.7, kinds=2, smoothing=0.2), tiny)
    views = Restyled(share=0.7, kinds=2, styles=TEXTURES)
    parts = {"epochs": 2.0, "smoothing": 0.2, "affine": Affine(), "views": views, "average": Polynomial()}
    assert same_bits(recipe.state, trained(FedAvg(lr=0.02, batch=8, aggregation=Uniform(), **parts), tiny).state)
    for left_out in parts:
        plain = {"epochs": 1.0, "smoothing": 0.0}.get(left_out)
        without = FedAvg(lr=0.02, batch=8, aggregation=Uniform(), **{**parts, left_out: plain})
        assert not same_bits(recipe.state, trained(without, tiny).state), left_out


@pytest.mark.parametrize(
    "asked", [{}, {"affine": None}, {"affine": Affine(degrees=5.0)}, {"mixstyle": MixStyle()}, {"average": Polynomial()}]
)
def test_for_masks_it_is_fedavg_with_light_colour_amplitudes_and_moves_and_what_is_asked_for(
    asked: dict[str, Any], tiny_masks: DomainDataset
) -> None:
    parts = {"affine": Affine(), "views": Restyled(styles=GENTLE), **asked}
    plain = FedAvg(lr=0.02, batch=4, steps=6, aggregation=Uniform(), **parts)
    assert same_bits(trained(Best(lr=0.02, batch=4, visits=3, steps=2, **asked), tiny_masks).state, trained(plain, tiny_masks).state)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_what_a_restyled_image_may_look_like(task: str) -> None:
    for restyling, styles in {"textures": TEXTURES, "gentle": GENTLE, "all": f"{TEXTURES}, {GENTLE}"}.items():
        method: Any = build(Best, {"restyling": restyling}, PARTS)
        assert method.local_training(task).views == Restyled(styles=styles), restyling
    assert Best(restyling="none").local_training(task).views is None


def test_what_compiling_may_win_is_reckoned_over_all_visits(tiny: DomainDataset) -> None:
    steps = [
        work.steps
        for method in (FedAvg(batch=1), Best(batch=1), FedAvg(steps=3), Best(visits=2, steps=3))
        if (work := training._work(build_world(Experiment(method, tiny, "c", rounds=2))))
    ]
    assert steps[1] == 4 * steps[0] and steps[3] == 2 * steps[2]


def test_what_the_recipe_leaves_to_the_task_is_written_down_and_read_again() -> None:
    assert values_of(Best())["average"] == "auto" and build(Best, values_of(Best()), PARTS) == Best()
    assert build(Best, {"average": "none"}, PARTS) == Best(average=None)
    for make in (lambda: build(Best, {"average": "atuo"}, PARTS), lambda: Best(average="atuo")):  # type: ignore[arg-type]
        with pytest.raises(BadInput, match="average is 'atuo'; did you mean 'auto'"):
            make()


def test_none_is_a_word_of_its_restyling_on_a_command_line_too() -> None:
    assert Best(restyling=None) == Best(restyling="none")  # type: ignore[arg-type]


def test_what_would_do_nothing_is_refused(tiny_masks: DomainDataset) -> None:
    with pytest.raises(BadInput, match=r"share is 0\.2, but with restyling = none nothing is restyled"):
        Best(restyling="none", share=0.2)
    with pytest.raises(BadInput, match=r"smoothing is 0\.3, but labels are smoothed in classification only"):
        trained(Best(smoothing=0.3), tiny_masks)


def test_no_paper_has_it_so_it_has_no_preset_and_departs_from_none(tiny: DomainDataset) -> None:
    with pytest.raises(BadInput, match=r"^best has no preset 'paper', nor any other$"):
        read_experiment({"method": "best", "preset": "paper"})
    assert departures(Experiment(Best(visits=2), tiny, "c"), tiny) == {}


@pytest.mark.parametrize("name", Best.variants)
def test_every_variant_can_be_built_and_differs(name: str) -> None:
    made = build(Best, Best.variants[name], PARTS)
    assert made not in [build(Best, values, PARTS) for other, values in Best.variants.items() if other != name]
