"""How stored bytes become a network's input, and back."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen.data.domain import IMAGENET, UNIT, Pixels

UNEVEN = Pixels((0.1, 0.0, 0.9), (2.0, 0.5, 0.03))


@given(st.sampled_from([IMAGENET, UNEVEN]), st.integers(0, 255))
def test_each_channel_is_shifted_and_scaled_to_the_bit(pixels: Pixels, byte: int) -> None:
    images = torch.full((2, 3, 4, 5), byte, dtype=torch.uint8) / 255
    before = images.clone()
    x = pixels.normalised(images)
    for channel in range(3):
        expected = (before[:, channel] - torch.tensor(pixels.mean[channel])) / torch.tensor(pixels.std[channel])
        assert torch.equal(x[:, channel], expected)
    assert torch.equal(images, before), "the images stay as they were"
    torch.testing.assert_close(pixels.restored(x), images)


def test_unit_pixels_stay_as_they_are() -> None:
    images = torch.rand(2, 7, 3, 3)
    assert torch.equal(UNIT.normalised(images), images) and torch.equal(UNIT.restored(images), images)
