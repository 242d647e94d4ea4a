"""The digits of the single-source comparison: MNIST's first 10,000, as FedGCA trains on, and digits rendered from fonts.

    python benchmarks/evidence/digits.py --digits FOLDER --out digits
    unseen data prepare digits5 --from digits

FOLDER holds MNIST's, MNIST-M's and USPS's own files. The rendered digits take the place of SynthDigits, in its format and under its
name (`synth`): the fonts that come with matplotlib, random size, place, slant, colours and a second digit peeping in at the side.
"""

from __future__ import annotations

import argparse
import gzip
import shutil
from pathlib import Path

import matplotlib
import numpy as np
import scipy.io
from PIL import Image, ImageDraw, ImageFilter, ImageFont

FIRST, RENDERED, SIDE = 10_000, 3_000, 32


def fonts() -> list[Path]:
    """Fonts with plain digits; the others of that folder hold symbols."""
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    plain = ("DejaVuSans", "DejaVuSerif", "STIXGeneral", "cmr", "cmss", "cmtt", "cmb")
    return sorted(path for path in folder.glob("*.ttf") if path.stem.startswith(plain) and "Display" not in path.stem)


def rendered(rng: np.random.Generator, files: list[Path], digit: int) -> np.ndarray:
    """One digit as an RGB image, drawn at four times its size so that its edges are smooth."""
    big = 4 * SIDE
    font = ImageFont.truetype(str(rng.choice(np.array([str(f) for f in files]))), int(rng.integers(60, 105)))
    colours = rng.integers(0, 256, (3, 3))
    while abs(colours[0].mean() - colours[1].mean()) < 40:  # a digit must be seen against its ground
        colours = rng.integers(0, 256, (3, 3))
    image = Image.new("RGB", (big, big), tuple(colours[0]))
    draw = ImageDraw.Draw(image)
    centre = big / 2 + rng.uniform(-14, 14, 2)
    side = float(rng.choice([-1, 1]))
    if rng.random() < 0.5:
        draw.text((centre[0] + side * rng.uniform(70, 90), centre[1]), str(rng.integers(10)), tuple(colours[2]), font, anchor="mm")
    draw.text(tuple(centre), str(digit), tuple(colours[1]), font, anchor="mm")
    image = image.rotate(rng.uniform(-18, 18), Image.Resampling.BILINEAR, fillcolor=tuple(colours[0]))
    image = image.filter(ImageFilter.GaussianBlur(rng.uniform(0, 4))).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    noisy = np.asarray(image, dtype=np.float64) + rng.normal(0, rng.uniform(0, 12), (SIDE, SIDE, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def first_of_mnist(folder: Path, out: Path) -> None:
    """The first images and labels of the training files, in their own format."""
    for name, header, each in (("train-images-idx3-ubyte.gz", 16, 28 * 28), ("train-labels-idx1-ubyte.gz", 8, 1)):
        data = gzip.decompress((folder / name).read_bytes())
        kept = data[:4] + FIRST.to_bytes(4, "big") + data[8 : header + FIRST * each]
        (out / name).write_bytes(gzip.compress(kept, mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--digits", type=Path, required=True, help="folder with MNIST's, MNIST-M's and USPS's files")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True)
    first_of_mnist(given.digits, given.out)
    for file in sorted(given.digits.iterdir()):
        if not file.name.startswith(("train-", "t10k-")):
            shutil.copyfile(file, given.out / file.name)
    rng, labels = np.random.default_rng(0), np.arange(RENDERED) % 10
    images = np.stack([rendered(rng, fonts(), int(digit)) for digit in labels])
    scipy.io.savemat(
        given.out / "synth_test_32x32.mat", {"X": images.transpose(1, 2, 3, 0), "y": labels.reshape(-1, 1)}, do_compression=True
    )
    print(f"{FIRST} of MNIST and {RENDERED} digits from {len(fonts())} fonts in {given.out}")


if __name__ == "__main__":
    main()
