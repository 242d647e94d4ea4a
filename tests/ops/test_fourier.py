"""Low frequencies against numpy's whole transform, written as the paper writes it."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from unseen.ops.fourier import draw_rows, low_amplitudes, low_spectrum, mix_amplitudes, restyle_amplitudes, take_rows, window

Array = NDArray[np.float64]


def images(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def by_whole_spectra(x: Array, other: Array, lam: float, alpha: float) -> Array:
    """Eq. 1-3 on the shifted spectra of two images [H, W]; the mask M is 1 where |h| <= alpha H and |w| <= alpha W."""
    own, theirs = np.fft.fftshift(np.fft.fft2(x)), np.fft.fftshift(np.fft.fft2(other))
    h, w = (np.arange(side) - side // 2 for side in x.shape)
    tall, wide = (round(alpha * side * 1e6) // 10**6 for side in x.shape)
    mask = (np.abs(h) <= tall)[:, None] * (np.abs(w) <= wide)[None]
    amplitude = ((1 - lam) * np.abs(own) + lam * np.abs(theirs)) * mask + np.abs(own) * (1 - mask)
    result: Array = np.fft.ifft2(np.fft.ifftshift(amplitude * np.exp(1j * np.angle(own)))).real
    return result


def test_equation_1_by_its_double_sum() -> None:
    x = images(5, 4, dtype=torch.float64)
    for u in (-1, 0, 1):
        for v in (0, 1):
            total = sum(float(x[h, w]) * cmath.exp(-2j * math.pi * (h * u / 5 + w * v / 4)) for h in range(5) for w in range(4))
            assert complex(low_spectrum(x, 0.25)[u + 1, v]) == pytest.approx(total, abs=1e-12)


@given(st.integers(3, 17), st.integers(3, 17), st.floats(0, 0.49), st.floats(0, 1), st.integers(0, 99))
def test_the_window_restyles_as_whole_spectra_do(height: int, width: int, alpha: float, lam: float, seed: int) -> None:
    x, other = images(2, 1, 2, height, width, seed=seed, dtype=torch.float64)
    got = restyle_amplitudes(x, low_amplitudes(other, alpha), torch.tensor([lam], dtype=torch.float64), alpha)
    for channel in range(2):
        wanted = by_whole_spectra(x[0, channel].numpy(), other[0, channel].numpy(), lam, alpha)
        np.testing.assert_allclose(got[0, channel], wanted, atol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_at_384_pixels_in_single_precision_the_result_is_the_same_to_1e_4(scale: float) -> None:
    x, other = images(2, 1, 1, 384, 384) * scale
    got = restyle_amplitudes(x, low_amplitudes(other, 0.01), torch.tensor([0.7]), 0.01)
    wanted = by_whole_spectra(x[0, 0].double().numpy(), other[0, 0].double().numpy(), 0.7, 0.01)
    assert np.abs(got[0, 0].numpy() - wanted).max() < 1e-4 * scale


def test_ratio_0_returns_the_image_and_ratio_1_takes_the_others_amplitudes() -> None:
    x, other = images(2, 3, 1, 32, 40)
    low = low_amplitudes(other, 0.1)
    assert torch.equal(restyle_amplitudes(x, low, torch.zeros(3), 0.1), x)
    assert torch.allclose(low_amplitudes(restyle_amplitudes(x, low, torch.ones(3), 0.1), 0.1), low, rtol=1e-4, atol=1e-3)


def test_phases_stay() -> None:
    x, other = images(2, 1, 1, 64, 48)
    before, after = (
        np.fft.fft2(t[0, 0].double()) for t in (x, restyle_amplitudes(x, low_amplitudes(other, 0.1), torch.tensor([0.9]), 0.1))
    )
    clear = (np.abs(before) > 1e-2) & (np.abs(after) > 1e-2)
    assert clear.mean() > 0.99
    turned = np.angle(after[clear] * before[clear].conj())
    assert np.abs(turned).max() < 1e-3


@pytest.mark.parametrize(("alpha", "bins"), [(0.0, 1), (0.003, 9), (0.01, 49)])
def test_how_many_bins_are_touched_at_384_pixels(alpha: float, bins: int) -> None:
    x = images(1, 1, 384, 384)
    low = low_amplitudes(x, alpha) + 100
    changed = np.abs(np.fft.fft2(restyle_amplitudes(x, low, torch.ones(1), alpha)[0, 0].double()) - np.fft.fft2(x[0, 0].double())) > 10
    assert changed.sum() == bins
    tall, wide = window((384, 384), alpha)
    assert (2 * tall + 1) * (2 * wide + 1) == bins


def test_one_image_of_384_pixels_gives_away_at_most_600_bytes() -> None:
    low = low_amplitudes(images(1, 3, 384, 384), 0.01)
    assert low.shape == (1, 3, 7, 4) and low.numel() * low.element_size() == 336


def test_several_styles_at_once_are_each_on_its_own() -> None:
    x, low, lam = images(2, 3, 12, 12), low_amplitudes(images(4, 2, 3, 12, 12, seed=1), 0.2), images(4, 2, seed=2)
    together = restyle_amplitudes(x, low, lam, 0.2)
    assert together.shape == (4, 2, 3, 12, 12)
    for style in range(4):
        for n in range(2):
            alone = restyle_amplitudes(x[n : n + 1], low[style, n : n + 1], lam[style, n : n + 1], 0.2)
            assert torch.allclose(together[style, n], alone[0], atol=1e-6)


def test_an_image_without_any_light_takes_the_style_with_phase_0() -> None:
    low = torch.zeros(1, 1, 1, 1).fill_(64.0)
    assert torch.allclose(restyle_amplitudes(torch.zeros(1, 1, 8, 8), low, torch.ones(1), 0.0), torch.ones(1, 1, 8, 8))


def test_a_side_times_alpha_that_is_whole_counts_its_last_bin() -> None:
    assert window((100, 300), 0.29) == (29, 87)  # 0.29 * 100 is 28.999999999999996


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 20), st.integers(0, 99))
def test_every_other_site_gives_one_of_its_own_spectra(sizes: list[int], n: int, seed: int) -> None:
    rows = draw_rows(sizes, n, None, torch.Generator().manual_seed(seed))
    assert rows.shape == (len(sizes), n)
    for site, size in enumerate(sizes):
        first = sum(sizes[:site])
        assert all(first <= row < first + size for row in rows[site].tolist())


def test_drawn_sites_are_equally_likely_whatever_they_hold() -> None:
    rows = draw_rows([1, 9, 30], 6000, 1, torch.Generator().manual_seed(0))[0]
    site = torch.bucketize(rows, torch.tensor([1, 10]), right=True)
    assert torch.allclose(site.bincount() / 6000, torch.full((3,), 1 / 3), atol=0.03)
    assert rows.unique().numel() == 40  # and within a site every spectrum
    assert torch.allclose(rows[site == 1].sub(1).bincount() / (site == 1).sum(), torch.full((9,), 1 / 9), atol=0.03)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2**31))
def test_rows_are_taken_as_if_all_parts_lay_end_to_end(sizes: list[int], seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    parts = [torch.rand(size, 2, generator=rng) for size in sizes]
    rows = torch.randint(sum(sizes), (3, 7), generator=rng)
    assert torch.equal(take_rows(parts, rows), torch.cat(parts)[rows])


@pytest.mark.parametrize("size", [(8, 6), (7, 9)])
def test_mixed_amplitudes_keep_the_phase_as_numpys_whole_transform_has_it(size: tuple[int, int]) -> None:
    pixels = images(3, 2, *size, dtype=torch.float64)
    partner, lam = torch.tensor([1, 2, 0]), torch.tensor([0.25, 1.0, 0.0], dtype=torch.float64)
    got = mix_amplitudes(pixels, partner, lam)
    for n in range(3):
        for c in range(2):
            own, theirs = (np.fft.fft2(pixels[row, c].numpy()) for row in (n, int(partner[n])))
            size_mixed = (1 - float(lam[n])) * np.abs(own) + float(lam[n]) * np.abs(theirs)
            want = np.fft.ifft2(size_mixed * np.exp(1j * np.angle(own)))
            assert np.allclose(want.imag, 0, atol=1e-12) and np.allclose(got[n, c], want.real)
    normalised = (pixels - 0.5) / 0.2
    assert torch.allclose(mix_amplitudes(normalised, partner, lam), (got - 0.5) / 0.2)  # the network's input, or pixels: the same image
    assert torch.equal(got[2], pixels[2])
