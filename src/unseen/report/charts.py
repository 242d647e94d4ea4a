"""Charts as inline SVG, a few hundred bytes a line. Colours are classes, so that the page's style decides on dark and light."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["COLOURS", "Line", "class_chart", "line_chart", "nice_ticks"]

COLOURS = 10  # of the page's style sheet: classes c0 to c9
WIDTH, HEIGHT = 380, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 10, 34
_MOST_POINTS = 120  # of one line: more cannot be seen at this width

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One line: its number decides colour and dashes. `band` is low and high at each x; `open` marks a run in progress."""

    name: str
    number: int
    points: Sequence[Point]
    band: Sequence[tuple[float, float]] = ()
    open: bool = False


def line_chart(lines: Sequence[Line], x_label: str, y_label: str, *, zero: bool = False) -> str:
    """The chart as an <svg> element, names escaped. `zero` begins the upright axis there."""
    lines = [line for line in lines if line.points]
    if not lines:
        return ""
    xs = [x for line in lines for x, _ in line.points]
    ys = [y for line in lines for _, y in line.points] + [y for line in lines for pair in line.band for y in pair]
    frame = _Frame(min(xs), max(max(xs), min(xs) + 1), *_stretched(0.0 if zero else min(ys), max(ys)))
    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(f"{y_label} by {x_label}", quote=True)}">'
    ]
    parts += _axes(frame, x_label, y_label)
    parts += [_band(frame, line) for line in lines if line.band]
    parts += [_line(frame, line) for line in lines]
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True)
class _Frame:
    left: float
    right: float
    low: float
    high: float

    def x(self, value: float) -> float:
        return _LEFT + (value - self.left) / (self.right - self.left) * (WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return _TOP + (self.high - value) / (self.high - self.low) * (HEIGHT - _TOP - _BOTTOM)


def _stretched(low: float, high: float) -> tuple[float, float]:
    """A little room, and never an axis without length."""
    room = (high - low) * 0.05 or max(abs(high) * 0.05, 1e-9)
    return (low - room if low else 0.0), high + room


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers inside [low, high].

    >>> nice_ticks(12.0, 91.0)
    [20.0, 40.0, 60.0, 80.0]
    """
    rough = (high - low) / about
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(magnitude * m for m in (1, 2, 5, 10) if magnitude * m >= rough * 0.999)
    return [n * step for n in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _axes(frame: _Frame, x_label: str, y_label: str) -> list[str]:
    bottom, right = HEIGHT - _BOTTOM, WIDTH - _RIGHT
    parts = []
    for value in nice_ticks(frame.low, frame.high):
        y = frame.y(value)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{right}"/><text class="r" x="{_LEFT - 5}" y="{y + 4:.1f}">{value:g}</text>')
    for value in nice_ticks(frame.left, frame.right):
        if value == int(value):
            parts.append(f'<text class="m" x="{frame.x(value):.1f}" y="{bottom + 15}">{value:g}</text>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text class="m" x="{middle:.0f}" y="{HEIGHT - 4}">{html.escape(x_label)}</text>')
    parts.append(f'<text class="m" transform="translate(11 {(_TOP + bottom) / 2:.0f}) rotate(-90)">{html.escape(y_label)}</text>')
    return parts


def _thinned(count: int) -> list[int]:
    """Which of so many points are drawn: evenly, the first and the last among them."""
    if count <= _MOST_POINTS:
        return list(range(count))
    return [round(i * (count - 1) / (_MOST_POINTS - 1)) for i in range(_MOST_POINTS)]


def _path(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _band(frame: _Frame, line: Line) -> str:
    kept = _thinned(len(line.points))
    low = [(frame.x(line.points[i][0]), frame.y(line.band[i][0])) for i in kept]
    high = [(frame.x(line.points[i][0]), frame.y(line.band[i][1])) for i in kept]
    return f'<path class="band c{line.number % COLOURS}" data-m="{line.number}" d="{_path([*high, *reversed(low)])}Z"/>'


def _line(frame: _Frame, line: Line) -> str:
    points = [(frame.x(line.points[i][0]), frame.y(line.points[i][1])) for i in _thinned(len(line.points))]
    colour, dashes = line.number % COLOURS, " open" if line.open else f" d{line.number // COLOURS % 3}"
    attributes = f'data-m="{line.number}" class="c{colour}{dashes}"'
    title = f"<title>{html.escape(line.name)}</title>"
    if len(points) == 1:
        return f'<circle {attributes} cx="{points[0][0]:.1f}" cy="{points[0][1]:.1f}" r="3">{title}</circle>'
    return f'<path {attributes} d="{_path(points)}">{title}</path>'


_NAMES, _SHADES = 86, 8  # pixels for a client's name; steps of grey
_MOST_ROWS, _MOST_COLUMNS = 40, 14  # with more, rows get thin and lose their names, cells their numbers


def class_chart(clients: Mapping[str, Sequence[int]], labels: Sequence[str]) -> str:
    """Who holds how many samples of each class: a row per client, a column per class, the darker the more."""
    few_rows, few_columns = len(clients) <= _MOST_ROWS, len(labels) <= _MOST_COLUMNS
    row, column, top = (17 if few_rows else 5), (WIDTH - _NAMES) / max(1, len(labels)), 18
    height = top + row * len(clients)
    most = max((count for counts in clients.values() for count in counts), default=0)
    parts = [f'<svg class="chart cells" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="training samples by client and class">']
    if few_columns:
        parts += [_fitting(label, _NAMES + (n + 0.5) * column, top - 5, column, "m") for n, label in enumerate(labels)]
    else:
        parts.append(f'<text class="m" x="{(_NAMES + WIDTH) / 2:.0f}" y="{top - 5}">{len(labels)} classes</text>')
    shades: dict[int, list[str]] = {}
    for number, (client, counts) in enumerate(clients.items()):
        y = top + number * row
        parts += [_fitting(client, _NAMES - 6, y + 12, _NAMES - 6, "r")] if few_rows else []
        for n, count in enumerate(counts):
            x = _NAMES + n * column
            if count:
                box = f"M{x + 0.5:.1f} {y + 0.5:.1f}h{column - 1:.1f}v{row - 1}h-{column - 1:.1f}z"
                shades.setdefault(math.ceil(_SHADES * count / most), []).append(box)
            if few_rows and few_columns:
                parts.append(f'<text class="m" x="{x + column / 2:.1f}" y="{y + 12}">{count}</text>')
    cells = [f'<path fill-opacity="{shade / _SHADES / 2:.2f}" d="{"".join(boxes)}"/>' for shade, boxes in sorted(shades.items())]
    return "".join([parts[0], *cells, *parts[1:], "</svg>"])


def _fitting(text: str, x: float, y: float, width: float, css: str) -> str:
    """A name cut to its room, whole in its tooltip."""
    room = max(1, int(width / 6))
    shown = text if len(text) <= room else f"{text[: room - 1]}…"
    return f'<text class="{css}" x="{x:.1f}" y="{y}"><title>{html.escape(text)}</title>{html.escape(shown)}</text>'
