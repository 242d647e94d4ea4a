"""The command line. Heavy imports wait until a command needs them, so that --help answers at once."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

from unseen.cli.advise import advise
from unseen.cli.bench import bench
from unseen.cli.data import data_app
from unseen.cli.evaluate import evaluate
from unseen.cli.export import export
from unseen.cli.federation import federation_app, join, serve
from unseen.cli.figures import figure
from unseen.cli.leakage import leakage
from unseen.cli.ledger import ledger_app
from unseen.cli.predict import predict
from unseen.cli.report import report
from unseen.cli.run import RunCommand, run
from unseen.cli.runs import runs
from unseen.cli.show import methods, networks
from unseen.cli.speed import speed
from unseen.cli.study import study_app
from unseen.cli.tune import tune
from unseen.cli.verdict import verdict
from unseen.cli.watch import watch
from unseen.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="unseen",
    help="Federated domain generalisation: train across sites that may not share their data, for a site nobody has seen.",
    epilog="Example: unseen run --method fedsb --data styled-digits --target outline --rounds 20 --out runs/first",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(advise)
app.command(cls=RunCommand)(run)
app.command()(bench)
app.command()(runs)
app.command()(tune)
app.command()(report)
app.command()(verdict)
app.command()(watch)
app.command()(export)
app.command()(predict)
app.command()(evaluate)
app.command()(leakage)
app.command()(figure)
app.command()(methods)
app.command()(networks)
app.command()(speed)
app.add_typer(data_app, name="data")
app.add_typer(federation_app, name="federation")
app.add_typer(study_app, name="study")
app.command()(serve)
app.command()(join)
app.add_typer(ledger_app, name="ledger")


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"unseen {__version__} (torch {_installed('torch')}, Python {platform.python_version()})")
        raise typer.Exit


def _installed(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


@app.callback()
def unseen(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which version this is, and end.")
    ] = False,
) -> None: ...


def main() -> None:
    app()
