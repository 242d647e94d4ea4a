"""Writes the README's table of methods from METHODS: `make format` runs it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from unseen.methods import METHODS

README = Path(__file__).parents[2] / "README.md"
FIRST = "<!-- methods: written by docs/making/methods_table.py -->"
LAST = "<!-- end of methods -->"


def with_table(text: str) -> str:
    """The README with a row for every method."""
    rows = [
        f"| {cls.title} | {cls.paper} | [{name}.py](src/unseen/methods/{name}.py) | [card](docs/methods/{name}.md) |"
        for name, cls in METHODS.items()
    ]
    table = "\n".join(["| method | paper | file | card |", "| --- | --- | --- | --- |", *rows])
    return re.sub(f"{re.escape(FIRST)}.*?{re.escape(LAST)}", f"{FIRST}\n{table}\n{LAST}", text, flags=re.DOTALL)


if __name__ == "__main__":
    old = README.read_text()
    new = with_table(old)
    if "--check" in sys.argv and old != new:
        sys.exit("README.md does not list every method; run: make format")
    README.write_text(new)
