"""Parts as configuration: who takes which, what is refused, and what a seam does with none."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tiny_settings import SETTINGS
from unseen import BadInput, Experiment, FedAvg, FedSB
from unseen.data.domain import DomainDataset
from unseen.experiment import departures, read_experiment
from unseen.methods import METHODS
from unseen.parts import PARTS, parts_of
from unseen.parts.affine import Affine
from unseen.parts.jigen import JiGen
from unseen.parts.mixstyle import DSU, EFDMix, MixStyle
from unseen.parts.rsc import RSC
from unseen.parts.sam import SAM
from unseen.parts.views import FACT, RandConv, Restyled, predictions, repeat_labels, task_loss, views_of
from unseen.runs.watch import Silent
from unseen.settings import part
from unseen.state import State, same_bits
from unseen.task import Classification, Segmentation
from unseen.training import train
from unseen.world import build_world

# The parts of local training, by field.
LOCAL: dict[str, list[Any]] = {
    "affine": [Affine()],
    "views": [RandConv(copies=1, styles="randconv"), Restyled(styles="randconv"), FACT()],
    "mixstyle": [MixStyle(p=1.0), EFDMix(p=1.0), DSU(p=1.0)],
    "rsc": [RSC()],
    "jigen": [JiGen(beta=0.5)],
}


def test_parts_go_by_their_own_names() -> None:
    assert all(getattr(cls, "name", None) == name for name, cls in PARTS.items())
    assert part(RandConv()) == "randconv"


def test_which_method_takes_which_part() -> None:
    for name in ("fedavg", "fedprox", "fedsb", "feddyn"):
        takes = parts_of(METHODS[name])
        assert takes["views"] == ["randconv", "restyled", "fact", "augmix"] and takes["sam"] == ["sam"], name
        assert takes["mixstyle"] == ["mixstyle", "efdmix", "dsu"], name
        assert takes["rsc"] == ["rsc"] and takes["jigen"] == ["jigen"], name
    assert "sam" not in parts_of(METHODS["fedsam"]) and parts_of(METHODS["fedsam"])["views"] == ["randconv", "restyled", "fact", "augmix"]
    assert set(parts_of(METHODS["fedgca"])) == {"affine", "average", "schedule", "mixstyle", "sam"}  # its own views, its own server
    assert set(parts_of(METHODS["feddag"])) == {
        "aggregation",
        "server",
        "bound",
        "average",
        "schedule",
        "affine",
        "views",
        "mixstyle",
        "sam",
    }
    assert set(parts_of(METHODS["elcfs"])) == {"aggregation", "server", "bound", "average", "schedule", "affine", "sam"}
    assert set(parts_of(METHODS["fedadg"])) == {"aggregation", "server", "bound", "average", "schedule", "views"}
    takers = {name for name, cls in METHODS.items() if "aggregation" in parts_of(cls)}
    assert takers >= {"elcfs", "fedadg", "fedavg", "feddag", "fedprox", "fedsam", "fedsb"}
    for name in takers:
        assert parts_of(METHODS[name])["aggregation"] == ["mean", "uniform", "cea", "sha", "median", "trimmed", "ga", "omg", "gma"], name


@pytest.mark.parametrize("name", [name for name, cls in METHODS.items() if "sam" in parts_of(cls)])
def test_sharpness_aware_steps_act_in_every_method_and_without_a_climb_are_plain(name: str, few: DomainDataset) -> None:
    plain, flat, climbing = (
        train(Experiment(METHODS[name](**{**SETTINGS[name].values, "sam": sam}), few, "c", rounds=2), None, watch=Silent()).state
        for sam in (None, SAM(rho=0.0), SAM(rho=0.2))
    )
    assert same_bits(flat, plain) and not same_bits(climbing, plain)


@pytest.mark.parametrize("name", [name for name, cls in METHODS.items() if parts_of(cls).keys() & LOCAL.keys()])
def test_a_part_of_local_training_acts_in_every_method_that_takes_it(name: str, few: DomainDataset) -> None:
    """Each acts as what it is: a method that passed one part's draws to another would give the same twice."""
    case = SETTINGS[name]

    def trained(**parts: Any) -> State:
        method = METHODS[name](**{**case.values, **dict.fromkeys(LOCAL.keys() & parts_of(METHODS[name]).keys()), **parts})
        return train(Experiment(method, few, "c", rounds=1, partition=case.partition), None, watch=Silent()).state

    plain = trained()
    changed = {str(part): trained(**{field: part}) for field, given in LOCAL.items() if field in parts_of(METHODS[name]) for part in given}
    states = {"plain": plain, **{part: {key: state[key] for key in plain} for part, state in changed.items()}}
    assert not [pair for pair in itertools.combinations(states, 2) if same_bits(states[pair[0]], states[pair[1]])]


def test_an_impossible_pair_is_refused() -> None:
    with pytest.raises(BadInput, match=r"fedsam has no field 'sam'"):
        read_experiment({"method": "fedsam", "set": {"sam": "sam"}})
    for name in ("elcfs", "fedadg", "feddag", "fedgca"):  # their losses are not `Local.loss`
        for field in ("rsc", "jigen"):
            with pytest.raises(BadInput, match=f"{name} has no field '{field}'"):
                read_experiment({"method": name, "set": {field: field}})
    with pytest.raises(BadInput, match=r"views is 'sam'; there are: augmix, fact, randconv, restyled"):
        read_experiment({"method": "fedavg", "set": {"views": "sam"}})
    with pytest.raises(BadInput, match=r"styles holds 'blur'"):
        read_experiment({"method": "fedavg", "set": {"views": {"name": "randconv", "styles": "blur"}}})


def test_parts_from_plain_values() -> None:
    values = {"views": {"name": "randconv", "copies": 2, "weight": 8.0}, "mixstyle": "mixstyle", "sam": {"name": "sam", "rho": 0.1}}
    method: Any = read_experiment({"method": "fedavg", "set": values}).method
    assert method == FedAvg(views=RandConv(copies=2, weight=8.0), mixstyle=MixStyle(p=0.5, alpha=0.1), sam=SAM(rho=0.1))


def test_fedsb_as_released_mixes_styles(tiny: DomainDataset) -> None:
    released = read_experiment({"method": "fedsb", "preset": "released"})
    assert released.method.mixstyle == MixStyle(p=0.5, alpha=0.1, stages=2) and released.augment == "fedsb-released"  # type: ignore[attr-defined]
    assert read_experiment({"method": "fedsb", "preset": "paper"}).augment == "domainbed"
    assert {"mixstyle", "augment", "budget", "lr", "smoothing", "resample"} <= set(departures(released, tiny))


def test_a_network_without_stages_cannot_mix_styles(tiny: DomainDataset) -> None:
    with pytest.raises(BadInput, match="mixstyle acts after 4 stages of the network, and SmallCNN names 3"):
        build_world(Experiment(FedSB(mixstyle=MixStyle(stages=4)), tiny, "c"))


def test_smoothing_masks_is_refused(tiny_masks: DomainDataset) -> None:
    with pytest.raises(BadInput, match="classification only"):
        build_world(Experiment(FedAvg(smoothing=0.1), tiny_masks, "c"))


def test_seams_without_parts_do_nothing() -> None:
    x, generator = torch.randn(3, 3, 4, 4), torch.Generator()
    before = generator.get_state()
    assert views_of(None, x, generator) is x and torch.equal(generator.get_state(), before)
    logits, y = torch.randn(3, 4), torch.tensor([0, 3, 1])
    assert torch.equal(task_loss(Classification(tuple("abcd")), logits, y), F.cross_entropy(logits, y))


def test_the_loss_of_views_is_cross_entropy_over_all_and_their_bond() -> None:
    task, y = Classification(tuple("abc")), torch.tensor([2, 0])
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    got = task_loss(task, logits, y, RandConv(copies=2, weight=0.7), smoothing=0.2)
    views = logits.softmax(1).view(3, 2, 3)
    bond = sum(F.binary_cross_entropy(views.mean(0), view) for view in views)
    want = F.cross_entropy(logits, torch.tensor([2, 0, 2, 0, 2, 0]), label_smoothing=0.2) + 0.7 * bond
    assert float(got) == pytest.approx(float(want), rel=1e-5)


def test_masks_are_repeated_and_compared_pixel_by_pixel() -> None:
    task, masks = Segmentation(("disc",)), torch.randint(0, 2, (2, 1, 4, 4))
    logits = torch.randn(4, 1, 4, 4)
    assert torch.equal(repeat_labels(masks, 4), torch.cat([masks, masks]))
    p = predictions(task, logits)
    assert p.shape == (4, 1, 4, 4, 2) and torch.allclose(p.sum(-1), torch.ones(4, 1, 4, 4))
    views = logits.sigmoid().view(2, 2, 1, 4, 4)
    bond = sum(F.binary_cross_entropy(views.mean(0), view) for view in views)
    want = task.loss(logits, torch.cat([masks, masks])) + 0.5 * bond
    assert float(task_loss(task, logits, masks, RandConv(copies=1, weight=0.5))) == pytest.approx(float(want), rel=1e-5)
