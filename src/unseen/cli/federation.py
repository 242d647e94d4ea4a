"""`unseen federation`, `serve` and `join`: a federation between machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.answers import answering, screen
from unseen.cli.between import needs_cryptography, needs_flower
from unseen.cli.membership import admit, init, list_members, remove, renew, request, rotate
from unseen.cli.status import status
from unseen.cli.study import propose

__all__ = ["federation_app", "join", "serve"]

federation_app = typer.Typer(help="Make a federation between machines, and say who belongs to it.", no_args_is_help=True)


def _stop_on_sigterm() -> None:
    """A service manager's stop is a user's Ctrl-C: everything that was started is ended in order."""
    import signal

    signal.signal(signal.SIGTERM, signal.default_int_handler)


for _command in (init, request, admit, remove, rotate, renew):
    federation_app.command()(_command)
federation_app.command("list")(list_members)
federation_app.command()(propose)
federation_app.command()(status)


def serve(
    folder: Annotated[Path, typer.Option("--dir", help="the federation's folder")],
    host: Annotated[str, typer.Option(help="address to listen on")] = "0.0.0.0",  # noqa: S104
    port: Annotated[int | None, typer.Option(help="port to listen on; default the federation's", min=1, max=65535)] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="put the SuperLink's state aside first, and begin with a new one")] = False,
) -> None:
    """Run the server of a federation until stopped.

    Example: unseen serve --dir consortium
    """
    with answering():
        needs_flower()
        from unseen.cli.server_view import ServerView
        from unseen.federation.flower.superlink import serve as run_server
        from unseen.federation.kits import read_federation

        _stop_on_sigterm()
        federation = read_federation(folder)
        with ServerView(screen, federation, f"{host}:{port or federation.port}") as view:
            for warning in federation.warnings:
                view.say(f"warning: {warning}")
            run_server(federation, host, port or federation.port, view, fresh)


def join(
    kit: Annotated[Path, typer.Argument(help="the site's folder, made by `unseen federation request`, or the kit of a trial")],
    data: Annotated[str, typer.Option(help="this site's data: folder:PATH, csv:FILE, or a data set's name with --domain")],
    policy: Annotated[Path | None, typer.Option(help="a TOML file with what may leave; default models, counts and scores")] = None,
    domain: Annotated[str | None, typer.Option(help="which domain of the data is this site's")] = None,
    size: Annotated[int | None, typer.Option(help="image side in pixels")] = None,
    evaluate_only: Annotated[bool, typer.Option("--evaluate-only", help="the data are scored on, never trained on")] = False,
    folder: Annotated[Path | None, typer.Option("--dir", help="where a site of a trial keeps its things; default site-NAME")] = None,
    server: Annotated[str | None, typer.Option(help="HOST:PORT, where it differs from the kit's")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    approve: Annotated[list[Path] | None, typer.Option(help="a study that you have looked at and agree to, repeatable")] = None,
    carrier: Annotated[str, typer.Option(help="flower, or folder:PATH for sites without a line")] = "flower",
) -> None:
    """Join a federation with this site's data, and answer until stopped.

    Example: unseen join site-north --data folder:scans --policy policy.toml --approve study.json
    """
    with answering():
        needs_flower() if carrier == "flower" else needs_cryptography()
        from unseen.cli.site_view import SiteView
        from unseen.federation.kits import open_kit
        from unseen.federation.site.join import SiteSettings
        from unseen.federation.site.join import join as join_federation

        _stop_on_sigterm()
        home = folder or (kit if kit.is_dir() else Path(f"site-{kit.stem}"))
        opened = open_kit(kit, home)
        rules = str(policy) if policy else None
        studies = tuple(str(file) for file in approve or ())
        settings = SiteSettings(str(kit), str(home), data, domain, size, rules, evaluate_only, device, studies)
        with SiteView(screen, opened.client, opened.federation, home) as view:
            for warning in opened.warnings:
                view.say(f"warning: {warning}")
            join_federation(settings, server, carrier, view)
