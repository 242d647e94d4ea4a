"""SAM on a quadratic whose two gradients can be written down."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from unseen.ops.sharpness import ascent, sam_step
from unseen.parts.local import Local
from unseen.parts.sam import SAM


class Quadratic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor([3.0, -1.0], dtype=torch.float64))
        self.b = nn.Parameter(torch.tensor([[2.0]], dtype=torch.float64))

    def forward(self) -> torch.Tensor:
        """(4 a_1^2 + a_2^2 + 6 b^2) / 2: the gradient is (4 a_1, a_2, 6 b)."""
        return (4 * self.a[0] ** 2 + self.a[1] ** 2 + 6 * self.b[0, 0] ** 2) / 2


def test_a_step_on_a_quadratic_by_hand() -> None:
    net = Quadratic()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    w, curvature = np.array([3.0, -1.0, 2.0]), np.array([4.0, 1.0, 6.0])
    for _ in range(3):
        gradient = curvature * w
        climbed = w + 0.5 * gradient / np.linalg.norm(gradient)
        w = w - 0.1 * curvature * climbed
        sam_step(net, optimizer, net, 0.5)
    assert np.allclose([*net.a.tolist(), net.b.item()], w, atol=1e-12)


def test_the_first_step_in_numbers() -> None:
    """w = (3, -1, 2): g = (12, -1, 12), |g| = 17, climbed = w + 17/17 g rho with rho = 17: (15, -2, 14)."""
    net = Quadratic()
    sam_step(net, torch.optim.SGD(net.parameters(), lr=1.0), net, 17.0)
    assert net.a.tolist() == pytest.approx([3 - 4 * 15, -1 + 2]) and net.b.item() == pytest.approx(2 - 6 * 14)


def test_a_vanishing_gradient_has_no_direction() -> None:
    assert ascent([torch.zeros(3)], 0.1)[0].tolist() == [0.0, 0.0, 0.0]


def test_weights_come_back_to_the_bit_before_the_descent() -> None:
    net = Quadratic().float()
    before = [p.detach().clone() for p in net.parameters()]
    sam_step(net, torch.optim.SGD(net.parameters(), lr=0.0), net, 0.123)
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))


def test_statistics_are_taken_once_and_at_the_weights() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    x = torch.randn(5, 2)
    hidden = net[0](x).detach()
    sam_step(net, torch.optim.SGD(net.parameters(), lr=0.1), lambda: net(x).square().mean(), 0.5)
    assert torch.allclose(net[1].running_mean, 0.1 * hidden.mean(0), atol=1e-6) and net[1].num_batches_tracked == 1
    assert net[1].track_running_stats


def test_descending_without_the_part_is_a_plain_step() -> None:
    net = Quadratic()
    Local().descend(net, torch.optim.SGD(net.parameters(), lr=0.1), net)
    assert net.a.tolist() == pytest.approx([3 - 1.2, -1 + 0.1])
    Local(sam=SAM(rho=0.0)).descend(net, torch.optim.SGD(net.parameters(), lr=0.1), net)  # no climb: plain again
    assert net.a.tolist() == pytest.approx([1.8 * 0.6, -0.9 * 0.9])


def test_the_climb_counts_in_bf16_too() -> None:
    """Autocast keeps a copy of the weights from the first pass; the second must not read it."""

    def stepped(rho: float) -> torch.Tensor:
        torch.manual_seed(0)
        net, x = nn.Linear(8, 4), torch.randn(16, 8)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        with torch.autocast("cpu", torch.bfloat16):
            sam_step(net, optimizer, lambda: net(x).square().mean(), rho)
        return net.weight.detach()

    assert (stepped(1.0) - stepped(0.0)).abs().max() > 1e-3
