"""Patches: polyp or mucosa, cut from colonoscopies of four hospitals, a set for a test of `best` where colour and texture are the sign.

    python benchmarks/evidence/patches.py --polyps polyps --out patches

Reads polyps/HOSPITAL/images and masks, and writes patches/HOSPITAL/{polyp,mucosa}/NUMBER.png, a folder that `--data folder:patches` reads.
Each frame gives one patch of either class, both of the same size in the frame: a square as wide as the polyp around its middle, and one
elsewhere that holds no pixel of a polyp and little of the dark edge. A frame without room for the second gives neither.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from scipy import ndimage

SIDE, SEED = 64, 77_002
SMALLEST, LARGEST = 40, 112  # pixels of a frame of 256
DARK, MOST_DARK = 20, 0.05  # a pixel of the frame's edge, and the part of a patch that may be such
Square = tuple[int, int, int]  # top, left, side


def around_the_polyp(mask: np.ndarray) -> Square | None:
    """A square around the largest polyp, as wide as it is."""
    found, count = ndimage.label(mask)
    if not count:
        return None
    sizes = ndimage.sum_labels(mask, found, range(1, count + 1))
    rows, columns = ndimage.find_objects(found)[int(np.argmax(sizes))]
    side = int(np.clip(max(rows.stop - rows.start, columns.stop - columns.start), SMALLEST, LARGEST))
    top, left = (int(np.clip((at.start + at.stop - side) // 2, 0, len(mask) - side)) for at in (rows, columns))
    return top, left, side


def sums(of: np.ndarray, side: int) -> np.ndarray:
    """The sum over the square with each top and left."""
    total = np.pad(of.astype(np.int64).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    return total[side:, side:] - total[:-side, side:] - total[side:, :-side] + total[:-side, :-side]


def elsewhere(mask: np.ndarray, dark: np.ndarray, side: int, rng: np.random.Generator) -> Square | None:
    """A square of mucosa, any of them as likely."""
    free = (sums(mask, side) == 0) & (sums(dark, side) <= MOST_DARK * side**2)
    places = np.argwhere(free)
    if not len(places):
        return None
    top, left = places[rng.integers(len(places))]
    return int(top), int(left), side


def cut(image: Image.Image, square: Square) -> Image.Image:
    top, left, side = square
    return image.crop((left, top, left + side, top + side)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--polyps", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    counts = []
    for number, hospital in enumerate(sorted(folder for folder in given.polyps.iterdir() if folder.is_dir())):
        rng = np.random.default_rng([SEED, number])
        for label in ("polyp", "mucosa"):
            (given.out / hospital.name / label).mkdir(parents=True, exist_ok=True)
        made = 0
        for file in sorted((hospital / "images").iterdir()):
            image = Image.open(file).convert("RGB")
            mask = np.asarray(Image.open(next((hospital / "masks").glob(f"{file.stem}.*"))).convert("L")) > 127
            polyp = around_the_polyp(mask)
            mucosa = polyp and elsewhere(mask, np.asarray(image).max(2) < DARK, polyp[2], rng)
            if polyp and mucosa and sums(np.asarray(image).max(2) < DARK, polyp[2])[polyp[:2]] <= MOST_DARK * polyp[2] ** 2:
                for label, square in (("polyp", polyp), ("mucosa", mucosa)):
                    cut(image, square).save(given.out / hospital.name / label / f"{made:04}.png")
                made += 1
        counts.append(f"{hospital.name} {made}")
    print(f"patches of each class: {', '.join(counts)}; in {given.out}")


if __name__ == "__main__":
    main()
