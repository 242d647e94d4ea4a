"""Cells: drawn tissue of four laboratories with masks of the nuclei, a set for the last test of `best` on masks.

    python benchmarks/evidence/cells.py --out cells

Writes cells/LAB/images/NUMBER.png and cells/LAB/masks/NUMBER.png, a folder that `--data folder:cells` reads. Laboratories differ in
their stains, in how much stain they take, in sharpness, noise, light and magnification. Fibres, red blood cells and dirt are there to
mislead. Nothing is taken from real slides.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

SIDE, EACH, SEED = 64, 60, 77_001
Colour = tuple[float, float, float]


@dataclass(frozen=True)
class Lab:
    """How a laboratory stains and looks. Colours are what a stain lets through, from 0 to 1."""

    name: str
    nucleus: Colour
    tissue: Colour
    strength: float  # of the stains; 1: as drawn
    radius: float  # of a nucleus in pixels, on average
    crowd: int  # nuclei in an image, on average
    blur: float
    noise: float
    light: Colour  # of the lamp
    shade: float  # light lost from one side to the other


LABS = (
    Lab("basel", (0.35, 0.22, 0.55), (0.93, 0.68, 0.78), 1.0, 5.0, 16, 0.5, 0.02, (1.0, 1.0, 1.0), 0.1),
    Lab("delhi", (0.52, 0.32, 0.50), (0.97, 0.74, 0.70), 0.65, 5.5, 14, 0.8, 0.03, (1.0, 0.94, 0.84), 0.25),
    Lab("lagos", (0.20, 0.24, 0.50), (0.80, 0.72, 0.90), 1.25, 4.2, 22, 0.4, 0.06, (0.88, 0.95, 1.0), 0.15),
    Lab("quito", (0.45, 0.20, 0.36), (0.90, 0.60, 0.62), 0.85, 6.8, 10, 1.2, 0.03, (0.95, 0.90, 0.95), 0.4),
)


def ellipse(rng: np.random.Generator, radius: float, longest: float) -> np.ndarray:
    """A place in the image where an ellipse of random shape lies: its distance from the edge, above 0 inside."""
    down, across = np.mgrid[:SIDE, :SIDE].astype(float)
    y, x = rng.uniform(-4, SIDE + 4, 2)
    turn, ratio = rng.uniform(0, np.pi), rng.uniform(1, longest)
    along = ((down - y) * np.sin(turn) + (across - x) * np.cos(turn)) / ratio**0.5
    beside = ((down - y) * np.cos(turn) - (across - x) * np.sin(turn)) * ratio**0.5
    angle = np.arctan2(beside, along)
    uneven = 1 + 0.12 * np.sin(2 * angle + rng.uniform(0, 6)) + 0.08 * np.sin(3 * angle + rng.uniform(0, 6))
    return radius * uneven - np.hypot(along, beside)


def cloud(rng: np.random.Generator, width: float) -> np.ndarray:
    """Smooth noise of deviation 1."""
    smooth = ndimage.gaussian_filter(rng.standard_normal((SIDE, SIDE)), width, mode="wrap")
    return smooth / smooth.std()


def drawn(rng: np.random.Generator, lab: Lab) -> tuple[np.ndarray, np.ndarray]:
    """An image, and the mask of its nuclei. What stains take of the light adds up in its logarithm."""
    of_tissue = 0.8 + 0.25 * cloud(rng, 5) + 0.15 * np.clip(cloud(rng, 1) * cloud(rng, 6), -2, 2)  # fibres and gaps
    of_nuclei, mask = np.zeros((SIDE, SIDE)), np.zeros((SIDE, SIDE), bool)
    for _ in range(max(3, rng.poisson(lab.crowd))):
        depth = ellipse(rng, lab.radius * rng.uniform(0.7, 1.35), 1.9)
        inside = depth > 0
        grains = 1 + 0.25 * cloud(rng, 1.0) + 0.3 * (depth < 1.2)  # chromatin, and the membrane around it
        of_nuclei[inside] = np.maximum(of_nuclei, rng.uniform(0.6, 1.1) * grains)[inside]
        mask |= inside
    for _ in range(rng.poisson(3)):  # red blood cells: round, of the tissue's colour but fuller, and pale in the middle
        depth = ellipse(rng, rng.uniform(2.5, 4.0) * lab.radius / 5, 1.2)
        of_tissue += np.where((depth > 0) & ~mask, 1.5 - 0.25 * np.maximum(depth, 0), 0)
    for _ in range(rng.poisson(2)):  # dirt: small and dark
        depth = ellipse(rng, rng.uniform(0.7, 1.6), 1.5)
        of_nuclei += np.where((depth > 0) & ~mask, 1.3, 0)
    taken = lab.strength * (of_tissue[..., None] * -np.log(lab.tissue) + of_nuclei[..., None] * -np.log(lab.nucleus))
    towards = rng.uniform(0, 2 * np.pi)
    across = np.linspace(-1, 1, SIDE)
    shade = 1 - lab.shade * (0.5 + 0.5 * (across[None, :] * np.cos(towards) + across[:, None] * np.sin(towards)) / 1.42)
    seen = np.exp(-np.maximum(taken, 0)) * np.array(lab.light) * shade[..., None]
    seen = np.stack([ndimage.gaussian_filter(seen[..., channel], lab.blur) for channel in range(3)], -1)
    seen += lab.noise * rng.standard_normal(seen.shape)
    return (np.clip(seen, 0, 1) * 255).round().astype(np.uint8), mask


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    out: Path = parser.parse_args().out
    for number, lab in enumerate(LABS):
        rng = np.random.default_rng([SEED, number])
        for what in ("images", "masks"):
            (out / lab.name / what).mkdir(parents=True, exist_ok=True)
        for image in range(EACH):
            pixels, mask = drawn(rng, lab)
            Image.fromarray(pixels).save(out / lab.name / "images" / f"{image:03}.png")
            Image.fromarray(mask.astype(np.uint8) * 255).save(out / lab.name / "masks" / f"{image:03}.png")
    print(f"{EACH} images of each of {len(LABS)} laboratories in {out}")


if __name__ == "__main__":
    main()
