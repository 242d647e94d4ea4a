"""The command line. Heavy imports wait until a command needs them, so that --help answers at once."""

from __future__ import annotations

import typer

from unseen.cli.bench import bench
from unseen.cli.data import data_app
from unseen.cli.report import report
from unseen.cli.run import run
from unseen.cli.show import methods, networks

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
app.command()(run)
app.command()(bench)
app.command()(report)
app.command()(methods)
app.command()(networks)
app.add_typer(data_app, name="data")


def main() -> None:
    app()
