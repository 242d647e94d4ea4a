"""Mirrored edges against PyTorch's reflection, forwards and backwards."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from unseen.networks.padding import mirrored_edges


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 1, 2, 2), (2, 4, 3, 2)])
@pytest.mark.parametrize("form", [torch.contiguous_format, torch.channels_last])
def test_it_is_reflection_padding(shape: tuple[int, ...], form: torch.memory_format) -> None:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=rng, dtype=torch.float64).contiguous(memory_format=form)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, expected = mirrored_edges(one), F.pad(other, (1, 1, 1, 1), mode="reflect")
    assert torch.equal(got, expected) and got.is_contiguous(memory_format=form)
    weight = torch.randn(expected.shape, generator=rng, dtype=torch.float64)
    got.backward(weight)
    expected.backward(weight)
    assert one.grad is not None and other.grad is not None
    torch.testing.assert_close(one.grad, other.grad, atol=1e-12, rtol=1e-12)


def test_its_derivative_can_be_differentiated() -> None:
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True, generator=torch.Generator().manual_seed(1))
    assert torch.autograd.gradgradcheck(lambda x: mirrored_edges(x).pow(3), (x,))
