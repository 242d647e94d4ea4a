"""`unseen predict`: an exported model on image files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.answers import answering, errors
from unseen.cli.options import SIGNER, TRUST_MODEL, among

__all__ = ["predict"]


def predict(
    model: Annotated[Path, typer.Argument(help="folder that `unseen export` wrote")],
    images: Annotated[list[str], typer.Argument(help="image files, folders of them, or - for a list of names on standard input")],
    format: Annotated[str, typer.Option(help="csv or json", autocompletion=among("csv", "json"))] = "csv",
    out: Annotated[Path | None, typer.Option(help="file to write; standard output without it")] = None,
    masks: Annotated[Path | None, typer.Option(help="folder for masks as PNG (segmentation)")] = None,
    batch: Annotated[int, typer.Option(help="images at a time", min=1)] = 32,
    signer: Annotated[str | None, typer.Option(help=SIGNER)] = None,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST_MODEL)] = False,
) -> None:
    """Predict image files, with calibrated probabilities; exit code 1 if one of them could not be read.

    Example: unseen predict runs/first/export-onnx images/ --format json
    """
    with answering():
        from unseen.deploy.images import find_image_files
        from unseen.deploy.model import load_model
        from unseen.deploy.prediction import predict as rows_of
        from unseen.deploy.prediction import to_csv, to_json
        from unseen.errors import choose
        from unseen.files import write_atomically

        choose("format", format, ("csv", "json"))
        deployed = load_model(model, trust=trust, signer=signer)
        errors.print(f"the model is {deployed.card.origin}", markup=False)
        files = find_image_files([Path(i) for i in images if i != "-"], sys.stdin if "-" in images else ())
        rows = list(rows_of(deployed, files, masks=masks, batch=batch))
        text = (to_csv if format == "csv" else to_json)(rows)
        if out is None:
            typer.echo(text, nl=False)
        else:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out, text)
        unread = [row["error"] for row in rows if "error" in row]
        for problem in unread:
            errors.print(problem, markup=False)
    if unread:
        raise typer.Exit(1)
