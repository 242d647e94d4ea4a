"""Region features and contrastive losses against loops over pixels and pairs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unseen.ops.contrast import info_nce, masked_average, nt_xent, supervised_contrast

Loss = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b) / math.sqrt(float(a @ a) * float(b @ b))


def equation_7(features: list[Tensor], kinds: list[int], tau: float) -> float:
    """Eq. 6-7 as printed, over the 2K features of one image."""
    total, pairs = 0.0, math.comb(len(features) // 2, 2) * 2
    for m in range(len(features)):
        for p in range(m + 1, len(features)):
            if kinds[m] != kinds[p]:
                continue
            below = sum(math.exp(cosine(features[m], features[q]) / tau) for q in range(len(features)) if q != m and kinds[q] != kinds[m])
            total += -math.log(math.exp(cosine(features[m], features[p]) / tau) / below) / pairs
    return total


def whole_batch(features: list[Tensor], kinds: list[int], tau: float) -> float:
    """NT-Xent: every ordered positive pair against itself and the anchor's negatives."""
    losses = []
    for a in range(len(features)):
        negatives = sum(math.exp(cosine(features[a], h) / tau) for h, kind in zip(features, kinds, strict=True) if kind != kinds[a])
        for p in range(len(features)):
            if p != a and kinds[p] == kinds[a]:
                positive = math.exp(cosine(features[a], features[p]) / tau)
                losses.append(-math.log(positive / (positive + negatives)))
    return sum(losses) / len(losses)


@given(st.integers(2, 5), st.integers(1, 3), st.floats(0.05, 1), st.integers(0, 99))
def test_equations_6_and_7(versions: int, n: int, tau: float, seed: int) -> None:
    h = normal(2, versions, n, 6, seed=seed)
    kinds = [0] * versions + [1] * versions
    each = [equation_7([*h[0, :, i], *h[1, :, i]], kinds, tau) for i in range(n)]
    got = info_nce(h[0], h[1], torch.ones(n, dtype=torch.bool), tau)
    assert float(got) == pytest.approx(sum(each) / n, rel=1e-9, abs=1e-9)


def test_the_first_of_a_pair_is_the_anchor() -> None:
    """By hand. Anchors: (1, 0) with negatives (0, 1) and (-1, 0); (0, 1) with negatives (1, 0) and (0.6, 0.8)."""
    boundary = torch.tensor([[[1.0, 0.0]], [[0.6, 0.8]]], dtype=torch.float64)
    background = torch.tensor([[[0.0, 1.0]], [[-1.0, 0.0]]], dtype=torch.float64)
    one = -0.6 + math.log(math.exp(0) + math.exp(-1))
    two = -0.0 + math.log(math.exp(0) + math.exp(0.8))
    valid = torch.ones(1, dtype=torch.bool)
    assert float(info_nce(boundary, background, valid, 1.0)) == pytest.approx((one + two) / 2)
    assert float(info_nce(boundary.flip(0), background.flip(0), valid, 1.0)) != pytest.approx((one + two) / 2)


@given(st.integers(2, 4), st.integers(1, 3), st.floats(0.05, 1), st.integers(0, 99))
def test_the_released_form_over_the_whole_batch(versions: int, n: int, tau: float, seed: int) -> None:
    h = normal(2, versions, n, 6, seed=seed)
    kinds = [0] * (versions * n) + [1] * (versions * n)
    wanted = whole_batch([*h[0].flatten(0, 1), *h[1].flatten(0, 1)], kinds, tau)
    assert float(nt_xent(h[0], h[1], torch.ones(n, dtype=torch.bool), tau)) == pytest.approx(wanted, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("loss", [info_nce, nt_xent])
def test_an_image_that_is_not_valid_does_not_count(loss: Loss) -> None:
    h = normal(2, 3, 4, 6)
    h[:, :, 2] = 0
    h.requires_grad_()
    valid = torch.tensor([True, True, False, True])
    got = loss(h[0], h[1], valid, 0.05)
    kept = h[:, :, [0, 1, 3]]
    assert float(got.detach()) == pytest.approx(float(loss(kept[0], kept[1], torch.ones(3, dtype=torch.bool), 0.05).detach()))
    (gradient,) = torch.autograd.grad(got, h, create_graph=True)
    (second,) = torch.autograd.grad(gradient.square().sum(), h)
    assert torch.isfinite(second).all() and not gradient[:, :, 2].any()


@pytest.mark.parametrize("loss", [info_nce, nt_xent])
def test_without_any_valid_image_the_loss_is_0_and_so_is_its_gradient(loss: Loss) -> None:
    h = normal(2, 3, 4, 6).requires_grad_()
    got = loss(h[0], h[1], torch.zeros(4, dtype=torch.bool), 0.05)
    (gradient,) = torch.autograd.grad(got, h)
    assert float(got.detach()) == 0 and not gradient.any() and torch.isfinite(gradient).all()


def test_equation_5_by_enlarging_concatenating_and_counting_pixels() -> None:
    coarse, fine = normal(2, 3, 4, 3), normal(2, 2, 8, 6, seed=1)
    masks = (normal(2, 2, 8, 6, seed=2) > 0.5).to(torch.uint8)
    z = torch.cat([F.interpolate(coarse, size=(8, 6), mode="bilinear", align_corners=False), fine], 1)
    got = masked_average([coarse, fine], masks)
    assert got.shape == (2, 2, 5)
    for n in range(2):
        for s in range(2):
            inside = [(r, c) for r in range(8) for c in range(6) if masks[n, s, r, c]]
            wanted = sum(z[n, :, r, c] for r, c in inside) / len(inside)
            assert torch.allclose(got[n, s], torch.as_tensor(wanted), atol=1e-12)


def test_an_empty_mask_gives_zeros_and_sixteen_bits_are_summed_in_thirty_two() -> None:
    assert not masked_average([normal(1, 3, 4, 4)], torch.zeros(1, 1, 4, 4)).any()
    ones = torch.ones(1, 1, 100, 100, dtype=torch.bfloat16)  # counting in bfloat16 would stop at 256
    with torch.autocast("cpu", torch.bfloat16):
        assert masked_average([ones], torch.ones(1, 1, 100, 100)).item() == 1.0


@pytest.mark.parametrize("loss", [info_nce, nt_xent])
def test_similarities_are_not_rounded_to_sixteen_bits(loss: Loss) -> None:
    """Cosines near 1 would be off by up to 0.002, which a temperature of 0.05 makes 0.04."""
    h = (normal(2, 3, 4, 24).abs() + 2).float()
    valid = torch.ones(4, dtype=torch.bool)
    with torch.autocast("cpu", torch.bfloat16):
        got = loss(h[0], h[1], valid, 0.05)
    assert got.item() == pytest.approx(loss(h[0].double(), h[1].double(), valid, 0.05).item(), rel=1e-5)


def test_supervised_contrast_is_the_double_sum_of_its_equation():
    """Khosla et al., Eq. 2, one anchor and one positive at a time; a class with one row has no positive and does not count."""
    torch.manual_seed(0)
    features, labels, tau = torch.randn(7, 4, dtype=torch.float64), torch.tensor([0, 1, 0, 2, 1, 0, 3]), 0.3
    z = features / features.norm(dim=1, keepdim=True)
    losses = []
    for i in range(7):
        others = [a for a in range(7) if a != i]
        below = sum(math.exp(float(z[i] @ z[a]) / tau) for a in others)
        positives = [p for p in others if labels[p] == labels[i]]
        if positives:
            losses.append(-sum(math.log(math.exp(float(z[i] @ z[p]) / tau) / below) for p in positives) / len(positives))
    assert len(losses) == 5
    assert float(supervised_contrast(features, labels, tau)) == pytest.approx(sum(losses) / 5, rel=1e-9)


def test_supervised_contrast_draws_a_class_together_and_is_finite_without_positives():
    features = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    before = float(supervised_contrast(features, labels, 0.1).detach())
    supervised_contrast(features, labels, 0.1).backward()
    moved = (features - 0.05 * features.grad).detach()
    assert float(supervised_contrast(moved, labels, 0.1)) < before
    assert float(supervised_contrast(torch.zeros(3, 2), torch.tensor([0, 1, 2]), 0.1)) == 0


def test_features_in_16_bits_are_contrasted_in_32() -> None:
    features, labels = torch.randn(12, 16, generator=torch.Generator().manual_seed(0)).bfloat16(), torch.arange(12) % 3
    found = supervised_contrast(features, labels, 0.1)
    assert found.dtype is torch.float32 and torch.equal(found, supervised_contrast(features.float(), labels, 0.1))
