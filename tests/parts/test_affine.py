"""The affine part: against SciPy's resampling, masks with their images, and what it leaves alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import affine_transform
from torch import Tensor

from unseen import BadInput
from unseen.experiment import read_experiment
from unseen.parts.affine import Affine


def drawn(seed: int, n: int) -> np.ndarray:
    """The numbers from -1 to 1 that the part draws: angle, zoom, way across, way down. Before them it draws which images move."""
    return (2 * torch.rand(n, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)[:, 1:] - 1).numpy()


def by_scipy(image: np.ndarray, degrees: float, zoom: float, across: float, down: float, order: int) -> np.ndarray:
    """One channel, turned counter-clockwise about its centre, magnified, then read `across` and `down` pixels further on."""
    cos, sin = math.cos(math.radians(degrees)) / zoom, math.sin(math.radians(degrees)) / zoom
    matrix = np.array([[cos, sin], [-sin, cos]])  # rows before columns; rows count downwards
    middle = (np.array(image.shape) - 1) / 2
    return affine_transform(image, matrix, middle - matrix @ middle + [down, across], order=order, mode="reflect")


def test_images_move_as_scipy_moves_them() -> None:
    x = torch.rand(6, 2, 9, 14, generator=torch.Generator().manual_seed(1))
    part = Affine(share=1.0, degrees=70.0, zoom=1.6, shift=0.3)
    got, labels = part.moved(x, y := torch.arange(6), torch.Generator().manual_seed(5))
    assert labels is y
    for image, result, (angle, zoom, across, down) in zip(x.numpy(), got.numpy(), drawn(5, 6), strict=True):
        for channel, moved in zip(image, result, strict=True):
            want = by_scipy(channel, 70 * angle, 1.6**zoom, 14 * 0.3 * across, 9 * 0.3 * down, order=1)
            assert np.abs(moved - want).max() < 1e-4


@pytest.mark.parametrize("seed", [0, 8])
def test_a_shift_by_whole_pixels_by_hand(seed: int) -> None:
    x = torch.arange(10.0).view(1, 1, 1, 10)
    across = float(drawn(seed, 1)[0, 2])
    part = Affine(share=1.0, degrees=0.0, zoom=1.0, shift=0.2 / abs(across))
    got, _ = part.moved(x, torch.zeros(1), torch.Generator().manual_seed(seed))
    want = [2, 3, 4, 5, 6, 7, 8, 9, 9, 8] if across > 0 else [1, 0, 0, 1, 2, 3, 4, 5, 6, 7]
    assert got.flatten().tolist() == pytest.approx(want, abs=1e-5)


def test_masks_move_with_their_images_and_hold_no_new_value() -> None:
    blob = torch.zeros(8, 1, 64, 64)
    blob[:, :, 18:44, 10:50] = 1
    x, masks = Affine(share=1.0).moved(blob.repeat(1, 3, 1, 1), blob.long(), torch.Generator().manual_seed(2))
    assert masks.dtype == torch.long and set(masks.unique().tolist()) == {0, 1}
    assert float(((x[:, :1] > 0.5) != masks.bool()).float().mean()) < 0.005
    assert float((masks != blob).float().mean()) > 0.02


def test_what_it_leaves_alone() -> None:
    x = torch.rand(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    before = x.clone()
    still, _ = Affine(share=1.0, degrees=0.0, zoom=1.0, shift=0.0).moved(x, torch.zeros(4), torch.Generator())
    moved, _ = Affine(share=1.0).moved(x, torch.zeros(4), torch.Generator().manual_seed(0))
    assert torch.allclose(still, x, atol=1e-5) and torch.equal(x, before) and not torch.allclose(moved, x, atol=0.05)
    assert all(out.is_contiguous(memory_format=torch.channels_last) for out in (still, moved))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_a_share_of_the_images_moves_and_the_others_keep_every_bit(share: float) -> None:
    x, masks = torch.rand(400, 1, 6, 6, generator=torch.Generator().manual_seed(3)), torch.rand(400, 1, 6, 6).round().long()
    got, with_them = Affine(share=share).moved(x, masks, torch.Generator().manual_seed(4))
    stayed = (got == x).flatten(1).all(1)
    assert float((~stayed).float().mean()) == pytest.approx(share, abs=0.06)
    assert torch.equal(with_them[stayed], masks[stayed])
    assert share == 0 or not torch.equal(with_them, masks)


def test_pixels_are_not_cut_off_at_the_range_that_normalised_images_do_not_have() -> None:
    x: Tensor = 3 * torch.randn(4, 3, 8, 8)
    assert float(Affine(share=1.0).moved(x, torch.zeros(4), torch.Generator().manual_seed(0))[0].max()) > 1.5


@pytest.mark.parametrize(("field", "value"), [("degrees", -1), ("zoom", 0.5), ("shift", 0.7), ("share", 1.1)])
def test_a_range_that_cannot_be_is_refused(field: str, value: float) -> None:
    with pytest.raises(BadInput, match=field):
        read_experiment({"method": "fedavg", "set": {"affine": {"name": "affine", field: value}}})
