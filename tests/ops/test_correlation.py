"""FCCL's cross-correlation and distillation against other ways to the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unseen.ops.correlation import correlation_loss, cross_correlation, divergence_from


def drawn(seed: int, rows: int = 9, classes: int = 4) -> torch.Tensor:
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed))


def test_it_is_pearsons_correlation_of_every_pair_of_classes() -> None:
    own, average = drawn(0), drawn(1)
    wanted = np.corrcoef(own.numpy(), average.numpy(), rowvar=False)[:4, 4:] * 8 / 9  # unbiased deviations, and a sum over B
    torch.testing.assert_close(cross_correlation(own, average), torch.from_numpy(wanted).float(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(cross_correlation(own, average), cross_correlation(7 * own + 3, average), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(cross_correlation(own, own).diagonal(), torch.full((4,), 8 / 9))


def test_the_loss_entry_by_entry() -> None:
    own, average = drawn(0), drawn(1)
    c = cross_correlation(own, average).tolist()
    same = sum((c[i][i] - 1) ** 2 for i in range(4))
    others = sum((c[i][j] + 1) ** 2 for i in range(4) for j in range(4) if i != j)
    assert float(correlation_loss(own, average, 0.3)) == pytest.approx(same + 0.3 * others, rel=1e-5)


def test_a_logit_that_is_the_same_for_all_images_gives_no_nonsense() -> None:
    own = drawn(0).index_fill(1, torch.tensor([2]), 5.0).requires_grad_()
    (slope,) = torch.autograd.grad(correlation_loss(own, drawn(1), 0.3), own)
    assert slope.isfinite().all()


def test_the_divergence_is_the_teachers_over_the_students() -> None:
    teacher, student = drawn(0), drawn(1)
    p, q = teacher.double().softmax(1), student.double().softmax(1)
    assert float(divergence_from(teacher, student)) == pytest.approx(float((p * (p / q).log()).sum(1).mean()), rel=1e-5)


def test_a_pass_in_16_bits_correlates_in_32() -> None:
    own, average = drawn(0), drawn(0) + 0.01 * drawn(1)
    with torch.autocast("cpu", torch.bfloat16):
        found = cross_correlation(own, average)
    assert torch.equal(found, cross_correlation(own, average))
