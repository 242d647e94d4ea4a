"""Gaussian representations against torch's own distributions."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Independent, Normal, kl_divergence

from unseen.ops.gaussian import deviation, drawn, gaussian_divergence, representation_length


def test_the_divergence_is_torchs_own() -> None:
    torch.manual_seed(0)
    mu, r_mu = torch.randn(2, 5, 4, dtype=torch.float64)
    sigma, r_sigma = torch.rand(2, 5, 4, dtype=torch.float64) + 0.1
    one, other = (Independent(Normal(m, s), 1) for m, s in ((mu, sigma), (r_mu, r_sigma)))
    assert float(gaussian_divergence(mu, sigma, r_mu, r_sigma)) == pytest.approx(float(kl_divergence(one, other).mean()), rel=1e-12)
    assert float(gaussian_divergence(-mu, -sigma, -r_mu, r_sigma)) == pytest.approx(float(kl_divergence(one, other).mean()), rel=1e-12)


def test_draws_have_the_mean_and_deviation_that_were_asked_for() -> None:
    noise = torch.randn(200_000, 1, generator=torch.Generator().manual_seed(0))
    z = drawn(torch.tensor([[3.0]]), torch.tensor([[0.5]]), noise)
    assert float(z.mean()) == pytest.approx(3, abs=0.01) and float(z.std()) == pytest.approx(0.5, abs=0.01)


def test_deviations_are_positive_and_lengths_differentiable_at_zero() -> None:
    sigma = deviation(torch.tensor([-1e4, 0.0, 50.0], dtype=torch.bfloat16))
    assert sigma.dtype is torch.float32 and (sigma > 0).all() and sigma.log().isfinite().all()
    assert sigma[1:].tolist() == pytest.approx([0.693147, 50], abs=1e-5)
    for form in ("squared", "norm"):
        z = torch.zeros(2, 3, requires_grad=True)
        representation_length(z, form).backward()  # type: ignore[arg-type]
        assert z.grad is not None and not z.grad.any()
