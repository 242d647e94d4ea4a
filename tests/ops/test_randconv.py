"""Random convolutions against scipy's, and their statistics."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.signal import correlate2d

from unseen.ops import randconv
from unseen.ops.randconv import (
    STYLES,
    Operation,
    amplitudes,
    draw_kernel,
    draw_operation,
    mixing_chain,
    repeated,
    restyled,
    restyled_views,
    texture,
    tones,
)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_an_operation_is_a_zero_padded_correlation_mixed_with_the_image(size: int) -> None:
    x = torch.randn(2, 3, 6, 5, generator=rng(1))
    kernel = draw_kernel(size, 3, rng(2))
    got = Operation(kernel, 0.3)(x)
    for n in range(2):
        for out in range(3):
            conv = sum(correlate2d(x[n, c].numpy(), kernel[out, c].numpy(), mode="full") for c in range(3))
            edge = size // 2
            same = conv[edge : edge + 6, edge : edge + 5]
            assert np.allclose(got[n, out], 0.3 * x[n, out].numpy() + 0.7 * same, atol=1e-5)


@pytest.mark.parametrize("size", [1, 3, 5, 7, 17])
def test_kernels_preserve_the_variance_of_white_images(size: int) -> None:
    """He-normal without ReLU's factor 2: each output is a sum of c k^2 independent terms of variance 1 / (c k^2)."""
    kernels = torch.stack([draw_kernel(size, 3, rng(s)) for s in range(400)])
    assert float(kernels.var()) * 3 * size**2 == pytest.approx(1, rel=0.1)
    energy = kernels.square().sum((2, 3, 4))  # variance of an output of white noise, kernel by kernel
    assert float(energy.mean()) == pytest.approx(1, rel=0.05)


def test_sizes_and_mixing_factors_are_uniform() -> None:
    generator = rng()
    drawn = [draw_operation(1, generator) for _ in range(2000)]
    sizes = np.array([op.kernel.shape[-1] for op in drawn])
    assert {int(s) for s in sizes} == {1, 3, 5, 7}
    assert all(abs((sizes == s).mean() - 0.25) < 0.04 for s in (1, 3, 5, 7))
    keeps = np.array([op.keep for op in drawn])
    assert keeps.mean() == pytest.approx(0.5, abs=0.03) and keeps.var() == pytest.approx(1 / 12, abs=0.01)


def test_repetition_uses_the_same_weights_and_mixing_factor() -> None:
    x = torch.randn(1, 3, 8, 8, generator=rng(3))
    counts = set()
    for seed in range(40):
        operation, want = draw_operation(3, rng(seed)), [x]
        for _ in range(5):
            want.append(operation(want[-1]))
        got = repeated(x, rng(seed))
        counts.add(next(n for n in range(1, 6) if torch.equal(got, want[n])))
    assert counts == {1, 2, 3, 4, 5}


def test_mixtures_of_unchanged_images_are_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dirichlet weights add up to 1, and so do the two sides of every mixing."""
    x = torch.randn(2, 3, 9, 9, generator=rng(4))

    def delta(size: int, channels: int, generator: torch.Generator) -> torch.Tensor:
        kernel = torch.zeros(channels, channels, size, size)
        kernel[range(channels), range(channels), size // 2, size // 2] = 1
        return kernel

    monkeypatch.setattr(randconv, "draw_kernel", delta)
    for mix in (mixing_chain, texture):
        assert torch.allclose(mix(x, rng(5)), x, atol=1e-6)


def test_chains_are_one_to_three_operations_long(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []
    drawn = []
    original = randconv.draw_operation
    monkeypatch.setattr(randconv, "draw_operation", lambda c, g: drawn.append(1) or original(c, g))
    for seed in range(60):
        drawn.clear()
        mixing_chain(torch.zeros(1, 1, 8, 8), rng(seed))
        lengths.append(len(drawn))
    assert min(lengths) >= 3 and max(lengths) <= 9 and len(set(lengths)) >= 5  # three chains


def test_texture_works_at_four_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    original = randconv.draw_kernel
    monkeypatch.setattr(randconv, "draw_kernel", lambda s, c, g: sizes.append(s) or original(s, c, g))
    texture(torch.zeros(1, 3, 8, 8), rng())
    assert sizes == [5, 9, 13, 17]


def test_dirichlet_weights_have_its_moments() -> None:
    generator = rng()
    drawn = np.array([randconv._simplex(3, generator) for _ in range(4000)])
    assert np.allclose(drawn.sum(1), 1) and (drawn >= 0).all()
    assert np.allclose(drawn.mean(0), 1 / 3, atol=0.01) and np.allclose(drawn.var(0), 1 / 18, atol=0.005)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("channels", [1, 3])
def test_views_are_the_batch_and_its_copies(style: str, channels: int) -> None:
    x = torch.randn(4, channels, 8, 8, generator=rng(6))
    views = restyled_views(x, 3, [style], rng(7))
    assert views.shape == (16, channels, 8, 8) and torch.equal(views[:4], x) and torch.isfinite(views).all()
    copies = views[4:].view(3, 4, channels, 8, 8)
    assert all(not torch.allclose(copies[i], other) for i in range(3) for other in (x, copies[(i + 1) % 3]))
    assert torch.equal(views, restyled_views(x, 3, [style], rng(7)))


def test_no_copies_draw_nothing() -> None:
    x, generator = torch.randn(2, 3, 8, 8), rng(8)
    before = generator.get_state()
    assert restyled_views(x, 0, [*STYLES], generator) is x
    assert torch.equal(generator.get_state(), before)


def test_every_style_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(randconv, "STYLES", {name: (lambda x, _g, name=name: seen.append(name) or x) for name in STYLES})
    restyled_views(torch.zeros(1, 1, 4, 4), 60, [*STYLES], rng())
    assert {*seen} == {*STYLES}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", [[0, 1, 2, 1, 0, 2], [2, 0, 2, 0, 0, 0], [0] * 6])
def test_an_image_has_the_style_of_its_kind_and_no_other_image_is_touched(style: str, kind: list[int]) -> None:
    """The slow way: every style on the whole batch, and of each image the row of its kind."""
    x, draws = torch.randn(6, 3, 16, 16, generator=rng(8)), rng(9)
    expected = x.clone()
    for number in range(1, max(kind) + 1):
        torch.randint(0, 1, (), generator=draws)  # one style to draw from
        if number in kind:
            changed = STYLES[style](x, draws)
            for row in range(6):
                expected[row] = changed[row] if kind[row] == number else expected[row]
    made = restyled(x, torch.tensor(kind), [style], rng(9))
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=1e-5)
    same = [torch.equal(made[row], x[row]) for row in range(6)]
    assert same == [number == 0 for number in kind]
    channels_last = restyled(x.contiguous(memory_format=torch.channels_last), torch.tensor(kind), [style], rng(9))
    assert channels_last.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(channels_last, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_a_texture_is_the_mixture_of_four_convolutions_mixed_with_the_image(seed: int) -> None:
    x, draws = torch.randn(2, 3, 21, 19, generator=rng(9)), rng(seed)
    mixture = torch.zeros_like(x)
    for size, weight in zip((5, 9, 13, 17), randconv._simplex(4, draws), strict=True):
        mixture += weight * F.conv2d(x, draw_kernel(size, 3, draws), padding=size // 2)
    keep = float(torch.rand((), generator=draws))
    torch.testing.assert_close(texture(x, rng(seed)), keep * x + (1 - keep) * mixture, atol=1e-5, rtol=1e-5)


def test_amplitudes_keep_the_phases_and_stay_between_the_two_images() -> None:
    x = torch.rand(5, 3, 8, 6, generator=rng(3), dtype=torch.float64)
    made, draws = amplitudes(x, rng(4)), rng(4)
    circle, ratio = torch.randperm(5, generator=draws).tolist(), torch.rand(5, generator=draws)
    for n in range(5):
        own, other = (np.fft.fft2(x[i].numpy()) for i in (n, circle[(circle.index(n) + 1) % 5]))
        mixed = ((1 - float(ratio[n])) * np.abs(own) + float(ratio[n]) * np.abs(other)) * np.exp(1j * np.angle(own))
        assert np.allclose(made[n].numpy(), np.fft.ifft2(mixed).real, atol=1e-6)


def test_tones_are_an_exponent_a_factor_and_a_shift_within_the_batchs_range() -> None:
    x = torch.randn(4, 3, 5, 5, generator=rng(5), dtype=torch.float64)
    made, draws = tones(x, rng(6)), 2 * torch.rand(3, 4, 3, generator=rng(6)).double() - 1
    for n in range(4):
        for c in range(3):
            low, high = float(x[:, c].min()), float(x[:, c].max())
            exponent, factor, shift = 2.0 ** float(draws[0, n, c]), 1.5 ** float(draws[1, n, c]), 0.25 * float(draws[2, n, c])
            unit = (x[n, c].numpy() - low) / (high - low)
            assert np.allclose(made[n, c].numpy(), np.clip(unit**exponent * factor + shift, 0, 1) * (high - low) + low, atol=1e-9)


def test_tones_of_an_even_batch_stay_finite() -> None:
    assert torch.isfinite(tones(torch.full((2, 1, 4, 4), 0.5), rng())).all()
