"""Mean and variance against PyTorch's own, in values and in gradients."""

from __future__ import annotations

import pytest
import torch

from unseen.ops.moments import mean_and_variance


@pytest.mark.parametrize("over", [(2, 3), (1, 2, 3), (0,)])
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last])
def test_it_is_pytorchs_mean_and_variance(over: tuple[int, ...], order: torch.memory_format) -> None:
    x = torch.randn(4, 3, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(memory_format=order) + 100.0
    x.requires_grad_()
    ours, (variance, mean) = mean_and_variance(x, over), torch.var_mean(x, over, correction=0, keepdim=True)
    for own, theirs in zip(ours, (mean, variance), strict=True):
        torch.testing.assert_close(own, theirs)
        slopes = [torch.autograd.grad(each.sin().sum(), x, retain_graph=True)[0] for each in (own, theirs)]
        torch.testing.assert_close(*slopes, atol=1e-9, rtol=1e-6)


def test_a_large_mean_does_not_drown_a_small_variance() -> None:
    x = 1e4 + torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    variance = mean_and_variance(x, (2, 3))[1]
    torch.testing.assert_close(variance, x.double().var((2, 3), correction=0, keepdim=True).float(), atol=0.0, rtol=1e-3)
