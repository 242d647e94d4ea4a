"""docs/leakage.md: a row for every method that can run between sites, each as it was measured."""

from __future__ import annotations

from pathlib import Path

from unseen.methods import METHODS

ROOT = Path(__file__).parents[2]
NOT_BETWEEN_SITES = {"dann"}  # a client needs several domains


def rows(file: str) -> list[str]:
    """Those of the table of all methods: the first of the file that begins with `row`."""
    lines = (ROOT / file).read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("| row |")) + 2
    return [line for line in lines[begin : lines.index("", begin)] if line.startswith("| ")]


def test_every_method_has_a_row() -> None:
    told = {row.split("|")[1].strip() for row in rows("docs/leakage.md")}
    assert {*METHODS} - told == NOT_BETWEEN_SITES
    assert "DANN has no row" in (ROOT / "docs/leakage.md").read_text()


def test_every_row_is_one_that_was_measured() -> None:
    measured = rows("benchmarks/results/leakage.md") + rows("benchmarks/results/leakage-more.md")
    assert sorted(rows("docs/leakage.md")) == sorted(measured)
