"""Colour adjustments against PIL's ImageEnhance, colorsys, and loops over samples."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from unseen.ops.colour import blend_map, blended, grayscaled, turned_hue


def images(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def adjusted(x: Tensor, brightness: list[float], contrast: list[float], saturation: list[float]) -> Tensor:
    factors = (torch.tensor(f, dtype=torch.float64) for f in (brightness, contrast, saturation))
    return blended(x, blend_map(*factors, x.shape[1]).to(x.dtype))


def luma(image: Tensor) -> Tensor:
    return 0.299 * image[0] + 0.587 * image[1] + 0.114 * image[2]


def slowly(image: Tensor, b: float, k: float, s: float) -> Tensor:
    """One image, one step after the other, clamped at the end."""
    image = image * b
    image = k * image + (1 - k) * luma(image).mean()
    return (s * image + (1 - s) * luma(image)).clamp(0, 1)


def test_factors_of_one_return_the_input() -> None:
    x = images(3, 3, 6, 5)
    torch.testing.assert_close(adjusted(x, [1.0] * 3, [1.0] * 3, [1.0] * 3), x, atol=1e-14, rtol=0)


def test_each_sample_is_adjusted_by_its_own_factors() -> None:
    x = images(4, 3, 8, 7)
    brightness, contrast, saturation = [0.6, 1.4, 1.0, 0.9], [1.3, 0.5, 1.0, 1.1], [0.0, 1.4, 0.7, 1.2]
    expected = torch.stack([slowly(*row) for row in zip(x, brightness, contrast, saturation, strict=True)])
    torch.testing.assert_close(adjusted(x, brightness, contrast, saturation), expected, atol=1e-14, rtol=0)


@pytest.mark.parametrize("enhancer", ["Brightness", "Contrast", "Color"])
@pytest.mark.parametrize("factor", [0.0, 0.6, 1.4])
def test_as_pil_enhances(enhancer: str, factor: float) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    expected = np.asarray(getattr(ImageEnhance, enhancer)(Image.fromarray(pixels)).enhance(factor), dtype=float)
    x = torch.from_numpy(pixels).double().permute(2, 0, 1).unsqueeze(0) / 255
    factors = {"Brightness": 1.0, "Contrast": 1.0, "Color": 1.0} | {enhancer: factor}
    got = adjusted(x, [factors["Brightness"]], [factors["Contrast"]], [factors["Color"]])[0].permute(1, 2, 0) * 255
    assert np.abs(got.numpy() - expected).max() < 1.6  # PIL rounds the luma and its mean to a whole byte, and cuts off the result


@pytest.mark.parametrize("turns", [-0.5, -0.3, 0.0, 0.1, 1 / 3, 0.5])
def test_hue_turns_as_in_hsv(turns: float) -> None:
    x = images(1, 3, 9, 9)
    x[0, :, 0] = torch.eye(3).repeat(1, 3).double()  # pure red, green and blue
    x[0, :, 1] = 0.4  # gray has no hue
    got = turned_hue(x, torch.tensor([turns], dtype=torch.float64))[0].flatten(1).T
    for pixel, result in zip(x[0].flatten(1).T.tolist(), got.tolist(), strict=True):
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        assert result == pytest.approx(colorsys.hsv_to_rgb((hue + turns) % 1, saturation, value), abs=1e-9)


def test_each_sample_turns_its_own_way() -> None:
    x = images(3, 3, 4, 4)
    turns = torch.tensor([0.2, 0.0, -0.4], dtype=torch.float64)
    one_by_one = torch.cat([turned_hue(x[i : i + 1], turns[i : i + 1]) for i in range(3)])
    assert torch.equal(turned_hue(x, turns), one_by_one)
    assert not torch.allclose(one_by_one[0], x[0])
    torch.testing.assert_close(one_by_one[1], x[1])


def test_grayscale_changes_the_chosen_samples_alone() -> None:
    x = images(4, 3, 5, 5)
    before = x.clone()
    got = grayscaled(x, torch.tensor([1, 3]))
    assert torch.equal(x, before)
    assert torch.equal(got[[0, 2]], x[[0, 2]])
    for sample in (1, 3):
        for channel in range(3):
            torch.testing.assert_close(got[sample, channel], luma(x[sample]))


def test_one_channel_knows_brightness_and_contrast_only() -> None:
    x = images(2, 1, 6, 6)
    got = adjusted(x, [0.8, 1.2], [0.7, 1.0], [0.1, 1.9])
    for image, result, b, k in zip(x, got, (0.8, 1.2), (0.7, 1.0), strict=True):
        torch.testing.assert_close(result, (b * (k * image + (1 - k) * image.mean())).clamp(0, 1))


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_black_and_white_stay_in_range(value: float) -> None:
    x = torch.full((2, 3, 4, 4), value)
    turned = turned_hue(x, torch.tensor([0.3, -0.2]))
    for result in (turned, grayscaled(x, torch.arange(2)), adjusted(x, [1.4, 0.6], [1.4, 0.6], [1.4, 0.6])):
        assert result.min() >= 0
        assert result.max() <= 1
    torch.testing.assert_close(turned, x)
