"""Images in another style in place of themselves: how many, in how many styles, and that a method takes them."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from unseen import Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.errors import BadInput
from unseen.parts import views
from unseen.parts.views import Restyled, views_of
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.task import Classification
from unseen.training import train


def rng(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("share", "kinds"), [(0.5, 3), (0.75, 2), (1.0, 1)])
def test_each_image_is_restyled_with_its_share_and_has_one_of_the_kinds(share: float, kinds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(views, "restyled", lambda x, kind, _styles, _rng: seen.append(kind) or x)
    x, draws = torch.zeros(50, 3, 4, 4), rng()
    for _ in range(200):
        Restyled(share=share, kinds=kinds).views(x, draws)
    counts = Counter(torch.cat(seen).tolist())
    assert counts[0] / 10_000 == pytest.approx(1 - share, abs=0.02) and {*counts} <= {*range(kinds + 1)}
    assert all(counts[kind] / 10_000 == pytest.approx(share / kinds, abs=0.02) for kind in range(1, kinds + 1))


def test_it_draws_anew_for_each_batch_and_binds_nothing() -> None:
    x, draws = torch.randn(8, 3, 8, 8, generator=rng(1)), rng()
    one, other = (views_of(Restyled(), x, draws) for _ in range(2))
    assert one.shape == x.shape and not torch.equal(one, other)
    assert torch.equal(one, views_of(Restyled(), x, rng()))
    assert Restyled().bond(Classification(tuple("ab")), torch.randn(8, 2), 8) == 0
    assert torch.equal(views_of(Restyled(share=0.0), x, rng()), x)


def test_it_changes_a_training_and_a_share_of_none_does_not(tiny: DomainDataset) -> None:
    plain, still, changed = (
        train(Experiment(FedAvg(batch=4, lr=0.01, views=part), tiny, "c", rounds=1), None, watch=Silent()).state
        for part in (None, Restyled(share=0.0), Restyled())
    )
    assert same_bits(plain, still) and not same_bits(plain, changed)


def test_a_misspelled_style_is_told() -> None:
    with pytest.raises(BadInput, match="styles holds 'tone'; did you mean 'tones'"):
        FedAvg(views=Restyled(styles="tone"))
