"""FedDAG's distances and its teacher, against numbers worked out by loops and by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unseen.ops.discrepancy import clipped_discrepancy, discrepancy, follow, perturb

rows = st.lists(st.lists(st.floats(-3, 3).filter(lambda v: abs(v) > 1e-3), min_size=3, max_size=3), min_size=1, max_size=4)


@given(rows, st.integers(0, 99), st.floats(0, 4))
def test_equations_1_and_4_by_a_loop(features: list[list[float]], seed: int, m: float) -> None:
    f = torch.tensor(features, dtype=torch.float64)
    f_hat = torch.randn(f.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = []
    for a, b in zip(f.tolist(), f_hat.tolist(), strict=True):
        norm_a, norm_b = math.sqrt(sum(v * v for v in a)), math.sqrt(sum(v * v for v in b))
        expected.append(sum((u / norm_a - v / norm_b) ** 2 for u, v in zip(a, b, strict=True)))
    assert discrepancy(f, f_hat).tolist() == pytest.approx(expected, abs=1e-9)
    assert clipped_discrepancy(f, f_hat, m).tolist() == pytest.approx([min(d, m) for d in expected], abs=1e-9)


def test_the_clip_is_per_instance_and_stops_the_gradient_there() -> None:
    f = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    f_hat = torch.tensor([[0.0, 1.0], [1.0, 0.1]], requires_grad=True)  # distances 2 and 0.00993
    loss = clipped_discrepancy(f, f_hat, m=0.1).mean()
    assert float(loss.detach()) == pytest.approx((0.1 + 2 - 2 / math.sqrt(1.01)) / 2, abs=1e-6)
    (gradient,) = torch.autograd.grad(loss, [f_hat])
    assert torch.equal(gradient[0], torch.zeros(2)) and gradient[1].abs().max() > 0.01


def test_equation_2_adds_the_perturbation_times_alpha() -> None:
    x, g = torch.tensor([[1.0, -2.0]]), torch.tensor([[0.5, 1.0]])
    assert perturb(x, g, 0.3).tolist() == [[pytest.approx(1.15), pytest.approx(-1.7)]]
    assert torch.equal(perturb(x, g, 0.0), x)


def normed(weight: float, mean: float, steps: int) -> nn.BatchNorm1d:
    norm = nn.BatchNorm1d(1)
    with torch.no_grad():
        norm.weight.fill_(weight)
        norm.running_mean.fill_(mean)  # type: ignore[union-attr, operator]
        norm.num_batches_tracked.fill_(steps)  # type: ignore[union-attr, operator]
    return norm


@pytest.mark.parametrize(("copy", "mean"), [(False, 0.9 * 4 + 0.1 * 8), (True, 8.0)])
def test_the_teacher_follows_by_hand(copy: bool, mean: float) -> None:
    teacher, student = normed(1.0, 4.0, 3), normed(2.0, 8.0, 7)
    follow(teacher, student, 0.9, copy_buffers=copy)
    assert float(teacher.weight.detach()) == pytest.approx(0.9 * 1 + 0.1 * 2)
    assert float(teacher.running_mean) == pytest.approx(mean)  # type: ignore[arg-type]
    assert int(teacher.num_batches_tracked) == 7  # type: ignore[arg-type]
    assert float(student.weight.detach()) == 2.0 and int(student.num_batches_tracked) == 7  # type: ignore[arg-type]
    follow(teacher, student, 0.9, copy_buffers=copy)
    assert float(teacher.weight.detach()) == pytest.approx(0.81 * 1 + 0.19 * 2)


def test_decay_0_copies_to_the_bit_and_decay_1_keeps() -> None:
    torch.manual_seed(0)
    teacher, student = nn.Linear(5, 5), nn.Linear(5, 5)
    before = teacher.weight.detach().clone()
    follow(teacher, student, 1.0)
    assert torch.equal(teacher.weight, before)
    follow(teacher, student, 0.0)
    assert torch.equal(teacher.weight, student.weight)
