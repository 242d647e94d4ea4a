"""Tables in CSV: read once, checked once, every mistake at once."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from unseen.data.reading.source import listed
from unseen.errors import BadInput

__all__ = ["read_table", "whole_number"]


def read_table(text: str, label: str, needed: Sequence[str]) -> list[dict[str, str]]:
    """The rows by column, without the spaces around names and values."""
    try:
        reader = csv.reader(io.StringIO(text), strict=True)
        header = [name.strip() for name in next(reader, [])]
        rows = [(reader.line_num, [value.strip() for value in row]) for row in reader if any(value.strip() for value in row)]
    except csv.Error as error:
        raise BadInput(f"{label} is no readable CSV: {error}") from None
    missing = [name for name in needed if name not in header]
    if missing:
        raise BadInput(f"{label} has no column {', '.join(missing)}; its columns are {', '.join(header) or 'none'}")
    twice = sorted({name for name in header if name and header.count(name) > 1})
    if twice:
        raise BadInput(f"{label} has the column {', '.join(twice)} twice")
    uneven = [f"line {line}" for line, row in rows if len(row) != len(header)]
    if uneven:
        raise BadInput(f"{label}: {listed(uneven)} has not {len(header)} values as the header has")
    if not rows:
        raise BadInput(f"{label} has a header and no rows")
    return [dict(zip(header, row)) for _, row in rows]


def whole_number(text: str, below: int, what: str) -> int:
    """
    >>> whole_number("3", 8, "target")
    3
    """
    try:
        number = int(float(text))
    except (ValueError, OverflowError):
        number = -1
    if not 0 <= number < below:
        raise BadInput(f"{what} is {text!r}; expected a number from 0 to {below - 1}")
    return number
