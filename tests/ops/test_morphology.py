"""Erosion and dilation against scipy."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from unseen.ops.morphology import dilate, edge_regions, erode


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 6), st.floats(0, 1), st.integers(0, 99))
def test_as_scipys_default_element_does(height: int, width: int, steps: int, share: float, seed: int) -> None:
    mask = np.random.default_rng(seed).random((height, width)) < share
    for dtype in (torch.uint8, torch.float32):
        ours = torch.from_numpy(mask).to(dtype)
        assert np.array_equal(erode(ours, steps).numpy(), ndimage.binary_erosion(mask, iterations=steps))
        assert np.array_equal(dilate(ours, steps).numpy(), ndimage.binary_dilation(mask, iterations=steps))


def test_regions_lie_on_either_side_of_the_edge() -> None:
    mask = torch.zeros(1, 2, 20, 20, dtype=torch.uint8)
    mask[0, 0, 6:12, 6:12] = 1
    boundary, background = edge_regions(mask, 1, 5)
    assert boundary[0, 0].sum() == 20  # the rim of a 6 x 6 square
    assert background[0, 0].sum() == 4 * 6 * 5 + 4 * 10  # five rows on each side, and 1 + 2 + 3 + 4 pixels in each corner
    assert not (boundary & background).any() and not ((1 - mask) & boundary).any() and not (mask & background).any()
    assert not boundary[0, 1].any() and not background[0, 1].any()  # an empty mask has neither


def test_a_full_mask_has_no_background() -> None:
    boundary, background = edge_regions(torch.ones(1, 1, 8, 8, dtype=torch.uint8), 1, 5)
    assert boundary.any() and not background.any()
