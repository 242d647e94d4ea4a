"""FedADG's losses and draws against numbers worked out by hand, by loops and by scipy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unseen.ops.adversarial import (
    Reference,
    discriminator_loss,
    draw_reference,
    feature_loss,
    generator_loss,
    one_hot,
    smoothed_cross_entropy,
    warmed_up,
)

EXTRACTED, GENERATED = torch.tensor([0.1, 0.4]), torch.tensor([0.7, 0.9])


def test_equations_2_to_4_by_hand() -> None:
    assert float(discriminator_loss(EXTRACTED, GENERATED, "paper")) == pytest.approx(-((0.81 + 0.36) / 2 + (0.49 + 0.81) / 2))
    assert float(feature_loss(EXTRACTED)) == pytest.approx((0.81 + 0.36) / 2)
    assert float(generator_loss(GENERATED, "paper")) == pytest.approx((0.09 + 0.01) / 2)


def test_the_released_forms_by_hand() -> None:
    assert float(discriminator_loss(EXTRACTED, GENERATED, "lsgan")) == pytest.approx((0.09 + 0.01) / 2 + (0.01 + 0.16) / 2)
    assert float(generator_loss(GENERATED, "adversarial")) == pytest.approx((0.49 + 0.81) / 2)


@given(st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_who_pulls_which_way(extracted: float, generated: float) -> None:
    """Every loss of D raises D(h') and lowers D(h); F raises D(h); as printed G raises D(h') too, adversarially it lowers it."""
    d_h, d_ref = (torch.tensor([value], requires_grad=True) for value in (extracted, generated))
    for form in ("paper", "lsgan"):
        down, up = torch.autograd.grad(discriminator_loss(d_h, d_ref, form), [d_h, d_ref])  # type: ignore[arg-type]
        assert down > 0 > up
    assert torch.autograd.grad(feature_loss(d_h), d_h)[0] < 0
    assert torch.autograd.grad(generator_loss(d_ref, "paper"), d_ref)[0] < 0
    assert torch.autograd.grad(generator_loss(d_ref, "adversarial"), d_ref)[0] > 0


@given(st.integers(2, 6), st.floats(0, 1), st.integers(0, 30))
def test_label_smoothing_over_all_and_over_wrong_classes(classes: int, epsilon: float, seed: int) -> None:
    logits = torch.randn(3, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    labels = torch.tensor([(seed + row) % classes for row in range(3)])
    expected = {"all": 0.0, "wrong": 0.0}
    for row in range(3):
        norm = math.log(sum(math.exp(v) for v in logits[row].tolist()))
        for c in range(classes):
            true = c == int(labels[row])
            log_p = float(logits[row, c]) - norm
            expected["all"] -= ((1 - epsilon if true else 0) + epsilon / classes) * log_p / 3
            expected["wrong"] -= (1 - epsilon if true else epsilon / (classes - 1)) * log_p / 3
    for over, value in expected.items():
        assert float(smoothed_cross_entropy(logits, labels, epsilon, over)) == pytest.approx(value, abs=1e-6)  # type: ignore[arg-type]


def test_the_label_marks_its_class() -> None:
    assert one_hot(torch.tensor([2, 0]), 3, 0.6).tolist() == [[0, 0, pytest.approx(0.6)], [pytest.approx(0.6), 0, 0]]


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        ("generated", stats.uniform(0, 1)),
        ("normal", stats.norm(0, 1)),
        ("uniform", stats.uniform(-1, 2)),
        ("laplace", stats.laplace(0, 1 / math.sqrt(2))),
    ],
)
def test_references_follow_their_law(kind: Reference, law: stats.rv_continuous) -> None:
    drawn = draw_reference(kind, 200, 50, torch.Generator().manual_seed(0))
    assert drawn.shape == (200, 50) and drawn.dtype == torch.float32
    assert stats.kstest(drawn.flatten().numpy(), law.cdf).pvalue > 0.01
    assert torch.equal(drawn, draw_reference(kind, 200, 50, torch.Generator().manual_seed(0)))


def test_warm_up_is_linear_and_ends_at_the_learning_rate() -> None:
    assert warmed_up(0.001, 1, 500) == pytest.approx(2.1e-6, rel=1e-3) and warmed_up(0.001, 14, 500) == pytest.approx(2.81e-5, rel=1e-3)
    assert warmed_up(0.3, 10, 10) == warmed_up(0.3, 11, 10) == pytest.approx(0.3)
    assert warmed_up(0.0, 3, 10) == 0 and warmed_up(0.3, 3, 0) == 0.3
