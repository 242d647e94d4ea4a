"""`unseen watch`: the page of runs in progress."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.answers import answering, screen

__all__ = ["watch"]


def watch(
    folder: Annotated[Path, typer.Argument(help="folder with runs, at any depth")],
    port: Annotated[int, typer.Option(help="port on localhost; 0 takes a free one")] = 8765,
    force: Annotated[bool, typer.Option("--force", help="mix runs of different data or protocols")] = False,
) -> None:
    """Show the page of `unseen report --format html` on localhost and refresh it as runs go on. Ctrl-C ends it.

    Example: unseen watch runs/demo
    """
    with answering():
        from unseen.report.serve import Watched, page_server

        with page_server(Watched(folder, force), port) as server:
            screen.print(f"http://localhost:{server.server_address[1]}/ shows {folder}; Ctrl-C ends it", markup=False)
            server.serve_forever()
