"""`unseen export`: a model file with its card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.answers import answering, screen
from unseen.cli.options import TRUST_CODE, among

__all__ = ["export"]

_KINDS = ("onnx", "torchscript", "safetensors")


def export(
    folder: Annotated[Path, typer.Argument(help="folder of a finished run")],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="safetensors (weights alone), onnx (a graph, for networks of your own too) or torchscript (a program: others run it "
            "only with --trust)",
            autocompletion=among(*_KINDS),
        ),
    ] = "safetensors",
    out: Annotated[Path | None, typer.Option(help="folder for model and card; default export-FORMAT in the run's folder")] = None,
    rule: Annotated[str, typer.Option(help="which round: source (best on source validation) or last")] = "source",
    styles: Annotated[
        bool, typer.Option("--styles", help="put each training site's style statistics into the card; ask the sites")
    ] = False,
    without_data: Annotated[
        bool,
        typer.Option(
            "--without-data", help="the run's data are not at hand: not calibrated, checked on noise (as after a run between sites)"
        ),
    ] = False,
    sign: Annotated[
        Path | None, typer.Option(help="sign the card: a federation's folder, a site's folder, or a PEM file with an Ed25519 key")
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST_CODE)] = False,
) -> None:
    """Write the model of a finished run with a model card, checked against torch on real images.

    Example: unseen export runs/first --to onnx
    """
    with answering():
        from unseen.deploy.card import read_card
        from unseen.deploy.exporting import export as write

        out = write(folder, to, out, rule=rule, styles=styles, without_data=without_data, sign=sign, trust=trust)
        card = read_card(out)
        checked = f"gives torch's probabilities within {card.checked['largest_difference']:.1e} on {card.checked['images']:.0f} images"
        checked += " of noise; not calibrated, for want of the run's data" if card.checked["noise"] else ""
        screen.print(f"{out / card.file} {checked}; what it is and is not for: {out / 'card.md'}", markup=False)
        screen.print(card.origin if card.signer else "not signed; --sign KEY tells others who made it", markup=False)
