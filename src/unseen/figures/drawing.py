"""Sheets of paper: matplotlib without its global state, saved as PNG, SVG or PDF."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unseen.errors import BadInput
from unseen.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["COLOURS", "LOSSES", "heat_map", "key_of_markers", "save", "sheet", "show_image"]

COLOURS = ("#1b6ec2", "#d1541b", "#2b8a3e", "#9135b8", "#b8860b", "#c2255c", "#0b8a8a", "#6b4f3a", "#4c5fd5", "#5f6b76")
LOSSES = "viridis_r"  # of every picture of a loss: the brighter, the lower
_ENDINGS = (".png", ".svg", ".pdf")
_UNDATED: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # equal figures are equal files


def sheet(rows: int, columns: int, width: float = 3.6, height: float = 3.2) -> tuple[Figure, list[list[Axes]]]:
    """A figure of panels, each of this size in inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BadInput("figures need matplotlib, which is not installed; install it with: pip install 'unseen[report]'") from error
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    return figure, [list(row) for row in axes]


def heat_map(axes: Axes, values: NDArray[Any], rows: Sequence[str], columns: Sequence[str], form: str, high: float | None = None) -> None:
    """A matrix with its numbers written in, where they are few enough to be read."""
    axes.imshow(values, cmap="Blues", vmin=0, vmax=high, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=45, ha="right")
    axes.set_yticks(range(len(rows)), rows)
    middle = (high if high is not None else float(values.max())) / 2
    if values.size <= 400:
        for (row, column), value in np.ndenumerate(values):
            axes.text(column, row, form.format(value), ha="center", va="center", fontsize=7, color="white" if value > middle else "black")


def show_image(axes: Axes, image: NDArray[Any], title: str = "") -> None:
    """An image [channels, height, width] of bytes or of 0 to 1; one channel is grey."""
    pixels = image.transpose(1, 2, 0)
    axes.imshow(pixels[..., 0] if pixels.shape[2] == 1 else pixels[..., :3], cmap="gray")
    axes.set_axis_off()
    if title:
        axes.set_title(title, fontsize=9)


def key_of_markers(names: Sequence[str], markers: Sequence[str], colours: Sequence[str]) -> list[Any]:
    """Entries of a key: what each marker, in each colour, stands for."""
    from matplotlib.lines import Line2D

    style: dict[str, Any] = {"linestyle": "", "markersize": 5}
    return [Line2D([], [], label=n, marker=m, color=c, **style) for n, m, c in zip(names, markers, colours, strict=True)]


def save(figure: Figure, path: Path) -> None:
    """As PNG, SVG or PDF, whole or not at all; equal figures are equal files."""
    if path.suffix.lower() not in _ENDINGS:
        raise BadInput(f"a picture as {path.name!r}; expected a name that ends in {', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}")
    import matplotlib

    stream = io.BytesIO()
    kind = path.suffix.lower()[1:]
    with matplotlib.rc_context({"svg.hashsalt": "unseen"}):
        figure.savefig(stream, format=kind, dpi=150, metadata=_UNDATED.get(kind))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, stream.getvalue())
