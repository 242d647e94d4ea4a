"""BigAug's nine transforms against slow versions, image and mask together, and nothing where nothing is drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from unseen import BadInput, Experiment, FedAvg
from unseen.data.augment import RECIPES
from unseen.data.bigaug import BigAug
from unseen.data.domain import DomainDataset
from unseen.ops.intensity import blurred, gamma_corrected, rescaled, sharpened, with_noise
from unseen.runs.watch import Silent
from unseen.training import train

STILL: dict[str, Any] = {
    "sharpen_min": 0.0, "sharpen_max": 0.0, "blur_min": 0.01, "blur_max": 0.01, "noise_min": 0.0, "noise_max": 0.0, "brightness": 0.0,
    "gamma_min": 1.0, "gamma_max": 1.0, "perturbation": 0.0, "rotation": 0.0, "zoom_min": 1.0, "zoom_max": 1.0, "elastic": 0.0,
}  # fmt: skip


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 3, c: int = 2, side: int = 9) -> Tensor:
    return torch.rand(n, c, side, side + 2, generator=rng(9), dtype=torch.float64)


def slow_blur(plane: Any, sigma: float) -> Any:
    """A Gaussian over all pixels in reach, edges repeated."""
    reach, made = 12, np.zeros_like(plane)
    at = range(-reach, reach + 1)
    weights = np.array([[math.exp(-0.5 * (i * i + j * j) / sigma**2) for j in at] for i in at])
    for r in range(plane.shape[0]):
        for c in range(plane.shape[1]):
            rows, columns = (np.clip(np.arange(k - reach, k + reach + 1), 0, s - 1) for k, s in ((r, plane.shape[0]), (c, plane.shape[1])))
            made[r, c] = (weights * plane[np.ix_(rows, columns)]).sum() / weights.sum()
    return made


def test_quality_and_appearance_as_loops_have_them() -> None:
    x, sigma = images(), torch.tensor([0.3, 1.5, 0.9], dtype=torch.float64)
    blur, sharp = blurred(x, sigma), sharpened(x, sigma, sigma.flip(0), torch.tensor([10.0, 20.0, 30.0]))
    gamma, factor, shift = torch.tensor([0.5, 4.5, 2.0]), torch.tensor([0.9, 1.1, 1.0]), torch.tensor([0.1, -0.1, 0.05])
    noise = torch.randn(x.shape, generator=rng(4), dtype=torch.float64)
    noisy, corrected, scaled = with_noise(x, noise, factor), gamma_corrected(x, gamma), rescaled(x, factor, shift)
    for n in range(3):
        own = x[n].numpy()
        for c in range(2):
            once = slow_blur(own[c], float(sigma[n]))
            assert np.allclose(blur[n, c], once, atol=1e-4)
            assert np.allclose(sharp[n, c], once + 10 * (n + 1) * (once - slow_blur(once, float(sigma[2 - n]))), atol=5e-3)
        low, high, middle, spread = own.min(), own.max(), own.mean(), own.std()
        assert np.allclose(corrected[n], low + (high - low) * ((own - low) / (high - low)) ** float(gamma[n]))
        assert np.allclose(scaled[n], middle + float(factor[n]) * (own - middle) + float(shift[n]) * spread)
        assert np.allclose(noisy[n], own + float(factor[n]) * spread * noise[n].numpy())


def test_without_probability_or_strength_nothing_changes() -> None:
    x, y = images(), torch.arange(3)
    same, labels = BigAug(p=0.0)(x, y, rng())
    assert same is x and labels is y
    still, labels = BigAug(p=1.0, **STILL)(x, y, rng())
    assert torch.allclose(still, x, atol=1e-12) and labels is y


@pytest.mark.parametrize(
    "knob", [{"rotation": 90.0}, {"zoom_min": 0.5, "zoom_max": 0.6}, {"elastic": 0.1}], ids=["turned", "small", "bent"]
)
def test_image_and_mask_move_together(knob: dict[str, float]) -> None:
    """A mask that is moved and an image that is 1 where the mask is 1 stay each other's threshold, but for the edge's own pixels."""
    mask = torch.zeros(6, 1, 40, 40)
    mask[:, :, 8:20, 14:34] = 1
    moved, moved_mask = BigAug(p=1.0, **{**STILL, **knob})(mask.clone(), mask.to(torch.uint8), rng(2))
    assert set(moved_mask.unique().tolist()) <= {0, 1} and moved_mask.dtype == torch.uint8
    assert ((moved > 0.5) != (moved_mask > 0)).float().mean() < 0.03
    assert (moved_mask != mask).float().mean() > 0.03 and not torch.equal(moved_mask[0], moved_mask[1])  # it moved, each its own way


def test_each_transform_acts_on_half_of_the_samples() -> None:
    x = images(400, 1, 8).float()
    for knob in ({"gamma_min": 3.0, "gamma_max": 3.0}, {"noise_min": 0.5, "noise_max": 0.5}, {"rotation": 20.0}, {"brightness": 0.5}):
        changed = (BigAug(**{**STILL, **knob})(x, torch.arange(400), rng(3))[0] - x).abs().amax((1, 2, 3)) > 1e-4
        assert float(changed.float().mean()) == pytest.approx(0.5, abs=0.1), knob


def test_the_recipe_stays_in_range_and_depends_on_its_generator_alone() -> None:
    x, recipe = images(8, 3, 20).float(), RECIPES["bigaug"]
    (one, _), (two, _), (other, _) = (
        recipe(x, torch.arange(8), rng(1)),
        recipe(x, torch.arange(8), rng(1)),
        recipe(x, torch.arange(8), rng(2)),
    )
    assert torch.equal(one, two) and not torch.equal(one, other) and one.min() >= 0 and one.max() <= 1 and torch.isfinite(one).all()
    flat, _ = BigAug(p=1.0)(torch.full((2, 1, 8, 8), 0.5), torch.arange(2), rng())
    assert torch.isfinite(flat).all()  # an image without spread
    with pytest.raises(BadInput, match="zoom_min is 2 and zoom_max is 1"):
        replace(BigAug(), zoom_min=2.0, zoom_max=1.0)


def test_it_trains_on_masks_and_on_classes(tiny: DomainDataset, tiny_masks: DomainDataset) -> None:
    for data in (tiny, tiny_masks):
        result = train(Experiment(FedAvg(batch=4, lr=0.01, steps=2), data, "c", rounds=1, augment="bigaug"), None, watch=Silent())
        assert all(torch.isfinite(v).all() for v in result.state.values())
