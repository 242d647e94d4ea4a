"""CSAC's discrepancy, attention and fusion against slow versions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from unseen.errors import NoReplies
from unseen.ops.alignment import fuse_by_divergence, kernel_discrepancy, layer_attention


def slow_discrepancy(one: Tensor, other: Tensor) -> float:
    rows, n = [*one.flatten(1), *other.flatten(1)], len(one)
    distance = [[float((a - b).square().sum()) for b in rows] for a in rows]
    usual = sum(map(sum, distance)) / (2 * n) ** 2
    total = 2 / (n - 1)
    for i in range(2 * n):
        for j in range(2 * n):
            kernel = sum(math.exp(-distance[i][j] / (2 * 3**k * usual)) for k in range(-3, 2))
            if (i < n) != (j < n):
                total -= kernel / n**2
            elif i != j:
                total += kernel / (n * (n - 1))
    return total


def test_the_discrepancy_is_the_sum_over_pairs_and_kernels() -> None:
    one, other = torch.randn(2, 5, 3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(kernel_discrepancy(one, other + 1)) == pytest.approx(slow_discrepancy(one, other + 1), rel=1e-9)
    assert float(kernel_discrepancy(one, 5 * other)) > float(kernel_discrepancy(one, other))


def test_of_a_batch_with_itself_it_is_its_constant() -> None:
    """The sums between count the diagonal, which is 5: 2 m / n - 10 / n + 2 / (n - 1), m being the mean within."""
    one = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    distance = torch.cdist(one, one).square()
    kernel = sum((-distance / (2 * 3.0**k * distance.mean())).exp() for k in range(-3, 2))
    assert isinstance(kernel, Tensor)
    m = float((kernel.sum() - kernel.trace()) / 12)
    assert float(kernel_discrepancy(one, one)) == pytest.approx(2 * m / 4 - 10 / 4 + 2 / 3, rel=1e-9)


def test_its_slope_leaves_the_bandwidth_out() -> None:
    """By differences, with the bandwidth held at that of the point."""
    other = torch.randn(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    one = torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(kernel_discrepancy(one, other), one)
    rows = torch.cat([one.detach(), other])
    usual = float(torch.cdist(rows, rows).square().mean())

    def at(moved: Tensor) -> float:
        rows = torch.cat([moved, other])
        distance = (rows[:, None] - rows[None]).square().sum(-1)
        kernel = sum((-distance / (2 * 3.0**k * usual)).exp() for k in range(-3, 2))
        assert isinstance(kernel, Tensor)
        within = sum((part.sum() - part.trace()) / 6 for part in (kernel[:3, :3], kernel[3:, 3:]))
        return float(within - 2 * kernel[:3, 3:].mean())

    for row in range(3):
        step = torch.zeros(3, 2, dtype=torch.float64)
        step[row, 1] = 1e-5
        assert float(slope[row, 1]) == pytest.approx((at(one.detach() + step) - at(one.detach() - step)) / 2e-5, rel=1e-5)


@pytest.mark.parametrize("bf16", [False, True])
def test_features_far_from_0_and_a_pass_in_16_bits_leave_it_its_digits(bf16: bool) -> None:
    """It takes a difference of squares, in which small distances between large features would drown."""
    one = 30 + 0.3 * torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
    other = (one + 0.1 * torch.randn(8, 5, generator=torch.Generator().manual_seed(1))).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = kernel_discrepancy(one, other)
        alpha = layer_attention([one.view(8, 5, 1, 1)], [other.view(8, 5, 1, 1)] * 2)
    exact = kernel_discrepancy(one.double(), other.double())
    assert float(found.detach()) == pytest.approx(float(exact.detach()), rel=1e-5) and alpha.dtype is torch.float32
    slopes = [torch.autograd.grad(loss, other)[0] for loss in (found, exact)]
    torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-5)


def test_attention_is_the_mean_energy_of_all_pairs_of_positions_and_of_channels() -> None:
    rng = torch.Generator().manual_seed(0)
    trained, fixed = ([torch.randn(4, 3, 2, 2, generator=rng) for _ in range(3)] for _ in range(2))
    rows = []
    for t in trained:
        energies = []
        for s in fixed:
            a, b = t.flatten(2), s.flatten(2)
            energies.append((torch.bmm(a.transpose(1, 2), b).mean(), torch.bmm(a, b.transpose(1, 2)).mean()))
        position, channel = (torch.stack(found).softmax(0) for found in zip(*energies, strict=True))
        rows.append((position + channel) / 2)
    torch.testing.assert_close(layer_attention(trained, fixed), torch.stack(rows))
    torch.testing.assert_close(layer_attention(trained, fixed).sum(1), torch.ones(3))


def test_fusion_tensor_by_tensor() -> None:
    """In `w` the means are (1, 1): b is there, so it weighs nothing; a and c are as far. In `v` c alone is off: 1/4, 1/4, 1/2."""
    states = {
        "a": {"w": torch.tensor([0.0, 1.0]), "v": torch.tensor(0.0), "same": torch.tensor([5.0]), "seen": torch.tensor(3)},
        "b": {"w": torch.tensor([1.0, 1.0]), "v": torch.tensor(0.0), "same": torch.tensor([5.0]), "seen": torch.tensor(9)},
        "c": {"w": torch.tensor([2.0, 1.0]), "v": torch.tensor(6.0), "same": torch.tensor([5.0]), "seen": torch.tensor(4)},
    }
    fused = fuse_by_divergence(states)
    assert fused["w"].tolist() == [1, 1] and float(fused["v"]) == 3 and fused["same"].tolist() == [5] and int(fused["seen"]) == 9
    changed = {**states, "b": {**states["b"], "w": torch.tensor([1.0, 4.0])}}  # means (1, 2): d = sqrt 2, 2, sqrt 2
    d = torch.tensor([2**0.5, 2.0, 2**0.5])
    expected = (d[:, None] * torch.tensor([[0.0, 1.0], [1.0, 4.0], [2.0, 1.0]])).sum(0) / d.sum()
    torch.testing.assert_close(fuse_by_divergence(changed)["w"], expected)
    two = {name: states[name] for name in ("a", "c")}
    assert float(fuse_by_divergence(two)["v"]) == 3, "of two, the plain mean"
    with pytest.raises(NoReplies, match="nothing to fuse"):
        fuse_by_divergence({})
