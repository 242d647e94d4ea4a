"""Recipes: what they draw, what they do to images and masks, and what they leave alone."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from unseen.data.augment import RECIPES, Augment
from unseen.errors import BadInput

CLASSES = torch.arange(6)
EVERYTHING = Augment(
    crop_min=0.3, flip=0.5, rotation=40, zoom_min=0.7, zoom_max=1.5, brightness=0.9, contrast=0.9, saturation=0.9, hue=0.5, grayscale=0.3
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(n: int = 6, channels: int = 3, height: int = 20, width: int = 20) -> Tensor:
    return torch.rand((n, channels, height, width), generator=rng(99))


def blobs(n: int, size: int) -> Tensor:
    """Smooth images whose threshold at one half is a region: a cone around a place of its own."""
    at = torch.rand((n, 2, 1, 1), generator=rng(5)) * size / 2 + size / 4
    rows, columns = torch.arange(size).view(1, -1, 1), torch.arange(size).view(1, 1, -1)
    distance = torch.hypot(rows - at[:, 0], columns - at[:, 1])
    return (1 - distance / (size / 3)).clamp(0, 1).unsqueeze(1).expand(-1, 3, -1, -1).contiguous()


# What is drawn


def test_draws_lie_in_their_ranges_and_spread_over_them() -> None:
    geometry = Augment(flip=0.25, rotation=30, zoom_min=0.8, zoom_max=1.2)
    drawn = replace(geometry, brightness=0.1, contrast=0.2, saturation=0.3, hue=0.4, grayscale=0.1).draw(20_000, (64, 64), rng())
    ranges = {
        "degrees": (-30, 30),
        "zoom": (0.8, 1.2),
        "brightness": (0.9, 1.1),
        "contrast": (0.8, 1.2),
        "saturation": (0.7, 1.3),
        "hue": (-0.4, 0.4),
    }
    for name, (low, high) in ranges.items():
        values = getattr(drawn, name)
        assert low <= values.min() < low + 0.01 * (high - low), name
        assert high - 0.01 * (high - low) < values.max() <= high, name
        assert values.mean().item() == pytest.approx((low + high) / 2, abs=0.01 * (high - low)), name
        assert values.std().item() == pytest.approx((high - low) / math.sqrt(12), rel=0.02), name
    assert drawn.mirrored.double().mean().item() == pytest.approx(0.25, abs=0.01)
    assert drawn.gray.double().mean().item() == pytest.approx(0.1, abs=0.01)


def test_crops_are_uniform_in_area_and_in_the_logarithm_of_the_ratio() -> None:
    left, top, wide, high = Augment(crop_min=0.2, crop_max=0.5).draw(20_000, (64, 64), rng()).box.unbind(1)
    area, ratio = wide * high, torch.log(wide / high)  # at most half the area and 4 / 3: every box fits at the first try
    assert area.min() >= 0.2
    assert area.max() <= 0.5
    assert area.mean().item() == pytest.approx(0.35, abs=0.003)
    assert ratio.abs().max() <= math.log(4 / 3) + 1e-12
    assert ratio.mean().item() == pytest.approx(0, abs=0.005)
    assert ratio.std().item() == pytest.approx(2 * math.log(4 / 3) / math.sqrt(12), rel=0.02)
    for start, extent in ((left, wide), (top, high)):
        assert (start / (1 - extent)).mean().item() == pytest.approx(0.5, abs=0.01)


def test_draws_are_independent_of_one_another() -> None:
    drawn = replace(EVERYTHING, crop_min=0.2, crop_max=0.5).draw(20_000, (64, 64), rng())  # boxes that fit at the first try
    left, top, wide, high = drawn.box.unbind(1)
    boxes = [left / (1 - wide), top / (1 - high), wide * high, wide / high]
    columns = [*boxes, *(getattr(drawn, f.name).double() for f in fields(drawn) if f.name != "box")]
    correlation = torch.corrcoef(torch.stack(columns)) - torch.eye(len(columns))
    assert correlation.abs().max() < 0.03


def test_one_knob_does_not_shift_the_draws_of_another() -> None:
    plain, more = Augment(flip=0.5).draw(50, (8, 8), rng()), Augment(flip=0.5, crop_min=0.5, hue=0.2).draw(50, (8, 8), rng())
    assert torch.equal(plain.mirrored, more.mirrored)


def test_samples_of_a_batch_differ() -> None:
    same = images(1).expand(6, -1, -1, -1)
    moved, _ = EVERYTHING(same, CLASSES, rng())
    assert all(not torch.allclose(moved[i], moved[j]) for i in range(6) for j in range(i))


def test_the_generator_alone_decides() -> None:
    x = images()
    first, again, other = (EVERYTHING(x, CLASSES, rng(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    stream = rng(1)
    assert torch.equal(EVERYTHING(x, CLASSES, stream)[0], first)
    assert not torch.equal(EVERYTHING(x, CLASSES, stream)[0], first)


# What is done


def test_nothing_to_do_returns_the_same_tensors_and_draws_nothing() -> None:
    x, generator = images(), rng()
    got, labels = Augment()(x, CLASSES, generator)
    assert got is x
    assert labels is CLASSES
    assert torch.equal(generator.get_state(), rng().get_state())


def test_what_was_given_is_not_written_to() -> None:
    for augment in (EVERYTHING, Augment(grayscale=1), Augment(hue=0.5), Augment(contrast=0.5)):
        x = images()
        augment(x, CLASSES, rng())
        assert torch.equal(x, images())


def test_a_sure_flip_flips_images_and_masks() -> None:
    x, y = images(height=9), (images(channels=2, height=9) > 0.5).to(torch.uint8)
    flipped, masks = Augment(flip=1.0)(x, y, rng())
    torch.testing.assert_close(flipped, x.flip(-1), atol=1e-5, rtol=0)
    assert torch.equal(masks, y.flip(-1))
    assert masks.dtype == torch.uint8


def test_flips_happen_to_the_samples_that_were_drawn() -> None:
    x, augment = images(40), Augment(flip=0.5)
    flipped, _ = augment(x, torch.zeros(40), rng(3))
    expected = torch.where(augment.draw(40, (20, 20), rng(3)).mirrored.view(-1, 1, 1, 1), x.flip(-1), x)
    torch.testing.assert_close(flipped, expected, atol=1e-5, rtol=0)


def test_masks_move_with_their_images() -> None:
    x = blobs(24, 64)
    y = torch.stack([x[:, 0] > 0.5, x[:, 0] > 0.25], 1).to(torch.uint8)
    augment = Augment(crop_min=0.5, flip=0.5, rotation=40, zoom_min=0.8, zoom_max=1.2)
    moved, masks = augment(x, y, rng())
    assert set(masks.unique().tolist()) == {0, 1}
    for structure, threshold in enumerate((0.5, 0.25)):
        seen = moved[:, 0] > threshold
        assert (masks[:, structure].bool() != seen).double().mean() < 0.02  # only the pixels on the outline may disagree
        assert (y[:, structure].bool() != seen).double().mean() > 0.05  # the image did move


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_masks_keep_their_type(dtype: torch.dtype) -> None:
    assert RECIPES["elcfs"](images(), (images(channels=2) > 0.5).to(dtype), rng())[1].dtype == dtype


def test_colour_leaves_masks_and_classes_alone() -> None:
    y = (images(channels=1) > 0.5).to(torch.uint8)
    assert Augment(brightness=0.5, hue=0.2, grayscale=0.5)(images(), y, rng())[1] is y
    assert EVERYTHING(images(), CLASSES, rng())[1] is CLASSES


def test_gray_images_have_equal_channels() -> None:
    gray, _ = Augment(crop_min=0.5, hue=0.5, grayscale=1.0)(images(), CLASSES, rng())
    assert torch.equal(gray[:, 0], gray[:, 1])
    assert torch.equal(gray[:, 0], gray[:, 2])


def test_jitter_comes_before_grayscale_and_after_the_move() -> None:
    """The luma of a gray sample is that of the jittered image, and contrast goes by the mean of the crop."""
    jitter = {"crop_min": 0.3, "contrast": 0.9, "hue": 0.5}
    gray, colour = (Augment(**jitter, grayscale=p)(images(), CLASSES, rng())[0] for p in (1.0, 0.0))
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    torch.testing.assert_close(gray[:, 0], (colour * weights).sum(1))
    crop = Augment(crop_min=0.3)(images(), CLASSES, rng())[0]
    contrasted = Augment(crop_min=0.3, contrast=0.3)(images().mul(0.4).add(0.3), CLASSES, rng())[0]  # far from being clamped
    mean = [(weights * batch).sum(1).mean((1, 2)) for batch in (crop * 0.4 + 0.3, contrasted)]
    torch.testing.assert_close(mean[0], mean[1])


def test_white_stays_white() -> None:
    """The four weights of a pixel can add up to more than 1 in single precision."""
    moved, _ = Augment(crop_min=0.3, rotation=40)(torch.ones(160, 1, 37, 51), torch.zeros(160), rng())
    assert moved.max() == 1
    assert moved.min() > 1 - 1e-6


@pytest.mark.parametrize("name", RECIPES)
def test_one_channel_works(name: str) -> None:
    x = images(channels=1)
    moved, _ = RECIPES[name](x, CLASSES, rng())
    assert moved.shape == x.shape
    assert torch.equal(moved, x) == (name == "none")


@pytest.mark.parametrize("name", RECIPES)
def test_an_empty_batch_works(name: str) -> None:
    moved, labels = RECIPES[name](images(0), torch.empty(0, dtype=torch.long), rng())
    assert moved.shape == (0, 3, 20, 20)
    assert len(labels) == 0


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5), st.sampled_from([1, 3]), st.integers(1, 40), st.integers(1, 40), st.sampled_from([*RECIPES.values(), EVERYTHING]),
    st.integers(0, 2**32), st.sampled_from(["noise", "black", "white"]),
)  # fmt: skip
def test_any_batch_keeps_shape_type_and_range(
    n: int, channels: int, height: int, width: int, augment: Augment, seed: int, kind: str
) -> None:
    x = (
        torch.rand((n, channels, height, width), generator=rng(seed))
        if kind == "noise"
        else torch.full((n, channels, height, width), float(kind == "white"))
    )
    y = (x[:, :1] > 0.5).to(torch.uint8)
    moved, masks = augment(x, y, rng(seed))
    assert (moved.shape, moved.dtype, masks.shape, masks.dtype) == (x.shape, x.dtype, y.shape, y.dtype)
    assert moved.min() >= 0
    assert moved.max() <= 1
    assert set(masks.unique().tolist()) <= set(y.unique().tolist())


# The recipes, and mistakes


def test_recipes_are_as_published() -> None:
    jitter = ("brightness", "contrast", "saturation", "hue")
    assert RECIPES["none"] == Augment()
    assert RECIPES["domainbed"] == Augment(crop_min=0.7, flip=0.5, grayscale=0.1, **dict.fromkeys(jitter, 0.3))
    assert RECIPES["jigen"] == Augment(crop_min=0.8, flip=0.5, grayscale=0.1, **dict.fromkeys(jitter, 0.4))
    assert RECIPES["fedadg-released"] == Augment(crop_min=0.7, flip=0.5, grayscale=0.1)
    released = RECIPES["fedsb-released"]
    assert released.zoom_min == released.zoom_max == 232 / 224
    assert released.crop_min == 1
    elcfs = RECIPES["elcfs"]
    assert elcfs.rotation > 0
    assert elcfs.zoom_min < 1 < elcfs.zoom_max
    assert elcfs.brightness == elcfs.hue == elcfs.grayscale == 0


def test_all_bad_knobs_are_told_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        Augment(flip=2, hue=0.6, crop_min=0.0)
    assert [problem.split()[0] for problem in caught.value.problems] == ["crop_min", "flip", "hue"]


def test_ranges_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(BadInput) as caught:
        Augment(crop_min=0.9, crop_max=0.5, zoom_min=1.2)
    assert len(caught.value.problems) == 2


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(2), "images are torch.uint8"),
        (torch.zeros(3, 4, 4), torch.zeros(3), r"expected float \[n, c, h, w\]"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(3), r"labels are \[3\]"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, 1, 8, 8), r"masks \[2, s, 4, 4\]"),
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4), r"masks \[2, s, 4, 4\]"),
        (torch.zeros(2, 5, 4, 4), torch.zeros(2), "images with 5 channels"),
    ],
)
def test_a_batch_of_another_kind_is_refused(x: Tensor, y: Tensor, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        RECIPES["domainbed"](x, y, rng())
