"""FedGCA's Eq. 2 and Eq. 3 against loops over views, samples and classes."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unseen.ops.consistency import by_view, map_consistency, mean_of_views, prediction_consistency


def distributions(views: int, n: int, classes: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(views, n, classes, generator=generator, dtype=torch.float64).softmax(-1)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(2, 5), st.integers(0, 99), st.booleans(), st.sampled_from(["mean", "sum"]))
def test_equation_2_as_printed(views: int, n: int, classes: int, seed: int, guided: bool, over: str) -> None:
    local, guide = distributions(views, n, classes, seed), distributions(views, n, classes, seed + 100)
    total = 0.0
    for j in range(views):
        for i in range(n):
            for c in range(classes):
                everyone = [float(local[k, i, c]) for k in range(views)] + [float(guide[k, i, c]) for k in range(views) if guided]
                p, mean = float(local[j, i, c]), sum(everyone) / len(everyone)
                total -= (p * math.log(mean) + (1 - p) * math.log(1 - mean)) / n / (classes if over == "mean" else 1)
    average = mean_of_views(local, guide if guided else None)
    assert float(prediction_consistency(local, average, "bce", over)) == pytest.approx(total)  # type: ignore[arg-type]


def test_bce_is_torchs_with_the_mean_as_input() -> None:
    local = distributions(3, 4, 5, 0)
    average = mean_of_views(local)
    want = sum(torch.nn.functional.binary_cross_entropy(average, p) for p in local)
    assert float(prediction_consistency(local, average)) == pytest.approx(float(want))


@given(st.integers(1, 4), st.integers(1, 3), st.integers(2, 6), st.integers(0, 99))
def test_equation_3_and_the_kl_form(views: int, n: int, positions: int, seed: int) -> None:
    local, guide = distributions(views, n, positions, seed), distributions(views, n, positions, seed + 100)
    total = 0.0
    for i in range(n):
        mean = [float(torch.cat([local, guide])[:, i, x].mean()) for x in range(positions)]
        for j in range(views):
            total += sum(float(local[j, i, x]) * math.log(float(local[j, i, x]) / mean[x]) for x in range(positions)) / n
    average = mean_of_views(local, guide)
    assert float(map_consistency(local, average)) == pytest.approx(total)
    assert float(prediction_consistency(local, average, "kl")) == pytest.approx(total)


@pytest.mark.parametrize("stop", [False, True])
def test_where_all_agree_kl_has_no_gradient_and_bce_has(stop: bool) -> None:
    logits = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    same = logits.expand(2, 3, 4).clone().requires_grad_()
    guide = same.detach().softmax(-1)

    def gradient(form: str) -> Tensor:
        local = same.softmax(-1)
        average = mean_of_views(local, guide, stop=stop)
        loss = map_consistency(local, average) if form == "maps" else prediction_consistency(local, average, form)  # type: ignore[arg-type]
        return torch.autograd.grad(loss, same)[0]

    assert gradient("kl").abs().max() < 1e-12 and gradient("maps").abs().max() < 1e-12
    assert gradient("bce").abs().max() > 1e-3


def test_the_gradient_flows_through_the_mean_unless_stopped() -> None:
    logits = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    guide = distributions(2, 3, 4, 5).requires_grad_()

    def loss(z: Tensor, stop: bool) -> Tensor:
        local = z.softmax(-1)
        return prediction_consistency(local, mean_of_views(local, guide, stop=stop))

    flowing, stopped = (torch.autograd.grad(loss(logits, stop), logits)[0] for stop in (False, True))
    assert torch.autograd.gradcheck(lambda z: loss(z, False), (logits,))
    fixed = mean_of_views(logits.softmax(-1), guide).detach()
    want = torch.autograd.grad(prediction_consistency(logits.softmax(-1), fixed), logits)[0]
    assert torch.allclose(stopped, want) and not torch.allclose(flowing, want)
    loss(logits, False).backward()
    assert guide.grad is None  # the global model is never trained here


def test_certain_predictions_stay_finite() -> None:
    certain = torch.tensor([[[100.0, -100.0]], [[-100.0, 100.0]]], requires_grad=True)
    local = certain.softmax(-1)
    for form in ("bce", "kl"):
        loss = prediction_consistency(local, mean_of_views(local[:1]), form)  # type: ignore[arg-type]
        (grad,) = torch.autograd.grad(loss, certain, retain_graph=True)
        assert torch.isfinite(loss) and torch.isfinite(grad).all()


def test_rows_of_views() -> None:
    assert by_view(torch.arange(6), 2).tolist() == [[0, 1], [2, 3], [4, 5]]
