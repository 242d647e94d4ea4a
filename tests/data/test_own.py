"""Torch data sets as domains: whatever an image is, the same bytes; what does not fit is told in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from unseen.data.domain import IMAGENET, UNIT, DomainDataset
from unseen.data.own import dataset_of, open_data
from unseen.errors import BadInput
from unseen.own_code import Own
from unseen.task import Segmentation

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 10, 12), dtype=np.uint8)


def domain(image: Any, label: Any = 1) -> list[tuple[Any, Any]]:
    return [(image, label), (image, 0 if np.ndim(label) == 0 else label)]


def made(image: Any, label: Any = 1) -> DomainDataset:
    return dataset_of({"a": domain(image, label), "b": domain(image, label)}, "mine")


@pytest.mark.parametrize(
    "image",
    [
        torch.from_numpy(PIXELS),
        torch.from_numpy(PIXELS) / 255,
        PIXELS.transpose(1, 2, 0),
        PIXELS.transpose(1, 2, 0) / 255,
        PIXELS,
        Image.fromarray(PIXELS.transpose(1, 2, 0)),
    ],
    ids=["tensor", "floats", "array", "float array", "channels first", "pil"],
)
def test_images_of_any_kind_become_the_same_bytes(image: Any) -> None:
    found = made(image)
    assert np.array_equal(found["a"].images[0], PIXELS) and found["a"].images.flags.c_contiguous
    assert found.task.labels == ("0", "1") and found.pixels == IMAGENET and found.network == "small_cnn"


def test_grey_images_and_masks() -> None:
    mask = torch.zeros(10, 12, dtype=torch.bool)
    grey = made(torch.from_numpy(PIXELS[0]), mask)
    assert grey.channels == 1 and grey.pixels == UNIT and grey.task == Segmentation(("mask",)) and grey.network == "unet"
    assert made(PIXELS, np.zeros((2, 10, 12), dtype=np.uint8)).task.labels == ("mask-0", "mask-1")


@given(st.integers(1, 7), st.integers(1, 9))
def test_a_float_of_a_byte_is_that_byte(height: int, width: int) -> None:
    pixels = np.random.default_rng(height * width).integers(0, 256, (3, height + 4, width + 4), dtype=np.uint8)
    assert np.array_equal(made(torch.from_numpy(pixels).float() / 255)["b"].images[1], pixels)


class Named(list[Any]):
    classes = ("cat", "dog")


def test_classes_have_the_names_that_the_data_sets_give() -> None:
    assert dataset_of({"a": Named(domain(PIXELS)), "b": domain(PIXELS)}, "x").task.labels == ("cat", "dog")
    other = Named(domain(PIXELS))
    other.classes = ("dog", "cat")  # type: ignore[misc]
    with pytest.raises(BadInput, match="name their classes differently: cat, dog and dog, cat"):
        dataset_of({"a": Named(domain(PIXELS)), "b": other}, "x")


@pytest.mark.parametrize(
    ("domains", "says"),
    [
        ({}, "expected a torch Dataset per domain"),
        ([1, 2], "data is a list"),
        ({"a": 3}, "domain 'a' is a int"),
        ({"a": []}, "domain 'a' has no samples"),
        ({"a": [PIXELS]}, r"sample 0 of domain 'a' is a ndarray; expected a pair"),
        ({"a": [(PIXELS, 0), (PIXELS[:, 1:], 0)]}, "3 x 9 x 12 and the first is 3 x 10 x 12; resize"),
        ({"a": [(torch.randn(3, 8, 8) * 3, 0)]}, "leave out Normalize"),
        ({"a": [(PIXELS.astype(np.int64) * 2, 0)]}, "expected 0 to 255"),
        ({"a": [(np.zeros((7, 8, 9), dtype=np.uint8), 0)]}, "with c of 1, 3 or 4"),
        ({"a": [(PIXELS, 0.5)]}, "expected a class number, or masks"),
        ({"a": [(PIXELS, -1)]}, "labels run from -1"),
        ({"a": [(PIXELS, np.full((10, 12), 7))]}, "masks of 0 and 1"),
        ({"a": [(PIXELS, np.zeros((9, 12)))]}, "has masks of"),
        ({"a": domain(PIXELS), "b": domain(PIXELS, np.zeros((10, 12)))}, "differ in their labels"),
        ({"a": domain(PIXELS), "b": domain(PIXELS[:, 1:])}, "differ in image shape"),
    ],
)
def test_what_does_not_fit_is_told(domains: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        dataset_of(domains, "x")


def test_a_function_is_called_once_and_with_a_size_where_it_takes_one() -> None:
    calls: list[int | None] = []

    def sites(size: int = 8) -> dict[str, Any]:
        calls.append(size)
        return {name: domain(torch.zeros(3, size, size)) for name in "ab"}

    own = Own("memory:sites", sites)
    assert open_data(own, None).size == (8, 8) and open_data(own, 12).size == (12, 12) and open_data(own, 12).name == "sites"
    assert calls == [8, 12]
    with pytest.raises(BadInput, match="takes no `size`"):
        open_data(Own("memory:ready", {"a": domain(PIXELS)}), 12)
