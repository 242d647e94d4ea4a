"""Runs docs/tutorial.ipynb from top to bottom in a kernel of its own, and stores it with its outputs: python docs/making/tutorial.py

The notebook then says which code its outputs are of, so that a test tells when they have grown old.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "tutorial.ipynb"


def hash_of_code(notebook: dict[str, Any]) -> str:
    """Of all that is run, whatever is said between it."""
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256("\n\n".join(code).encode()).hexdigest()


def main() -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(FILE, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(FILE.parent)}}).execute()
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", {}
        for output in cell.get("outputs", []):
            output.get("transient", {}).clear()
    notebook.metadata = {"kernelspec": notebook.metadata.kernelspec, "outputs_of": hash_of_code(notebook)}
    nbformat.write(notebook, FILE)


if __name__ == "__main__":
    main()
