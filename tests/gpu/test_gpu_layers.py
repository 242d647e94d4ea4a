"""Layers with kernels of their own on a GPU: the values and gradients of PyTorch's, first and second ones, compiled and not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen.device.compiling import compiled
from unseen.device.twice import DifferentiatedTwice
from unseen.networks import build_network
from unseen.networks.fast_layers import DepthwiseConv2d, PointwiseConv2d, StemConv2d, StemMaxPool2d
from unseen.networks.instance_norm import instance_normed
from unseen.networks.kernels import plain_versions
from unseen.networks.padding import mirrored_edges

pytestmark = pytest.mark.gpu


class NormTwice(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        with DifferentiatedTwice():
            return super().forward(x)


class MirroredEdges(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return mirrored_edges(x)


class InstanceNorm(nn.Module):
    def __init__(self, relu: bool) -> None:
        super().__init__()
        self._relu = relu

    def forward(self, x: Tensor) -> Tensor:
        return instance_normed(x, self._relu)


TWICE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "batch norm": (lambda: NormTwice(70), (3, 70, 9, 8)),
    "batch norm of few channels": (lambda: NormTwice(5), (40, 5, 60, 61)),
    "batch norm of many channels": (lambda: NormTwice(512), (4, 512, 7, 7)),
    "mirrored edges": (MirroredEdges, (2, 32, 9, 70)),
    "mirrored edges of images": (MirroredEdges, (3, 3, 17, 5)),
    "mirrored edges of tiny maps": (MirroredEdges, (2, 70, 2, 2)),
}
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "stem": (lambda: StemConv2d(3, 64), (3, 3, 46, 38)),
    "stem of grey images": (lambda: StemConv2d(1, 64), (2, 1, 32, 32)),
    "stem of odd images": (lambda: StemConv2d(3, 64), (2, 3, 33, 30)),
    "pooling": (StemMaxPool2d, (3, 64, 24, 22)),
    "pooling of odd maps": (StemMaxPool2d, (2, 70, 17, 19)),
    "depthwise": (lambda: DepthwiseConv2d(40, 1), (3, 40, 17, 15)),
    "depthwise, small": (lambda: DepthwiseConv2d(130, 1), (2, 130, 7, 7)),
    "depthwise, stride 2": (lambda: DepthwiseConv2d(33, 2), (2, 33, 16, 19)),
    "depthwise, large": (lambda: DepthwiseConv2d(32, 2), (2, 32, 41, 36)),
    "instance norm": (lambda: InstanceNorm(False), (3, 70, 9, 8)),
    "instance norm with ReLU": (lambda: InstanceNorm(True), (2, 16, 130, 97)),
    "instance norm of few images": (lambda: InstanceNorm(True), (1, 3, 300, 211)),
    "pointwise": (lambda: PointwiseConv2d(24, 40), (2, 24, 9, 8)),
}


def numbers(shape: tuple[int, ...] | torch.Size, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def first_and_second(layer: nn.Module, x: Tensor) -> list[Tensor]:
    """A layer's answer, the gradients of a number made of it, and the gradients of a number made of those."""
    x = x.requires_grad_()
    wanted = [x, *layer.parameters()]
    y = layer(x)
    by = torch.autograd.grad((y * numbers(y.shape, 7).to(y)).sum() + y.square().sum(), wanted, create_graph=True)
    further = torch.autograd.grad(sum((g * numbers(g.shape, 8).to(g)).sum() for g in by), wanted)
    return [t.detach().cpu().double() for t in (y, *by, *further)]


@pytest.mark.parametrize("name", LAYERS | TWICE)
def test_a_layer_gives_what_pytorchs_gives(name: str) -> None:
    make, shape = (LAYERS | TWICE)[name]
    layer, x = make().double(), numbers(shape, 1).double()
    expected = first_and_second(layer, x.clone())
    there = make().cuda().to(memory_format=torch.channels_last)
    there.load_state_dict({key: value.float() for key, value in layer.state_dict().items()})
    with torch.backends.cudnn.flags(allow_tf32=False):
        got = first_and_second(there, x.float().cuda().contiguous(memory_format=torch.channels_last))
    for one, other in zip(got, expected, strict=True):
        assert float((one - other).norm()) <= 1e-4 * float(other.norm()) + 1e-6


@pytest.mark.parametrize("through", ["as it is", "compiled"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_under_autocast_is_as_near_as_pytorchs(name: str, through: str) -> None:
    make, shape = LAYERS[name]
    layer, x = make().double(), numbers(shape, 1)
    of_y = numbers(layer(x.double()).shape, 2)

    def gradients(run: Callable[[Tensor], Tensor], over: nn.Module, x: Tensor) -> list[Tensor]:
        x = x.requires_grad_()
        y = run(x)
        (y * of_y.to(y)).sum().backward()
        return [t.detach().cpu().double() for t in (y, x.grad, *(p.grad for p in over.parameters()))]

    expected = gradients(layer, layer, x.double())
    errors = []
    for plain in (False, True):
        there = make().cuda().to(memory_format=torch.channels_last)
        there.load_state_dict({key: value.float() for key, value in layer.state_dict().items()})
        run = compiled(there) if through == "compiled" and not plain else there
        with torch.autocast("cuda", torch.bfloat16), plain_versions() if plain else torch.enable_grad():
            got = gradients(run, there, x.cuda().contiguous(memory_format=torch.channels_last))
        errors.append([float((one - other).norm() / other.norm()) for one, other in zip(got, expected, strict=True)])
    for own, pytorchs in zip(*errors, strict=True):
        assert own <= 1.5 * pytorchs + 1e-3


def test_gradients_of_a_pooled_tie_go_where_pytorch_sends_them() -> None:
    x = torch.zeros(1, 64, 8, 8).cuda().contiguous(memory_format=torch.channels_last)
    x[..., 3, 4] = float("nan")
    own, plain = x.clone().requires_grad_(), x.clone().requires_grad_()
    got, expected = StemMaxPool2d()(own), F.max_pool2d(plain, 3, 2, 1)
    for y in (got, expected):
        y.backward(torch.arange(1.0, 17.0).view(4, 4).expand(1, 64, 4, 4).cuda())
    torch.testing.assert_close(got, expected, equal_nan=True)
    torch.testing.assert_close(own.grad, plain.grad)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "unet:width=8,depth=3"])
def test_a_network_trains_as_with_pytorchs_layers(name: str) -> None:
    x, y = numbers((8, 3, 64, 64), 3).cuda().contiguous(memory_format=torch.channels_last), torch.arange(8).cuda() % 5

    def trained() -> tuple[float, Tensor]:
        torch.manual_seed(0)
        net = build_network(name, outputs=5, channels=3, size=(64, 64)).cuda().to(memory_format=torch.channels_last)
        with torch.backends.cudnn.flags(allow_tf32=False):
            logits = net(x)
            loss = F.cross_entropy(logits if logits.ndim == 2 else logits.mean((2, 3)), y)
            loss.backward()
        return float(loss), torch.cat([p.grad.flatten() for p in net.parameters()])

    torch.manual_seed(1)
    loss, gradient = trained()
    with plain_versions():
        plain, expected = trained()
    assert loss == pytest.approx(plain, rel=1e-4)
    assert float((gradient - expected).norm()) <= 1e-2 * float(expected.norm())
