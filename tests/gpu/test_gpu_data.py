"""Samples and augmentation on a GPU: what they are on a CPU, and nothing waits for the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from unseen.data.augment import Augment
from unseen.data.domain import IMAGENET, Domain, DomainDataset, Samples
from unseen.device.resident import SampleReader

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
