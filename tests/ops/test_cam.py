"""Class activation maps against loops, logits and finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from unseen.networks import build_network
from unseen.networks.headed import HeadedNet
from unseen.networks.vit import VisionTransformer
from unseen.ops.cam import class_activation, gradient_activation, head_weight, map_distribution


def look(name: str, side: int, n: int = 2) -> tuple[HeadedNet, Tensor, Tensor]:
    torch.manual_seed(0)
    net = build_network(name, outputs=3, channels=3, size=(side, side)).double().eval()
    assert isinstance(net, HeadedNet)
    return net, torch.randn(n, 3, side, side, dtype=torch.float64), torch.tensor([2, 0])[:n]


def test_the_printed_sum() -> None:
    maps, weight, y = torch.randn(2, 4, 3, 5), torch.randn(3, 4), torch.tensor([2, 0])
    got = class_activation(maps, weight, y)
    for n in range(2):
        for row in range(3):
            for column in range(5):
                want = sum(float(weight[y[n], c]) * float(maps[n, c, row, column]) for c in range(4))
                assert float(got[n, row, column]) == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize(("name", "side"), [("resnet18", 64), ("mobilenet_v2", 64), ("efficientnet_lite0", 64), ("resnet18:hidden=5", 64)])
def test_where_maps_are_averaged_the_gradient_form_is_the_printed_one(name: str, side: int) -> None:
    net, x, y = look(name, side)
    seen = net(x, full=True)
    weight = head_weight(net)
    assert weight is not None and weight.shape == (3, seen.maps[-1].shape[1])
    printed = class_activation(seen.maps[-1], weight, y)
    assert torch.allclose(printed, gradient_activation(seen, y))
    bias = net.head()(torch.zeros(1, net.feature_size, dtype=torch.float64))[0]
    assert torch.allclose(printed.mean((1, 2)), seen.logits[[0, 1], y] - bias[y])
    assert torch.allclose(map_distribution(net, seen, y).double(), printed.flatten(1).softmax(1), atol=1e-6)


def test_where_a_relu_stands_in_the_head_the_map_goes_by_the_gradient() -> None:
    net, x, y = look("resnet18:hidden=5,relu=true", 64)
    seen, head = net(x, full=True), net.head()
    assert head_weight(net) is None
    on = (seen.features @ head.inner.weight.T + head.inner.bias > 0).double()  # which hidden units speak, image by image
    slopes = (head.output.weight[y] * on) @ head.inner.weight
    by_hand = (slopes[:, :, None, None] * seen.maps[-1]).sum(1)
    assert torch.allclose(map_distribution(net, seen, y).double(), by_hand.flatten(1).softmax(1), atol=1e-6)


@pytest.mark.parametrize("side", [8, 16])
def test_small_cnn_contributions_add_up_to_the_logit(side: int) -> None:
    net, x, y = look("small_cnn:width=4", side)
    assert head_weight(net) is None
    seen = net(x, full=True)
    shares = gradient_activation(seen, y)
    assert shares.shape == (2, side // 4, side // 4)
    assert torch.allclose(shares.mean((1, 2)), seen.logits[[0, 1], y] - net.fc.bias[y])


def test_digits_cnn_by_finite_differences() -> None:
    net, x, y = look("digits_cnn", 16, n=1)
    seen = net(x, full=True)
    maps = seen.maps[-1].detach()

    @torch.no_grad()
    def logit(of: Tensor) -> float:
        hidden = net.relu(net.fc1(net.pool(of).flatten(1)))
        return float(net.fc3(net.relu(net.fc2(hidden)))[0, y[0]])

    got, step = gradient_activation(seen, y).detach(), 1e-6
    for row, column in ((0, 0), (1, 0), (1, 1)):
        want = 0.0
        for channel in range(maps.shape[1]):
            up, down = maps.clone(), maps.clone()
            up[0, channel, row, column] += step
            down[0, channel, row, column] -= step
            want += (logit(up) - logit(down)) / (2 * step) * float(maps[0, channel, row, column])
        assert float(got[0, row, column]) == pytest.approx(maps.shape[2] * maps.shape[3] * want, abs=1e-5)


@pytest.mark.parametrize("name", ["digits_cnn", "small_cnn:width=4"])
def test_maps_by_gradient_train_the_layers_on_both_sides(name: str) -> None:
    """The loss on a map is differentiated with respect to the weights before the maps and after them."""
    net, x, y = look(name, 32)
    weights = [net.conv1.weight, net.get_submodule(net.head_name).weight]

    def loss() -> Tensor:
        return (gradient_activation(net(x, full=True), y) ** 2).sum()

    for weight, grad in zip(weights, torch.autograd.grad(loss(), weights), strict=True):
        place = tuple(int(i) for i in (grad.abs() == grad.abs().max()).nonzero()[0])
        step, start = 1e-6, float(weight[place].detach())
        ends = []
        for value in (start + step, start - step):
            with torch.no_grad():
                weight[place] = value
            ends.append(float(loss().detach()))
        with torch.no_grad():
            weight[place] = start
        assert float(grad[place]) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-3)


def test_a_transformers_head_is_read_at_every_patch() -> None:
    assert VisionTransformer.head_fits_maps  # patch tokens after the last norm, beside the class token that the head reads
