"""Rotated digits: MNIST in four domains, each under an angle of its own, with images that no other domain and no other table has.

    python benchmarks/evidence/rotated.py --digits FOLDER --out rotated

FOLDER holds MNIST's own files. Writes rotated/ANGLE/DIGIT/NUMBER.png, a folder that `--data folder:rotated` reads. The images are the
20,001st to the 24,000th of the training part, a thousand for each angle; digits.py takes the first 10,000.
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

import numpy as np
from PIL import Image

ANGLES, EACH, BEGIN, SIDE = (0, 25, 50, 75), 1_000, 20_000, 28


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--digits", type=Path, required=True, help="folder with MNIST's files")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    pixels = gzip.decompress((given.digits / "train-images-idx3-ubyte.gz").read_bytes())
    images = np.frombuffer(pixels, np.uint8, offset=16).reshape(-1, SIDE, SIDE)
    labels = np.frombuffer(gzip.decompress((given.digits / "train-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8)
    for part, angle in enumerate(ANGLES):
        for number in range(BEGIN + part * EACH, BEGIN + (part + 1) * EACH):
            folder = given.out / f"deg{angle:02}" / str(labels[number])
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(images[number]).rotate(angle, Image.Resampling.BILINEAR).save(folder / f"{number}.png")
    print(f"{EACH} digits under each of {len(ANGLES)} angles in {given.out}")


if __name__ == "__main__":
    main()
