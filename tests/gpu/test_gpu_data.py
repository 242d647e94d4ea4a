"""Samples and augmentation on a GPU: what they are on a CPU, and nothing waits for the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unseen.data.augment import RECIPES, Augment
from unseen.data.domain import IMAGENET, Domain, DomainDataset, Samples, normalise
from unseen.device.resident import SampleReader
from unseen.networks.generator import ImageGenerator
from unseen.ops.randconv import STYLES, restyled_views
from unseen.state import on_the_host

pytestmark = pytest.mark.gpu

EVERYTHING = Augment(
    crop_min=0.3, flip=0.5, rotation=40, zoom_min=0.7, zoom_max=1.5, brightness=0.9, contrast=0.9, saturation=0.9, hue=0.5, grayscale=0.3
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(channels: int) -> torch.Tensor:
    return torch.rand((6, channels, 20, 20), generator=rng(99))


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_augmentation_gives_the_same_and_is_never_waited_for() -> None:
    x, y = images(3), (images(2) > 0.5).to(torch.uint8)
    there = x.cuda(), y.cuda()
    EVERYTHING(*there, rng())
    torch.cuda.set_sync_debug_mode("error")
    try:
        moved, masks = EVERYTHING(*there, rng(7))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected, same = EVERYTHING(x, y, rng(7))
    torch.testing.assert_close(moved.cpu(), expected, atol=1e-3, rtol=0)
    assert (masks.cpu() != same).double().mean() < 0.01  # a place between two pixels


@pytest.mark.parametrize("parts", ["a", "b", "ab", "cab"])
def test_samples_held_on_the_gpu_are_those_of_the_arrays(tiny: DomainDataset, parts: str) -> None:
    def part(name: str) -> tuple[Domain, np.ndarray]:
        return tiny[name], np.random.default_rng(0).permutation(len(tiny[name]))[:15]

    samples = Samples(tuple(part(name) for name in parts))
    reader, positions = SampleReader(tiny.domains, torch.device("cuda")), torch.randperm(len(samples), generator=rng())[:12]
    assert len(reader._held) == len(tiny.domains)
    for there, here in zip(reader.take(samples, positions), samples.take(positions), strict=True):
        assert there.is_cuda and there.dtype == here.dtype and torch.equal(there.cpu(), here)
    none = reader.take(samples, positions[:0])
    assert [len(one) for one in none] == [0, 0]


def test_pixels_are_normalised_where_they_are() -> None:
    x = images(3)
    torch.testing.assert_close(IMAGENET.normalised(x.cuda()).cpu(), IMAGENET.normalised(x))
    torch.testing.assert_close(IMAGENET.restored(IMAGENET.normalised(x.cuda())).cpu(), x)


RECIPE = {
    **{name: recipe for name, recipe in RECIPES.items() if isinstance(recipe, Augment)},
    "everything": EVERYTHING,
    "contrast": Augment(contrast=0.8),
    "crop": Augment(crop_min=0.2),
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", RECIPE)
def test_the_kernel_gives_what_the_plain_augmentation_gives(name: str, channels: int) -> None:
    from unseen.data.augment_kernel import augmented_bytes

    stored = torch.randint(0, 256, (6, 40, 36, channels), dtype=torch.uint8, generator=rng(1)).permute(0, 3, 1, 2)
    masks = (torch.rand(6, 2, 40, 36, generator=rng(2)) > 0.5).to(torch.uint8)
    mean, std = (each[:, :channels] for each in IMAGENET.tensors())
    one, other = rng(7), rng(7)
    x, moved = RECIPE[name](stored / 255, masks, one)
    x = normalise(x.clone(), mean, std)
    there = (t.cuda() for t in (stored, masks, mean.contiguous(), std.contiguous()))
    got, got_masks = augmented_bytes(*there, RECIPE[name], other)
    assert torch.equal(one.get_state(), other.get_state()), "both draw the same"
    assert got.is_contiguous(memory_format=torch.channels_last)
    assert float(((got.cpu() - x).abs() > 1e-3).double().mean()) < 1e-3  # a hue at the edge of two sixths
    assert float((got_masks.cpu() != moved).double().mean()) < 1e-3  # a place between two pixels


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("seed", range(4))
def test_the_kernel_restyles_as_the_plain_version_does(style: str, seed: int) -> None:
    x = torch.randn(3, 3, 37, 29, generator=rng(99))
    one, other = rng(seed), rng(seed)
    expected = restyled_views(x, 2, [style], one)
    got = restyled_views(x.cuda().contiguous(memory_format=torch.channels_last), 2, [style], other)
    assert torch.equal(one.get_state(), other.get_state()) and got.is_contiguous(memory_format=torch.channels_last)
    near = 1e-4 if style in ("amplitudes", "tones") else 5e-3  # matrix units round factors to ten bits
    torch.testing.assert_close(got.cpu(), expected, atol=near, rtol=near)
    assert float((got.cpu() - expected).square().mean().sqrt()) < near / 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 32, 65, 61), (2, 5, 8, 8), (2, 4, 200, 150)])
@pytest.mark.parametrize("relu", [False, True])
def test_the_kernel_normalises_instances_as_the_plain_version_does(relu: bool, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from unseen.networks.instance_norm_kernel import instance_normalised

    x, weight = ((torch.randn(shape, generator=rng(s)) * 2 + 1).to(dtype) for s in (1, 2))
    plain, there = x.double().requires_grad_(), x.cuda().contiguous(memory_format=torch.channels_last).requires_grad_()
    expected, got = torch.nn.functional.instance_norm(plain, eps=1e-5), instance_normalised(there, 1e-5, relu)
    expected = expected.relu() if relu else expected
    expected.backward(weight.double())
    got.backward(weight.cuda())
    assert got.dtype == dtype and got.is_contiguous(memory_format=torch.channels_last)
    near = {"atol": 1e-4, "rtol": 1e-4} if dtype is torch.float32 else {"atol": 3e-2, "rtol": 1e-2}
    torch.testing.assert_close(got.detach().cpu().double(), expected.detach(), **near)
    torch.testing.assert_close(there.grad.cpu().double(), plain.grad, **near)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_generator_gives_on_a_gpu_what_it_gives_on_a_cpu(precision: str) -> None:
    net, x = ImageGenerator(3, 8), images(3)
    there = ImageGenerator(3, 8).cuda().to(memory_format=torch.channels_last)
    there.load_state_dict(net.state_dict())
    expected = net(x)
    expected.square().sum().backward()
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
        got = there(x.cuda().contiguous(memory_format=torch.channels_last))
    got.float().square().sum().backward()
    near = 1e-3 if precision == "fp32" else 5e-2
    torch.testing.assert_close(got.detach().float().cpu(), expected.detach(), atol=near, rtol=near)
    for one, other in zip(there.parameters(), net.parameters(), strict=True):
        assert float((one.grad.cpu() - other.grad).norm()) <= 10 * near * float(other.grad.norm()) + 1e-6


def test_a_state_leaves_the_gpu_as_it_was() -> None:
    state = {"w": torch.rand(2, 3, 4, 4).contiguous(memory_format=torch.channels_last), "n": torch.tensor(7), "b": torch.rand(3)}
    there = on_the_host({name: value.cuda() for name, value in state.items()})
    assert list(there) == list(state)
    assert all(torch.equal(there[name], value) and not there[name].is_cuda for name, value in state.items())
