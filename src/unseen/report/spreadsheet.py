"""Cells of a CSV file that no spreadsheet takes for a formula.

Names of classes, sites and files come from whoever made a model or a run. A spreadsheet runs a cell that begins with one of a few signs,
and a formula can send the table away or start a program. OWASP, "CSV Injection": such a cell gets an apostrophe in front.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["as_cell"]

_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")
_FORMULA = re.compile(
    r"""(^|[,;|\t\r\n])(?=[\s"']*[=+\-@＝＋－＠]|[\t\r\n])"""
)  # at the start, and where another program would begin a cell


def as_cell(value: Any) -> Any:
    """The value as it may stand in a CSV file: numbers as they are, texts that could be formulas as text.

    >>> [as_cell(value) for value in ("=1+1", "@x", "-12.5", -12.5, "north", "a;=1+1", None)]
    ["'=1+1", "'@x", '-12.5', -12.5, 'north', "a;'=1+1", None]
    """
    if not isinstance(value, str) or _NUMBER.fullmatch(value):
        return value
    return _FORMULA.sub(r"\1'", value)
