"""Gram matrices and style gaps, against loops and numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unseen.ops.mixstyle import mix_styles
from unseen.ops.style import RunningMoments, adain, channel_moments, gram, style_distance, style_gap


def gram_by_loop(maps: Tensor) -> Tensor:
    n, channels, height, width = maps.shape
    result = torch.zeros(n, channels, channels, dtype=maps.dtype)
    for sample in range(n):
        for i in range(channels):
            for j in range(channels):
                total = 0.0
                for y in range(height):
                    for x in range(width):
                        total += float(maps[sample, i, y, x] * maps[sample, j, y, x])
                result[sample, i, j] = total / (channels * height * width)
    return result


def test_gram_equals_the_loop():
    maps = torch.randn(2, 3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(gram(maps), gram_by_loop(maps))


def test_gram_does_not_see_where_a_feature_is():
    maps = torch.randn(1, 3, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(gram(maps), gram(maps.flip(3).transpose(2, 3)))


def test_style_distance_is_equation_4_of_gatys():
    """1 / (4 N^2 M^2) sum (G - A)^2 with Gram matrices that are not divided yet."""
    a, b = torch.randn(2, 1, 3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    raw = [maps.flatten(2)[0] @ maps.flatten(2)[0].T for maps in (a, b)]
    expected = (raw[0] - raw[1]).square().sum() / (4 * 3**2 * 4**2)
    torch.testing.assert_close(style_distance(gram(a), gram(b))[0], expected)


def gap_by_loop(a: list[list[float]], b: list[list[float]]) -> float:
    channels = range(len(a))
    power = [a[i][i] + b[i][i] for i in channels]
    apart = together = 0.0
    for i in channels:
        for j in channels:
            if power[i] and power[j]:
                x, y = (matrix[i][j] / math.sqrt(power[i] * power[j]) for matrix in (a, b))
                apart, together = apart + (x - y) ** 2, together + x**2 + y**2
    return math.sqrt(apart / together) if together else 0.0


def test_style_gap_by_hand():
    """A = diag(1, 1), B = diag(3, 0): p = (4, 1), A' = diag(1/4, 1), B' = diag(3/4, 0); 5/4 over 13/8."""
    a, b = (torch.diag(torch.tensor(values, dtype=torch.float64)) for values in ([1.0, 1.0], [3.0, 0.0]))
    assert float(style_gap(a, b)) == pytest.approx(math.sqrt((5 / 4) / (13 / 8)))


def test_style_gap_of_nothing_is_nothing():
    assert float(style_gap(torch.zeros(3, 3), torch.zeros(3, 3))) == 0


@given(channels=st.integers(1, 4), silent=st.integers(0, 4), seed=st.integers(0, 1000), scale=st.floats(0.01, 100))
def test_style_gap_is_symmetric_bounded_and_free_of_any_features_scale(channels: int, silent: int, seed: int, scale: float):
    maps = torch.randn(2, channels, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    maps[:, silent:] = 0
    a, b = gram(maps)
    gap = float(style_gap(a, b))
    assert gap == pytest.approx(gap_by_loop(a.tolist(), b.tolist()))
    assert gap == float(style_gap(b, a))
    assert float(style_gap(a, a)) == 0
    assert 0 <= gap <= 1 + 1e-12
    maps[:, 0] *= scale
    assert float(style_gap(*gram(maps))) == pytest.approx(gap)


def test_adain_gives_the_moments_that_were_asked_for_and_the_own_ones_change_nothing():
    torch.manual_seed(0)
    x, style = torch.randn(3, 2, 9, 7) * 3 + 1, torch.rand(3, 2, 2) + 0.5
    made = adain(x, style)
    torch.testing.assert_close(made.mean((2, 3)), style[:, 0], atol=1e-4, rtol=0)
    torch.testing.assert_close(made.std((2, 3), correction=0), style[:, 1], atol=1e-4, rtol=0)
    torch.testing.assert_close(adain(x, channel_moments(x)), x, atol=1e-5, rtol=0)
    even = torch.full((1, 2, 4, 4), 3.0)
    torch.testing.assert_close(adain(even, style[:1]).mean((2, 3)), style[:1, 0])


def test_adain_that_keeps_a_part_is_mixstyle_with_the_same_partner():
    torch.manual_seed(0)
    x, keep, partner = torch.randn(4, 3, 5, 5), torch.rand(4), torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(adain(x, channel_moments(x)[partner], keep), mix_styles(x, keep, partner), atol=1e-5, rtol=0)


def test_running_moments_are_those_of_all_images_together():
    torch.manual_seed(0)
    x = torch.randn(7, 3, 4, 5) * 2 + 100
    moments = RunningMoments()
    for some in x.split(3):
        moments.add(some)
    flat = x.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(moments.result().double(), torch.stack([flat.mean(1), flat.std(1, correction=0)]), atol=1e-5, rtol=1e-6)
