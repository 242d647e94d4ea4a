"""Styled digits: real handwriting in four styles, so that a shift between domains can be studied without a download.

The 1,797 digits are those of scikit-learn (Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI, 1998; 8 x 8 cells).
Every digit is drawn once, in one domain.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from unseen.data.domain import Domain, DomainDataset, Pixels
from unseen.task import Classification

__all__ = ["originals", "styled_digits"]

Floats = NDArray[np.float32]
Style = Callable[[Floats, np.random.Generator], Floats]  # distances [n, 32, 32] to colours in 0..1, [n, 3, 32, 32]

SIZE = 32  # pixels of a side
CELL = 3.0  # pixels that one cell of an original covers, so that 8 cells leave a margin
FINE = 4  # samples per cell in the smooth intermediate image
BORDER = 2  # empty cells around it
SEED = 20240  # any constant: it makes every call draw the same images


def styled_digits() -> DomainDataset:
    """Four domains of handwritten digits, 32 x 32 RGB: plain, textured, inverted, outline. Every call gives equal bytes."""
    cells, labels = _handwriting()
    domains = []
    for number, (name, rows) in enumerate(originals().items()):
        rng = np.random.default_rng([SEED, number])
        distances = _distances(_placed(cells[rows] / 16, rng), rng)
        images = np.rint(np.clip(STYLES[name].draw(distances, rng), 0, 1) * 255).astype(np.uint8)
        domains.append(Domain(name, images, labels[rows]))
    return DomainDataset(
        name="styled-digits",
        task=Classification(tuple("0123456789")),
        domains=tuple(domains),
        pixels=Pixels((0.5,) * 3, (0.5,) * 3),
        network="small_cnn",
        notes=("handwriting: scikit-learn's digits, each drawn in one domain only",),
    )


def originals() -> dict[str, NDArray[np.int64]]:
    """Which of scikit-learn's digits each domain draws: disjoint rows with the same mix of classes.

    Each class is dealt in file order, not shuffled: neighbours in the file look like one hand, though it names no writers.

    >>> {name: len(rows) for name, rows in originals().items()}
    {'plain': 600, 'textured': 480, 'inverted': 400, 'outline': 317}
    """
    _, labels = _handwriting()
    quantile = np.empty(len(labels))  # how far through its class a digit comes, from 0 to 1
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        quantile[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
    order = np.lexsort((labels, quantile))
    ends = np.cumsum([style.digits for style in STYLES.values()])
    return {name: np.sort(rows) for name, rows in zip(STYLES, np.split(order, ends[:-1]), strict=True)}


def _handwriting() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """scikit-learn's digits: 8 x 8 cells from 0 to 16, and which digit each is. Its file is read without it: to import it takes seconds."""
    package = importlib.util.find_spec("sklearn")
    assert package is not None and package.submodule_search_locations
    rows = np.loadtxt(Path(package.submodule_search_locations[0]) / "datasets/data/digits.csv.gz", delimiter=",")
    return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)


def _placed(cells: NDArray[np.float64], rng: np.random.Generator) -> Floats:
    """The digits enlarged smoothly to 32 x 32, each a little turned, scaled and shifted."""
    n = len(cells)
    padded = np.pad(cells.astype(np.float32), ((0, 0), (BORDER, BORDER), (BORDER, BORDER)))
    # One matrix enlarges every row and column: a cubic spline through three axes of the whole stack is twenty times slower.
    enlarge = ndimage.zoom(np.eye(padded.shape[1], dtype=np.float32), (FINE, 1), order=3, mode="grid-constant", grid_mode=True)
    smooth = enlarge @ padded @ enlarge.T
    angle, scale = np.radians(_each(rng, n, -10, 10)), _each(rng, n, 0.88, 1.1) * CELL / FINE
    down, right = _each(rng, n, -1.5, 1.5), _each(rng, n, -2, 2)
    middle = (SIZE - 1) / 2
    y, x = np.arange(SIZE, dtype=np.float32)[:, None] - middle - down, np.arange(SIZE, dtype=np.float32) - middle - right
    rows = (np.cos(angle) * y - np.sin(angle) * x) / scale + (smooth.shape[1] - 1) / 2
    columns = (np.sin(angle) * y + np.cos(angle) * x) / scale + (smooth.shape[2] - 1) / 2
    which = np.broadcast_to(np.arange(n)[:, None, None], rows.shape)
    placed: Floats = ndimage.map_coordinates(smooth, (which, rows, columns), order=1)
    return placed


def _distances(ink: Floats, rng: np.random.Generator) -> Floats:
    """About how many pixels each point lies inside (+) or outside (-) the pen stroke, whose width varies with the digit.

    To first order: the height above the contour's level, divided by the slope there.
    """
    slope = np.hypot(*np.gradient(ink, axis=(1, 2)))
    level = _each(rng, len(ink), 0.3, 0.5)
    return np.asarray((ink - level) / np.maximum(slope, 0.05), dtype=np.float32)


def _plain(distances: Floats, rng: np.random.Generator) -> Floats:
    """Light on dark, in greys, as scanned."""
    n = len(distances)
    return _over(_grey(rng, n, 0.02, 0.15), _grey(rng, n, 0.8, 1), _coverage(distances))


def _textured(distances: Floats, rng: np.random.Generator) -> Floats:
    """A coloured digit on a coloured fabric, told from it by being lighter or darker."""
    n = len(distances)
    weave = _weave(rng, n)
    dark, light = rng.uniform(0, 0.4, (n, 3, 1, 1)), rng.uniform(0.6, 1, (n, 3, 1, 1))
    dyed = rng.uniform(-0.3, 0.3, (n, 3, 1, 1))  # the fabric's second colour, away from the first
    lighter = rng.random((n, 1, 1, 1)) < 0.5
    fabric = np.where(lighter, dark, light) + weave[:, None] * (dyed + 0.08)
    return _over(fabric.astype(np.float32), np.where(lighter, light, dark), _coverage(distances))


def _inverted(distances: Floats, rng: np.random.Generator) -> Floats:
    """Dark on light and out of focus, on unevenly lit, noisy paper."""
    n = len(distances)
    page = _over(_grey(rng, n, 0.75, 1), _grey(rng, n, 0.05, 0.3), _coverage(distances))
    page = ndimage.gaussian_filter(page, (0, 0, 1.3, 1.3), mode="nearest")
    y, x = np.mgrid[-0.5 : 0.5 : SIZE * 1j, -0.5 : 0.5 : SIZE * 1j].astype(np.float32)
    light = 1 - 0.3 * (_each(rng, n, -1, 1) * y + _each(rng, n, -1, 1) * x)
    grain = 0.07 * rng.standard_normal((n, SIZE, SIZE), dtype=np.float32)
    return np.asarray(page * light[:, None] + grain[:, None], dtype=np.float32)


def _outline(distances: Floats, rng: np.random.Generator) -> Floats:
    """The digit's contour alone, a thin tinted line on a dark board."""
    n = len(distances)
    half = _each(rng, n, 0.7, 1.1)  # of the line's width, in pixels
    chalk = rng.uniform(0.7, 1, (n, 3, 1, 1)).astype(np.float32)
    board = rng.uniform(0, 0.25, (n, 3, 1, 1)).astype(np.float32)
    return _over(board, chalk, _coverage(half - np.abs(distances)))


@dataclass(frozen=True)
class _Style:
    digits: int  # how many of the originals it draws
    draw: Style


STYLES = {
    "plain": _Style(600, _plain),
    "textured": _Style(480, _textured),
    "inverted": _Style(400, _inverted),
    "outline": _Style(317, _outline),
}


def _weave(rng: np.random.Generator, n: int) -> Floats:
    """Two crossing waves and a mottle, each fabric its own: about -1..1, [n, 32, 32]."""
    y, x = np.arange(SIZE, dtype=np.float32)[:, None], np.arange(SIZE, dtype=np.float32)
    direction, phases = _each(rng, n, 0, np.pi), [_each(rng, n, 0, 2 * np.pi) for _ in range(2)]
    waves = np.zeros((n, SIZE, SIZE), dtype=np.float32)
    for turn, phase in zip((0, np.pi / 2), phases, strict=True):
        along = np.cos(direction + turn) * x + np.sin(direction + turn) * y
        waves += np.sin(along * 2 * np.pi / _each(rng, n, 3, 9) + phase)
    mottle = ndimage.gaussian_filter(rng.standard_normal((n, SIZE, SIZE), dtype=np.float32), (0, 2, 2), mode="wrap")
    return np.asarray(0.4 * waves + 2 * mottle, dtype=np.float32)


def _coverage(distances: Floats) -> Floats:
    """How much of a pixel the ink covers: 0 or 1 but for a soft edge one pixel wide."""
    return np.asarray(np.clip(distances + 0.5, 0, 1)[:, None], dtype=np.float32)


def _over(ground: Floats, ink: Floats, coverage: Floats) -> Floats:
    return np.asarray(ground + (ink - ground) * coverage, dtype=np.float32)


def _each(rng: np.random.Generator, n: int, low: float, high: float) -> Floats:
    """One draw per sample, shaped to spread over its pixels."""
    return rng.uniform(low, high, (n, 1, 1)).astype(np.float32)


def _grey(rng: np.random.Generator, n: int, low: float, high: float) -> Floats:
    """One grey per sample, in three equal channels."""
    return np.repeat(_each(rng, n, low, high)[:, None], 3, axis=1)
