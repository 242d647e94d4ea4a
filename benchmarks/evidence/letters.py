"""Letters in four kinds of type: lower-case letters printed with serifs, without, by a typewriter and by hand.

    python benchmarks/evidence/letters.py --fonts FOLDER --out letters

FOLDER holds the font files below, wherever in it; on Debian they come in the packages named beside them. Writes
letters/KIND/LETTER/NUMBER.png, a folder that `--data folder:letters` reads: for each kind eight fonts, six images of each of their letters,
with random size, place, ink, paper and sharpness. No kind shares a font with another.
"""

from __future__ import annotations

import argparse
import string
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

KINDS = {
    "sans": {
        "Lato-Regular.ttf": "fonts-lato",
        "Cabin-Regular.otf": "fonts-cabin",
        "Cantarell-Bold.otf": "fonts-cantarell",
        "Carlito-Regular.ttf": "fonts-crosextra-carlito",
        "Karla-Regular.otf": "fonts-karla",
        "LeagueSpartan-Regular.otf": "fonts-league-spartan",
        "Manrope-SemiBold.ttf": "fonts-manrope",
        "ClearSans-Italic.ttf": "fonts-clear-sans",
    },
    "serif": {
        "Caladea-Regular.ttf": "fonts-crosextra-caladea",
        "JunicodeTwoBeta-Regular.otf": "fonts-junicode",
        "LindenHill.otf": "fonts-lindenhill",
        "GoudyBookletter1911.otf": "fonts-goudybookletter",
        "AveriaSerifGWF-Bold.ttf": "fonts-averia-serif-gwf",
        "LinLibertine_R.otf": "fonts-linuxlibertine",
        "Gentium-I.ttf": "fonts-sil-gentium",
        "EBGaramond12-Bold.otf": "fonts-ebgaramond",
    },
    "typewriter": {
        "Inconsolata.otf": "fonts-inconsolata",
        "JetBrainsMono-Regular.ttf": "fonts-jetbrains-mono",
        "FiraCode-Bold.ttf": "fonts-firacode",
        "Hermit-medium.otf": "fonts-hermit",
        "mononoki-Italic.ttf": "fonts-mononoki",
        "GNUTypewriter.ttf": "fonts-gnutypewriter",
        "LeagueMono-Light.otf": "fonts-league-mono",
        "FreeMonoBold.ttf": "fonts-freefont-ttf",
    },
    "hand": {
        "DancingScript-Regular.otf": "fonts-dancingscript",
        "Kristi.ttf": "fonts-kristi",
        "breipfont.ttf": "fonts-breip",
        "dkg.ttf": "fonts-dkg-handwriting",
        "KaushanScript-Regular.otf": "fonts-kaushanscript",
        "Humor-Sans.ttf": "fonts-humor-sans",
        "Havana-Regular.otf": "fonts-havana",
        "lobster.otf": "fonts-lobster",
    },
}
EACH, SIDE, LARGE = 6, 32, 4  # images of a letter in a font; pixels; how much larger it is drawn, so that edges are smooth


def printed(rng: np.random.Generator, font: Path, letter: str) -> Image.Image:
    """One letter, dark on light."""
    type_ = ImageFont.truetype(str(font), LARGE * int(rng.integers(20, 29)))
    ink, paper = int(rng.integers(0, 90)), int(rng.integers(165, 256))
    image = Image.new("L", (LARGE * SIDE, LARGE * SIDE), paper)
    left, top, right, bottom = type_.getbbox(letter)
    way = LARGE * rng.integers(-2, 3, 2)
    corner = (LARGE * SIDE - right - left) // 2 + int(way[0]), (LARGE * SIDE - bottom - top) // 2 + int(way[1])
    ImageDraw.Draw(image).text(corner, letter, fill=ink, font=type_)
    small = image.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return small.filter(ImageFilter.GaussianBlur(float(rng.uniform(0, 0.8))))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fonts", type=Path, required=True, help="folder with the font files")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found = {file.name: file for file in given.fonts.rglob("*.?tf")}
    missing = [f"{name} ({package})" for fonts in KINDS.values() for name, package in fonts.items() if name not in found]
    if missing:
        raise SystemExit(f"not in {given.fonts}: {', '.join(missing)}")
    rng = np.random.default_rng(0)
    for kind, fonts in KINDS.items():
        for letter in string.ascii_lowercase:
            folder = given.out / kind / letter
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(EACH * len(fonts)):
                printed(rng, found[list(fonts)[number // EACH]], letter).save(folder / f"{number:02}.png")
    print(f"{EACH} images of each letter in {sum(map(len, KINDS.values()))} fonts of {len(KINDS)} kinds in {given.out}")


if __name__ == "__main__":
    main()
