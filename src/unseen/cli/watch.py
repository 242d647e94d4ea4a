"""`unseen watch`: the page of runs in progress."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from unseen.cli.answers import answering, screen

if TYPE_CHECKING:
    from unseen.report.between import Stands

__all__ = ["watch"]


def watch(
    folder: Annotated[Path, typer.Argument(help="folder with runs, at any depth")],
    port: Annotated[int, typer.Option(help="port on localhost; 0 takes a free one")] = 8765,
    force: Annotated[bool, typer.Option("--force", help="mix runs of different data or protocols")] = False,
    federation: Annotated[Path | None, typer.Option(help="a federation's folder: say of its runs what they wait for now")] = None,
) -> None:
    """Show the page of `unseen report --format html` on localhost and refresh it as runs go on. Ctrl-C ends it.

    Example: unseen watch runs/demo
    """
    with answering():
        from unseen.report.serve import Watched, page_server

        watched = Watched(folder, force, _standings_of(federation)) if federation is not None else Watched(folder, force)
        with page_server(watched, port) as server:
            screen.print(f"http://localhost:{server.server_address[1]}/ shows {folder}; Ctrl-C ends it", markup=False)
            server.serve_forever()


def _standings_of(federation: Path) -> Callable[[], Sequence[Stands]]:
    from unseen.cli.between import needs_cryptography

    needs_cryptography()
    from unseen.federation.kits import read_register
    from unseen.federation.server.standing import standings

    read_register(federation)  # or it is no federation's folder
    return lambda: standings(federation)
