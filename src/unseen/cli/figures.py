"""`unseen figure`: pictures from finished runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.answers import answering, refuse_unwritable, screen
from unseen.cli.options import TRUST_CODE, among

__all__ = ["NAMES", "figure"]

NAMES = (
    "curves",
    "confusion",
    "reliability",
    "tsne",
    "overlays",
    "gap",
    "cam",
    "generated",
    "restyled",
    "surface",
    "plane",
    "bars",
    "clients",
)


def figure(
    name: Annotated[
        str | None, typer.Argument(help="which figure; without it, all are listed", show_default=False, autocompletion=among(*NAMES))
    ] = None,
    folders: Annotated[list[Path] | None, typer.Argument(help="folder of a finished run, or of many", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help="file to write: .png, .svg or .pdf")] = None,
    rule: Annotated[
        str,
        typer.Option(help="which round's model: source (best on source validation) or last; also held-out or oracle for bars and clients"),
    ] = "source",
    data: Annotated[
        str | None,
        typer.Option(help="images to look at after a run between sites, or where its data lie now: folder:PATH, csv:FILE or a name"),
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST_CODE)] = False,
) -> None:
    """Draw a figure from finished runs: curves, confusion, reliability, tsne, overlays, gap, cam, and more.

    Example: unseen figure confusion runs/first --out confusion.svg
    """
    with answering():
        from unseen.errors import BadInput, choose
        from unseen.figures import FIGURES, draw, save

        if name is None:
            for known, kind in FIGURES.items():
                screen.print(f"[bold]{known:<12}[/] {kind.about}")
            return
        choose("figure", name, FIGURES)
        if not folders or out is None:
            given = " ".join(map(str, folders or [Path("runs/first")]))
            raise BadInput(f"a figure needs a folder and a file: unseen figure {name} {given} --out {name}.png")
        refuse_unwritable(out)
        save(draw(name, folders, rule=rule, data=data, trust=trust), out)
        screen.print(f"{FIGURES[name].about}: {out}", markup=False, highlight=False)
