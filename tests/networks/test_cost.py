"""Operations and parameters against published numbers and counts by hand."""

import pytest
import torch

from unseen.networks import ImageGenerator
from unseen.networks.cost import Cost, cost, measure


@pytest.mark.parametrize(
    ("name", "billions"),  # multiply-adds at 224 pixels as published
    [
        ("resnet18", 1.814),
        ("resnet50", 4.089),
        ("resnet101", 7.801),
        ("mobilenet_v2", 0.301),
        ("efficientnet_lite0", 0.385),
        ("vit_b_16", 17.564),
    ],
)
def test_operations_are_twice_the_published_multiply_adds(name, billions):
    assert cost(name).flops / 2e9 == pytest.approx(billions, abs=6e-4)


def test_a_digits_network_by_hand():
    first, second = 25 * 3 * 64 * 28 * 28, 25 * 64 * 128 * 10 * 10
    linear = 3200 * 1024 + 1024 * 1024 + 1024 * 10
    biases = 64 + 128 + 1024 + 1024 + 10
    weights = 25 * 3 * 64 + 25 * 64 * 128 + linear
    assert cost("digits_cnn", outputs=10) == Cost(weights + biases, 2 * (first + second + linear))


def test_feddags_generator_beside_its_task_networks():
    """The paper puts FedDAG with ResNet-18 and FCN32 at 83.6 % of ResNet-101: our reading counts teacher, student and generator."""
    with torch.device("meta"):
        generator = measure(ImageGenerator(3, 32), 3, (224, 224))
    share = (2 * cost("resnet18").flops + generator.flops) / cost("resnet101").flops
    assert share == pytest.approx(0.836, abs=0.01)
    assert generator.parameters < cost("resnet18").parameters / 100


def test_frozen_batch_norm_is_not_counted_as_parameters():
    assert cost("resnet18").parameters - cost("resnet18:norm=frozen").parameters == 9600  # scale and shift of 4,800 channels
