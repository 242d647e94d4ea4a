"""Convolutions and normalisations that are differentiated twice, against PyTorch's own and against finite differences."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.device.twice import DifferentiatedTwice


@pytest.mark.parametrize("size", [(5, 5), (6, 4), (4, 7)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("groups", [1, 3])
def test_a_convolution_has_right_first_and_second_derivatives(groups: int, stride: int, size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x, w, b = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((2, 3, *size), (3, 3 // groups, 3, 3), (3,)))

    def convolved(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
        with DifferentiatedTwice():
            return F.conv2d(x, w, b, stride, padding=1, groups=groups)

    assert torch.equal(convolved(x, w), F.conv2d(x, w, None, stride, padding=1, groups=groups))
    assert torch.allclose(convolved(x, w, b), F.conv2d(x, w, b, stride, padding=1, groups=groups), rtol=1e-12)
    assert torch.autograd.gradcheck(convolved, (x, w, b))
    assert torch.autograd.gradgradcheck(convolved, (x, w, b))


def test_autocast_casts_convolutions_as_ever() -> None:
    x, w = torch.rand(2, 3, 7, 7), torch.rand(3, 1, 3, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        plain = F.conv2d(x, w, padding=1, groups=3)
        with DifferentiatedTwice():
            ours = F.conv2d(x, w, padding=1, groups=3)
    assert ours.dtype == torch.bfloat16
    assert torch.equal(ours, plain)
    assert torch.equal(*(torch.autograd.grad(y.float().square().sum(), w)[0] for y in (ours, plain)))


def numbers(*shapes: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("size", [(5, 4), (1, 1)])
@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_has_right_first_and_second_derivatives(affine: bool, size: tuple[int, int]) -> None:
    given = numbers((3, 4, *size), *(((4,), (4,)) if affine else ()))

    def normalised(x: Tensor, *affine: Tensor) -> Tensor:
        with DifferentiatedTwice():
            return F.batch_norm(x, None, None, *affine, training=True, eps=0.3)

    assert torch.equal(normalised(*given), F.batch_norm(given[0], None, None, *given[1:], training=True, eps=0.3))
    assert torch.autograd.gradcheck(normalised, given)
    assert torch.autograd.gradgradcheck(normalised, given)


def test_an_instance_norm_has_right_first_and_second_derivatives() -> None:
    given = numbers((2, 3, 4, 5))

    def normalised(x: Tensor) -> Tensor:
        with DifferentiatedTwice():
            return F.instance_norm(x, eps=0.2)

    assert torch.equal(normalised(*given), F.instance_norm(*given, eps=0.2))
    assert torch.autograd.gradcheck(normalised, given)
    assert torch.autograd.gradgradcheck(normalised, given)


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm2d(3),
        nn.BatchNorm2d(3, momentum=None),
        nn.BatchNorm2d(3, affine=False, track_running_stats=False),
        nn.BatchNorm2d(3).eval(),
        nn.InstanceNorm2d(3),
        nn.InstanceNorm2d(3, affine=True),
        nn.InstanceNorm2d(3, track_running_stats=True),
    ],
)
def test_a_layer_gives_and_keeps_what_it_does_without(norm: nn.Module) -> None:
    ours, pytorchs = copy.deepcopy(norm), copy.deepcopy(norm)
    for x in torch.rand(2, 4, 3, 5, 5):
        with DifferentiatedTwice():
            y = ours(x)
        assert torch.equal(y, pytorchs(x))
    assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), pytorchs.buffers(), strict=True))


def test_one_value_a_channel_is_refused_as_ever() -> None:
    with DifferentiatedTwice(), pytest.raises(ValueError, match="more than 1 value per channel"):
        F.batch_norm(torch.rand(1, 3, 1, 1), None, None, training=True)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_half_precision_rounds_no_more_than_pytorchs(layout: torch.memory_format) -> None:
    """Both against double precision: a normalisation of bf16 images with float32 weights, as under autocast."""
    torch.manual_seed(0)
    exact, along = torch.randn(2, 8, 4, 9, 9, dtype=torch.float64)
    weight, bias = torch.rand(2, 4, dtype=torch.float64) + 0.5

    def second(ours: bool, dtype: torch.dtype) -> Tensor:
        statistics = torch.promote_types(dtype, torch.float32)
        x = exact.to(dtype).contiguous(memory_format=layout).requires_grad_()
        w, b = (each.to(statistics).requires_grad_() for each in (weight, bias))
        if ours:
            with DifferentiatedTwice():
                y = F.batch_norm(x, None, None, w, b, training=True)
        else:
            y = F.batch_norm(x, None, None, w, b, training=True)
        (by_x,) = torch.autograd.grad(y.to(statistics).pow(3).sum(), x, create_graph=True)
        (again,) = torch.autograd.grad((by_x * along.to(dtype)).sum(), x)
        assert again.dtype == dtype
        return again.double()

    exactly = second(False, torch.float64)
    ours, pytorchs = (float((second(side, torch.bfloat16) - exactly).norm()) for side in (True, False))
    assert ours <= 1.1 * pytorchs
    assert ours < 0.05 * float(exactly.norm())
