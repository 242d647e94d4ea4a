"""One cell of a benchmark as a command, for schedulers that start commands: `python -m unseen.bench.single CELL.json`.

The file says which experiment, in which folder. How it ended is written beside it, as text.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from unseen.bench.cell import run_cell
from unseen.files import write_atomically
from unseen.runs.watch import Silent

__all__ = ["main", "outcome_of", "write_cell"]


def write_cell(file: Path, description: dict[str, Any], folder: Path) -> None:
    """What the command reads; how an earlier one ended is forgotten."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.with_suffix(".ended").unlink(missing_ok=True)
    write_atomically(file, json.dumps({"experiment": description, "folder": str(folder)}, indent=1) + "\n")


def outcome_of(file: Path) -> str | None:
    """Why the cell failed, "" if it did not; None as long as it has not ended."""
    try:
        return str(json.loads(file.with_suffix(".ended").read_text(encoding="utf-8"))["failed"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def main(file: Path) -> None:
    cell = json.loads(file.read_text(encoding="utf-8"))
    try:
        failed = run_cell(cell["experiment"], Path(cell["folder"]), Silent())
    except OSError as error:  # a full disk, which the others will meet too
        failed = f"{error.strerror or error}"
    write_atomically(file.with_suffix(".ended"), json.dumps({"failed": failed}) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
