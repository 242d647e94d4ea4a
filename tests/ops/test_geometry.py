"""Resampling against flips, rot90, torch's interpolate and scipy's, and boxes against a loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import affine_transform, map_coordinates
from torch import Tensor

from unseen.ops.geometry import crop_boxes, resample, source_map

WHOLE = (0.0, 0.0, 1.0, 1.0)


def images(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mapped(
    x: Tensor, box: tuple[float, ...] = WHOLE, mirrored: bool = False, degrees: float = 0.0, zoom: float = 1.0, mode: str = "bilinear"
) -> Tensor:
    """All samples of `x` through one map."""
    numbers = (torch.full((len(x),), value, dtype=x.dtype) for value in (degrees, zoom))
    boxes = torch.tensor([box], dtype=x.dtype).expand(len(x), 4)
    return resample(x, source_map(boxes, torch.full((len(x),), mirrored), *numbers, (x.shape[2], x.shape[3])), mode)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["bilinear", "nearest"])
def test_identity_returns_the_input(mode: str) -> None:
    x = images(2, 3, 7, 10)
    torch.testing.assert_close(mapped(x, mode=mode), x, atol=1e-12, rtol=0)


def test_identity_in_single_precision_is_within_rounding_of_the_places() -> None:
    x = images(2, 3, 224, 224).float()
    assert (mapped(x) - x).abs().max() < 2e-5  # places up to 224 in 24 bits


def test_mirrored_is_a_flip() -> None:
    x = images(2, 3, 7, 10)
    torch.testing.assert_close(mapped(x, mirrored=True), x.flip(-1), atol=1e-12, rtol=0)
    assert torch.equal(mapped(x.round(), mirrored=True, mode="nearest"), x.round().flip(-1))


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_quarter_turns_are_rot90(quarters: int) -> None:
    x = images(2, 3, 9, 9)
    torch.testing.assert_close(mapped(x, degrees=90.0 * quarters), torch.rot90(x, quarters, (2, 3)), atol=1e-9, rtol=0)


def test_a_turn_on_an_image_that_is_not_square_keeps_its_shapes() -> None:
    height, width, degrees = 24, 40, 30.0
    x = images(1, 1, height, width)
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    turn = np.array([[cos, sin], [-sin, cos]])  # from result to source, (row, column); rows run downwards
    centre = np.array([(height - 1) / 2, (width - 1) / 2])
    expected = affine_transform(x[0, 0].numpy(), turn, centre - turn @ centre, order=1, mode="reflect")
    np.testing.assert_allclose(mapped(x, degrees=degrees)[0, 0].numpy(), expected, atol=1e-9)


def test_zoom_reads_the_middle() -> None:
    x = images(2, 3, 12, 12)
    expected = F.interpolate(x[:, :, 3:9, 3:9], scale_factor=2, mode="bilinear", align_corners=False)
    inner = slice(1, -1)  # at its edge the cut-out image repeats itself; ours goes on into the rest
    torch.testing.assert_close(mapped(x, zoom=2.0)[:, :, inner, inner], expected[:, :, inner, inner], atol=1e-12, rtol=0)


@pytest.mark.parametrize("box", [(0, 0, 6, 8), (3, 2, 9, 5), (4, 6, 12, 10), (0, 0, 16, 16)])
def test_a_crop_is_cut_and_stretched(box: tuple[int, int, int, int]) -> None:
    left, top, wide, high = box
    x = images(3, 2, 16, 16)
    got = mapped(x, box=tuple(side / 16 for side in box))
    stretched = F.interpolate(x[:, :, top : top + high, left : left + wide], (16, 16), mode="bilinear", align_corners=False)
    edge = 2  # result pixels whose neighbour lies outside the box
    inner = slice(edge, -edge)
    torch.testing.assert_close(got[:, :, inner, inner], stretched[:, :, inner, inner], atol=1e-12, rtol=0)

    rows, columns = (np.arange(16) + 0.5) * high / 16 + top - 0.5, (np.arange(16) + 0.5) * wide / 16 + left - 0.5
    for sample in range(3):
        for channel in range(2):
            everywhere = map_coordinates(x[sample, channel].numpy(), np.meshgrid(rows, columns, indexing="ij"), order=1, mode="nearest")
            np.testing.assert_allclose(got[sample, channel].numpy(), everywhere, atol=1e-12)


def test_samples_have_maps_of_their_own() -> None:
    x = images(1, 3, 8, 8).expand(3, 3, 8, 8)
    whole, ones = torch.tensor([WHOLE], dtype=x.dtype).expand(3, 4), torch.ones(3, dtype=x.dtype)
    turned = source_map(whole, torch.tensor([False, True, False]), torch.tensor([0.0, 0.0, 90.0], dtype=x.dtype), ones, (8, 8))
    expected = torch.stack([x[0], x[0].flip(-1), torch.rot90(x[0], 1, (1, 2))])
    torch.testing.assert_close(resample(x, turned, "bilinear"), expected, atol=1e-9, rtol=0)


def test_the_flip_happens_before_the_turn() -> None:
    x = images(1, 1, 8, 8)
    torch.testing.assert_close(mapped(x, mirrored=True, degrees=90.0), torch.rot90(x.flip(-1), 1, (2, 3)), atol=1e-9, rtol=0)


@pytest.mark.parametrize("size", [(32, 32), (20, 48)])
def test_the_first_box_that_fits_is_taken(size: tuple[int, int]) -> None:
    height, width = size
    draws = torch.Generator().manual_seed(3)
    area, ratio = (torch.rand(200, 4, generator=draws, dtype=torch.float64) for _ in range(2))
    area, ratio = 0.5 + 0.5 * area, 0.5 + 1.5 * ratio
    place = torch.rand(200, 2, generator=draws, dtype=torch.float64)
    boxes = crop_boxes(area, ratio, place, size, widest=2.0)
    fallbacks = 0
    for row in range(200):
        for a, r in zip(area[row].tolist(), ratio[row].tolist(), strict=True):
            w, h = math.sqrt(a * height * width * r), math.sqrt(a * height * width / r)
            if w <= width and h <= height:
                left, top = place[row, 0].item() * (width - w), place[row, 1].item() * (height - h)
                break
        else:
            fallbacks += 1
            w, h = min(width, 2.0 * height), min(height, 2.0 * width)
            left, top = (width - w) / 2, (height - h) / 2
        expected = [left / width, top / height, w / width, h / height]
        assert boxes[row].tolist() == pytest.approx(expected, abs=1e-12)
    assert 0 < fallbacks < 200


@given(st.integers(1, 300), st.integers(1, 300), st.floats(0.01, 1.0), st.floats(1.0, 10.0), st.integers(0, 2**32))
def test_boxes_never_leave_the_image(height: int, width: int, smallest: float, widest: float, seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    area = smallest + (1 - smallest) * torch.rand(20, 10, generator=draws, dtype=torch.float64)
    ratio = torch.exp((2 * torch.rand(20, 10, generator=draws, dtype=torch.float64) - 1) * math.log(widest))
    boxes = crop_boxes(area, ratio, torch.rand(20, 2, generator=draws, dtype=torch.float64), (height, width), widest)
    start, extent = boxes[:, :2], boxes[:, 2:]
    assert (start >= 0).all()
    assert (extent > 0).all()
    assert (start + extent <= 1 + 1e-12).all()
