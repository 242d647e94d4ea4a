"""No text that a table holds is a formula to a spreadsheet, whichever separator it reads by; numbers stay numbers."""

from __future__ import annotations

import csv
import io
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unseen.report.spreadsheet import as_cell

SIGNS = "=+-@＝＋－＠"
TEXTS = st.text(st.sampled_from(SIGNS + "\t\r\na1 ;,|\"'.e"), max_size=12)


@given(TEXTS, TEXTS)
@example("x;=1+1", '",=1')
@example("-1+1", "+1e5e")
@example('";"=1', "1\n=2")
def test_no_cell_begins_like_a_formula(first: str, second: str) -> None:
    out = io.StringIO()
    csv.writer(out).writerow([as_cell(first), as_cell(second)])
    for delimiter in (",",) if plain_number(first) or plain_number(second) else (",", ";", "\t", "|"):
        for row in csv.reader(io.StringIO(out.getvalue(), newline=""), delimiter=delimiter):
            for cell in row:
                before, sign = re.fullmatch(r"([\s\"']*)(.?).*", cell, re.DOTALL).groups()  # type: ignore[union-attr]
                assert not sign or sign not in SIGNS or "'" in before or plain_number(cell), (delimiter, row)


def plain_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?[\d.]+(e[+-]?\d+)?", text.strip("\r\n ")) is not None


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_numbers_stay_numbers(number: float) -> None:
    assert as_cell(number) is number and as_cell(repr(number)) == repr(number)


@pytest.mark.parametrize("text", ["north", "site 3", "a-b", "x=1", "1-2", "file.png", "images/0.png", "user@host", "grün"])
def test_ordinary_names_stay_as_they_are(text: str) -> None:
    assert as_cell(text) == text
