"""Icons of four desktops: what an icon stands for (an action, a program, a device, a file type, a place, a state), drawn in four designs.

    python benchmarks/evidence/icons.py --icons FOLDER --out icons

FOLDER holds the unpacked Debian packages below, wherever in it (`dpkg -x PACKAGE.deb FOLDER`). Writes icons/DESIGN/KIND/NAME.png, a folder
that `--data folder:icons` reads: every picture of 48 x 48 pixels that stands for one
kind in one design alone, on white. The kinds are the designs' own folders, and their
shares differ between designs.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from PIL import Image

DESIGNS = {  # the folder of a design, and the Debian package that it comes in
    "elementary": ("icons/elementary-xfce", "elementary-xfce-icon-theme"),
    "faenza": ("icons/Faenza", "faenza-icon-theme"),
    "gnome": ("icons/gnome", "gnome-icon-theme"),
    "oxygen": ("icons/oxygen/base", "oxygen-icon-theme"),
}
KINDS = {
    "actions": "action",
    "apps": "program",
    "devices": "device",
    "mimetypes": "type",
    "mimes": "type",
    "places": "place",
    "status": "state",
}
SIDE = 48
_SIZE = re.compile(r"48(x48)?")


def pictures(design: Path) -> Iterator[tuple[str, str, Image.Image]]:
    """Kind, name and picture of each icon of 48 x 48 pixels in a design's folder."""
    for file in sorted(design.rglob("*.png")):
        folders = file.relative_to(design).parts[:-1]
        kind = next((KINDS[name] for name in folders if name in KINDS), None)
        if kind and not file.is_symlink() and any(map(_SIZE.fullmatch, folders)):
            yield kind, file.stem, on_white(file)


def on_white(file: Path) -> Image.Image:
    icon = Image.open(file).convert("RGBA")
    if icon.size != (SIDE, SIDE):
        icon = icon.resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return Image.alpha_composite(Image.new("RGBA", icon.size, "white"), icon).convert("RGB")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--icons", type=Path, required=True, help="folder with the unpacked packages")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    found: dict[bytes, dict[tuple[str, str], str]] = {}  # by picture: the designs and kinds that it is in, and its name
    for design, (inside, package) in DESIGNS.items():
        folder = next((folder for folder in given.icons.rglob(Path(inside).name) if folder.as_posix().endswith(inside)), None)
        if folder is None:
            raise SystemExit(f"{inside} is nowhere in {given.icons}; unpack {package} there")
        for kind, name, icon in pictures(folder):
            found.setdefault(icon.tobytes(), {}).setdefault((design, kind), name)
    counts: Counter[tuple[str, str]] = Counter()
    for pixels, places in found.items():
        if len(places) > 1 or len(set(pixels)) == 1:
            continue  # of two designs or two kinds, or empty: nobody could tell what it is
        (((design, kind), name),) = places.items()
        out = given.out / design / kind
        out.mkdir(parents=True, exist_ok=True)
        Image.frombytes("RGB", (SIDE, SIDE), pixels).save(out / f"{counts[design, kind]:03}-{name}.png")
        counts[design, kind] += 1
    for design in DESIGNS:
        print(f"{design}: {', '.join(f'{counts[design, kind]} {kind}' for kind in dict.fromkeys(KINDS.values()))}")


if __name__ == "__main__":
    main()
