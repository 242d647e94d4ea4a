"""Makes the documents' pictures and the demo's table: `python docs/making/pictures.py`, about three minutes the first time.

All of it is embedded data. The runs are those of the README's demo, kept in runs/demo. The picture of the page needs a Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from unseen.data import load
from unseen.data.domain import Domain
from unseen.figures import draw, save
from unseen.figures.drawing import sheet, show_image
from unseen.ops import fourier
from unseen.ops.randconv import randconv
from unseen.report.collect import collect
from unseen.report.page import render_page
from unseen.report.saying import what_was_found
from unseen.report.tables import comparison, to_markdown

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs/pictures"
DEMO = ROOT / "runs/demo"


SIDE, ROOM, NAMES, TOP = 64, 4, 78, 26  # pixels of an image, between images, for a domain's name, for a title


def domains() -> None:
    """Six samples of each domain of the two embedded data sets."""
    digits, phantoms = load("styled-digits"), load("phantom-sites")
    block, row = NAMES + 6 * (SIDE + ROOM), SIDE + ROOM
    picture = Image.new("RGB", (2 * block + 16, TOP + 4 * row), "white")
    for number, domain in enumerate(digits.domains):
        _strip(picture, 0, TOP + number * row, domain.name, [_first(domain, digit) for digit in range(6)])
    for number, domain in enumerate(phantoms.domains):
        _strip(picture, block + 16, TOP + number * row, domain.name, list(domain.images[:6]))
    ImageDraw.Draw(picture).text((NAMES, 4), "styled-digits: which digit?", "black", ImageFont.load_default(14))
    ImageDraw.Draw(picture).text((block + 16 + NAMES, 4), "phantom-sites: where are disc and cup?", "black", ImageFont.load_default(14))
    picture.convert("P", palette=Image.Palette.ADAPTIVE, colors=256).save(PICTURES / "domains.png", optimize=True)


def _strip(picture: Image.Image, left: int, top: int, name: str, images: list[Any]) -> None:
    """Images of a domain side by side, its name before them."""
    ImageDraw.Draw(picture).text((left + NAMES - 6, top + SIDE // 2), name, "black", ImageFont.load_default(14), anchor="rm")
    for number, image in enumerate(images):
        small = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        picture.paste(small, (left + NAMES + number * (SIDE + ROOM), top))


def _first(domain: Domain, label: int) -> Any:
    return domain.images[int(np.flatnonzero(domain.labels == label)[0])]


def restyled() -> None:
    """An image in another domain's style (ELCFS), and random convolutions of it (RandConv)."""
    digits = load("styled-digits")
    x = torch.from_numpy(_first(digits["textured"], 3)[None]).float() / 255
    columns = [("textured", x)]
    for name in ("plain", "inverted"):
        style = torch.from_numpy(_first(digits[name], 5)[None]).float() / 255
        new = fourier.restyle_amplitudes(x, fourier.low_amplitudes(style, 0.1), torch.tensor([1.0]), 0.1)
        columns += [(f"style of {name}", style), ("restyled (ELCFS)", new)]
    rng = torch.Generator().manual_seed(4)
    columns += [("RandConv", (randconv(2 * x - 1, rng) + 1) / 2) for _ in range(2)]
    figure, (row,) = sheet(1, len(columns), 1.25, 1.45)
    for panel, (title, image) in zip(row, columns, strict=True):
        show_image(panel, image[0].clamp(0, 1).numpy(), title)
    save(figure, PICTURES / "restyled.png")


def demo() -> None:
    """The demo's runs, where they are not finished yet, and their table."""
    command = [shutil.which("unseen") or "unseen", "bench", str(ROOT / "experiments/demo.toml"), "--out", str(DEMO)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    cells = collect(DEMO).cells
    heading = "# The demo with three seeds\n`unseen bench experiments/demo.toml --out runs/demo`, on CPU cores\n"
    text = f"{heading}\n{to_markdown(comparison(cells, 'source'))}\n\n{what_was_found(cells)}\n"
    (ROOT / "benchmarks/results/demo.md").write_text(text, encoding="utf-8")


def curves() -> None:
    save(draw("curves", [DEMO]), PICTURES / "curves.svg")


def page() -> None:
    """The page of the demo as a browser shows it."""
    browser = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
    if browser is None:
        print("no chromium: docs/pictures/page.png is left as it is")
        return
    with tempfile.TemporaryDirectory() as folder:
        html, shot = Path(folder) / "page.html", Path(folder) / "page.png"
        html.write_text(render_page(collect(DEMO), "Runs in demo"), encoding="utf-8")
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/profile"]
        subprocess.run(
            [browser, *options, f"--screenshot={shot}", "--window-size=1120,1480", html.as_uri()], check=True, capture_output=True
        )
        with Image.open(shot) as picture:
            picture.convert("RGB").save(PICTURES / "page.png", optimize=True)


if __name__ == "__main__":
    domains()
    restyled()
    demo()
    curves()
    page()
