"""Networks beside the task network: FedDAG's image generator, FedADG's distribution generator and discriminator."""

import math

import pytest
import torch

from unseen.networks import Discriminator, DistributionGenerator, ImageGenerator


@pytest.mark.parametrize(("channels", "size"), [(3, (8, 12)), (1, (2, 2)), (4, (7, 5))])
def test_perturbations_have_the_images_shape_and_stay_within_one(channels, size):
    torch.manual_seed(0)
    net = ImageGenerator(channels, width=8)
    for parameter in net.parameters():
        parameter.data.mul_(50)  # far beyond the start, where the bound must hold too
    out = net(torch.randn(2, channels, *size) * 10)
    assert out.shape == (2, channels, *size) and out.abs().max() <= 1 and out.isfinite().all()


def test_image_generator_starts_near_zero_with_the_papers_spread():
    torch.manual_seed(0)
    net = ImageGenerator()
    weights = torch.cat([p.detach().flatten() for name, p in net.named_parameters() if name.endswith("weight")])
    assert abs(float(weights.std()) - 0.02) < 5e-4 and abs(float(weights.mean())) < 5e-4
    assert all(not p.any() for name, p in net.named_parameters() if name.endswith("bias"))
    assert net(torch.randn(1, 3, 16, 16)).abs().max() < 0.1


def test_image_generator_size_by_hand():
    def count(channels, width):
        return 9 * channels * width + 6 * 9 * width * width + (2 * width + 1) * width + (width + 1) * channels

    for channels, width in ((3, 32), (3, 16), (1, 8)):
        assert sum(p.numel() for p in ImageGenerator(channels, width).parameters()) == count(channels, width)


def test_the_context_of_the_whole_image_reaches_every_pixel():
    torch.manual_seed(0)
    net = ImageGenerator(1, width=4)
    x = torch.randn(1, 1, 8, 8)
    with_context = net(x)
    net.fuse.weight.data[:, 4:] = 0
    assert not torch.allclose(with_context, net(x), atol=1e-6)


def test_distribution_generator_by_hand():
    torch.manual_seed(0)
    net = DistributionGenerator(noise=2, classes=3, features=4)
    noise, label = torch.rand(5, 2), torch.eye(3)[[0, 1, 2, 0, 1]]
    hidden = torch.cat([noise, label], 1) @ net.fc1.weight.T
    torch.testing.assert_close(net(noise, label), (hidden.clamp(min=0) @ net.fc2.weight.T).clamp(min=0))
    assert net.fc1.out_features == net.fc2.out_features == 4  # as printed: both of the feature's size


def test_distribution_generator_as_released_and_its_options():
    with torch.device("meta"):
        released = DistributionGenerator(2048, 7, 4096)
    assert tuple(released.fc1.weight.shape) == (4096, 2055) and tuple(released.fc2.weight.shape) == (4096, 4096)
    torch.manual_seed(0)
    signed = DistributionGenerator(4, 0, 6, hidden=8, nonnegative=False)
    assert signed.fc1.weight.shape == (8, 4) and (signed(torch.rand(9, 4), torch.empty(9, 0)) < 0).any()


def test_the_fixed_projection_is_no_parameter_but_travels_with_the_state():
    net = Discriminator(features=8, classes=3, projected=2)
    assert {name for name, _ in net.named_parameters()} == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    assert net.state_dict()["project.matrix"].shape == (8, 2)


def test_the_fixed_projection_keeps_lengths_on_average():
    torch.manual_seed(0)
    net = Discriminator(features=400, classes=0, projected=100)
    h = torch.randn(200, 400)
    assert float((net.project(h).norm(dim=1) / h.norm(dim=1)).mean()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("label", "projected", "projection_reads", "first_layer_reads"),
    [("after", 4, 8, 4 + 3), ("before", 4, 8 + 3, 4), ("after", None, None, 8 + 3), ("before", None, None, 8 + 3)],
)
@pytest.mark.parametrize("projection", ["fixed", "trainable"])
def test_where_the_label_joins(label, projected, projection_reads, first_layer_reads, projection):
    torch.manual_seed(0)
    net = Discriminator(8, 3, projected, label=label, projection=projection)
    assert net.fc1.in_features == first_layer_reads and net.fc1.out_features == 8
    if projected:
        matrix = net.project.matrix.T if projection == "fixed" else net.project.weight
        assert matrix.shape == (projected, projection_reads) and (projection == "trainable") == isinstance(matrix, torch.nn.Parameter)
    h = torch.randn(6, 8)
    one, two = (net(h, torch.eye(3)[[k] * 6]) for k in (0, 1))
    assert one.shape == (6,) and ((one > 0) & (one < 1)).all() and not torch.allclose(one, two)


@pytest.mark.parametrize("leak", [0.0, 0.3])
def test_discriminator_by_hand(leak):
    torch.manual_seed(0)
    net = Discriminator(features=4, classes=2, projected=3, hidden=5, leak=leak)
    h, label = torch.randn(6, 4), torch.eye(2)[[0, 1, 0, 1, 0, 1]]
    read = torch.cat([h @ net.project.matrix, label], 1)
    hidden = read @ net.fc1.weight.T + net.fc1.bias
    hidden = torch.where(hidden > 0, hidden, leak * hidden)
    expected = 1 / (1 + torch.exp(-(hidden @ net.fc2.weight.T + net.fc2.bias)))
    torch.testing.assert_close(net(h, label), expected[:, 0])


def test_in_half_precision_a_sure_discriminator_is_not_rounded_to_certainty():
    net = Discriminator(4, 0, None)
    net.fc2.weight.data.zero_()
    net.fc2.bias.data.fill_(7.0)
    with torch.autocast("cpu", torch.bfloat16):
        score = net(torch.randn(2, 4), torch.empty(2, 0))
    torch.testing.assert_close(1 - score, torch.full((2,), 1 / (1 + math.exp(7.0))), rtol=1e-3, atol=0)


def test_without_classes_the_label_is_not_read():
    torch.manual_seed(0)
    net = Discriminator(4, 0, 2)
    h = torch.randn(3, 4)
    assert torch.equal(net(h, torch.zeros(3, 5)), net(h, torch.ones(3, 5)))
