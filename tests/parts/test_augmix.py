"""AugMix as a part: its views, its consistency loss, and where it may act."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from unseen import BadInput, Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.experiment import read_experiment
from unseen.parts.augmix import AugMix
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.task import Classification
from unseen.training import train
from unseen.world import build_world


def test_the_batch_comes_first_and_each_copy_is_another() -> None:
    x = torch.rand(4, 3, 8, 8)
    made = AugMix(copies=3).views(x, torch.Generator().manual_seed(0)).view(4, 4, 3, 8, 8)
    assert torch.equal(made[0], x) and len({tuple(view.flatten().tolist()) for view in made}) == 4
    assert made.min() >= x.min() - 1e-6 and made.max() <= x.max() + 1e-6
    again = AugMix(copies=3).views(x, torch.Generator().manual_seed(0))
    assert torch.equal(made.flatten(0, 1), again)


def test_the_bond_is_the_jensen_shannon_divergence_of_the_views() -> None:
    task, logits = Classification(tuple("abc")), torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    views = logits.softmax(1).view(3, 2, 3)
    middle = Categorical(probs=views.mean(0))
    wanted = sum(kl_divergence(Categorical(probs=view), middle).mean() for view in views) / 3
    assert float(AugMix(weight=12.0).bond(task, logits, 2)) == pytest.approx(12 * float(wanted), rel=1e-5)
    assert float(AugMix().bond(task, logits[:2].repeat(3, 1), 2)) == pytest.approx(0, abs=1e-5)


def test_it_trains_by_name_and_masks_need_colours(tiny: DomainDataset, tiny_masks: DomainDataset) -> None:
    method = read_experiment({"method": "fedavg", "set": {"views": "augmix", "batch": 8, "lr": 0.02}}).method
    assert method.views == AugMix()  # type: ignore[attr-defined]
    one, two = (train(Experiment(method, tiny, "c", rounds=2), None, watch=Silent(), through_bytes=b).state for b in (False, True))
    assert same_bits(one, two)
    with pytest.raises(BadInput, match=r'masks would not follow; set operations = "colours"'):
        build_world(Experiment(FedAvg(views=AugMix()), tiny_masks, "c"))
    train(Experiment(FedAvg(batch=4, views=AugMix(operations="colours", copies=1)), tiny_masks, "c", rounds=1), None, watch=Silent())
