"""What amplitudes of images tell: whether an image is among them, and what it looks like.

A window of a spectrum is a fingerprint of its image if it left exact and alone. Phases did not leave; hybrid input and output with a
shrinking support (Fienup, 1982; Marchesini, 2003) finds images that have the amplitudes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from torch import Tensor

from unseen.payload import Payload, declarations

__all__ = ["banks_in", "likeness_of_shapes", "nearest_window", "retrieved", "whole_spectrum", "window_of"]

Floats = NDArray[np.float64]
_STARTS, _STEPS = 3, 1200
_CLOSE = 0.02  # relative misfit of the amplitudes at which a start is good enough


def banks_in(up: Payload) -> Iterator[tuple[str, Tensor]]:
    """The fields of an answer that carry spectra as windows [images or groups, channels, 2 b + 1, b + 1]."""
    for name, told in declarations(type(up)).items():
        value: Any = getattr(up, name)
        if told.kind == "spectrum" and isinstance(value, Tensor) and value.ndim == 4 and value.shape[2] % 2 and len(value):
            yield name, value


def window_of(images: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The amplitudes of images in a window [2 a + 1, b + 1] of low frequencies."""
    tall, wide = (shape[-2] - 1) // 2, shape[-1] - 1
    spectrum: Tensor = torch.fft.fft2(images.double()).abs()
    rows = torch.arange(-tall, tall + 1) % images.shape[-2]
    return spectrum[..., rows, :][..., : wide + 1]


def nearest_window(images: Tensor, bank: Tensor) -> Floats:
    """Minus the distance from each image's own window to the nearest that left: larger for an image that is among them."""
    own = window_of(images, tuple(bank.shape)).flatten(1)
    distances = torch.cdist(own, bank.double().flatten(1), compute_mode="donot_use_mm_for_euclid_dist").amin(1)
    return np.asarray(-distances.numpy(), dtype=np.float64)


def whole_spectrum(window: Floats, size: tuple[int, int]) -> Floats:
    """The half window [2 a + 1, b + 1] as a whole spectrum; what is not known is NaN."""
    (height, width), tall = size, (window.shape[0] - 1) // 2
    spectrum = np.full(size, np.nan)
    for row, u in enumerate(range(-tall, tall + 1)):
        for v in range(window.shape[1]):
            spectrum[u % height, v % width] = spectrum[-u % height, -v % width] = window[row, v]
    return spectrum


def retrieved(amplitudes: Floats, rng: np.random.Generator, until: float, starts: int = _STARTS, steps: int = _STEPS) -> Floats:
    """An image of values in 0 to 1 with these amplitudes, as far as they are known."""
    size = amplitudes.shape
    known = ~np.isnan(amplitudes)
    known[0, 0] = False  # the mean is free
    wanted = np.where(known, amplitudes, 0)
    best, least = rng.random(size), float("inf")
    for _ in range(starts):
        support = np.zeros(size, bool)
        tall, wide = (int(rng.integers(max(1, side // 2), side)) for side in size)
        support[:tall, :wide] = True
        x = rng.random(size) * support
        for step in range(steps):
            spectrum = np.fft.fft2(x)
            y = np.fft.ifft2(np.where(known, wanted * np.exp(1j * np.angle(spectrum)), spectrum)).real
            if step % 100 < 80:
                fits = support & (y >= 0) & (y <= 1)
                x = np.where(fits, y, np.where(support & (y > 1), x + 0.9 * (1 - y), x - 0.9 * y))
            else:
                x = np.where(support, y.clip(0, 1), 0)
            if step % 100 == 99:
                smooth = gaussian_filter(x.clip(0), max(0.7, 1.6 - step / 1500))
                support = smooth > 0.1 * smooth.max()
                if time.monotonic() > until:
                    break
        x = np.where(support, x.clip(0, 1), 0)
        misfit = float(np.linalg.norm((np.abs(np.fft.fft2(x)) - wanted)[known]))
        error = misfit / max(float(np.linalg.norm(wanted[known])), 1e-12)
        if error < least:
            best, least = x, error
        if error < _CLOSE or time.monotonic() > until:
            break
    return best


def likeness_of_shapes(found: Floats, true: Floats) -> float:
    """The largest correlation over shifts and the half turn, which amplitudes do not tell."""
    best, centred = 0.0, true - true.mean()
    for image in (found, found[::-1, ::-1]):
        other = image - image.mean()
        scale = np.linalg.norm(other) * np.linalg.norm(centred) + 1e-9
        best = max(best, float(np.fft.ifft2(np.fft.fft2(centred) * np.conj(np.fft.fft2(other))).real.max() / scale))
    return best
