"""FACT's copies: the image first, one ratio and one partner for each copy of an image."""

from __future__ import annotations

import torch

from unseen import Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.ops.fourier import mix_amplitudes
from unseen.parts.views import FACT, views_of
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.task import Classification
from unseen.training import train


def rng() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_copies_are_the_images_with_amplitudes_mixed_as_drawn() -> None:
    x, drawn = torch.rand(5, 3, 8, 8), rng()
    made = views_of(FACT(copies=2, eta=0.6), x, rng())
    assert torch.equal(made[:5], x)
    for copy in (made[5:10], made[10:]):
        partner, lam = torch.randperm(5, generator=drawn), 0.6 * torch.rand(5, generator=drawn)
        assert torch.equal(copy, mix_amplitudes(x, partner, lam)) and not torch.allclose(copy, x)
    task, logits = Classification(tuple("ab")), torch.randn(10, 2)
    assert FACT().bond(task, logits, 5) == 0


def test_one_image_is_its_own_partner_and_without_a_ratio_nothing_changes(tiny_masks: DomainDataset) -> None:
    x = torch.rand(4, 3, 8, 8)
    assert torch.equal(views_of(FACT(), x[:1], rng()), x[:1].repeat(2, 1, 1, 1))
    assert torch.equal(views_of(FACT(eta=0.0), x, rng()), x.repeat(2, 1, 1, 1))
    plain, mixed = (
        train(Experiment(FedAvg(batch=4, lr=0.01, views=views), tiny_masks, "c", rounds=1), None, watch=Silent()).state
        for views in (None, FACT())
    )
    assert not same_bits(plain, mixed) and all(torch.isfinite(v).all() for v in mixed.values())
