"""`unseen federation`, `serve`, `join` and `ledger`: a federation between machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.answers import answering, errors, screen

__all__ = ["federation_app", "join", "ledger_app", "needs_flower", "serve"]

federation_app = typer.Typer(help="Make a federation between machines.", no_args_is_help=True)
ledger_app = typer.Typer(help="What left a site.", no_args_is_help=True)
_LEDGER = Annotated[Path, typer.Argument(help="a site's folder, or its ledger.jsonl")]


def _say(message: str) -> None:
    screen.print(message, markup=False)


def _stop_on_sigterm() -> None:
    """A service manager's stop is a user's Ctrl-C: everything that was started is ended in order."""
    import signal

    signal.signal(signal.SIGTERM, signal.default_int_handler)


def needs_flower() -> None:
    from importlib.util import find_spec

    from unseen.errors import BadInput

    missing = [name for name in ("flwr", "cryptography") if find_spec(name) is None]
    if missing:
        raise BadInput(f"{' and '.join(missing)} is not installed; run: pip install 'unseen[flower]'")


@federation_app.callback()
def _federation() -> None:
    """Make a federation between machines."""


@federation_app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="a new folder, which stays at the server")],
    server: Annotated[str, typer.Option(help="host name or address under which the sites reach the server")],
    clients: Annotated[str, typer.Option(help="names of the sites: a,b,c")],
    port: Annotated[int, typer.Option(help="port of the server")] = 8000,
    days: Annotated[int, typer.Option(help="how long the certificates last")] = 365,
) -> None:
    """Make certificates and keys, and one kit per site.

    Example: unseen federation init consortium --server fl.example.org --clients north,south,west
    """
    with answering():
        needs_flower()
        from unseen.federation.kits import init as make

        made = make(folder, server, [c.strip() for c in clients.split(",") if c.strip()], port, days)
        _say(f"federation {made.id} in {folder}. Hand each site its kit over a safe way, and nobody else:")
        for client in made.clients:
            _say(f"  {client}: {folder / 'kits' / client}.kit")


def serve(
    folder: Annotated[Path, typer.Option("--dir", help="the federation's folder")],
    host: Annotated[str, typer.Option(help="address to listen on")] = "0.0.0.0",  # noqa: S104
    port: Annotated[int | None, typer.Option(help="port to listen on; default the federation's")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="put the SuperLink's state aside first, and begin with a new one")] = False,
) -> None:
    """Run the server of a federation until stopped.

    Example: unseen serve --dir consortium
    """
    with answering():
        needs_flower()
        from unseen.federation.flower.superlink import serve as run_server
        from unseen.federation.kits import read_federation

        _stop_on_sigterm()
        federation = read_federation(folder)
        run_server(federation, host, port or federation.port, _say, fresh)


def join(
    kit: Annotated[Path, typer.Argument(help="the kit that the server handed out")],
    data: Annotated[str, typer.Option(help="this site's data: folder:PATH, csv:FILE, or a data set's name with --domain")],
    policy: Annotated[Path | None, typer.Option(help="a TOML file with what may leave; default models, counts and scores")] = None,
    domain: Annotated[str | None, typer.Option(help="which domain of the data is this site's")] = None,
    size: Annotated[int | None, typer.Option(help="image side in pixels")] = None,
    evaluate_only: Annotated[bool, typer.Option("--evaluate-only", help="the data are scored on, never trained on")] = False,
    folder: Annotated[Path | None, typer.Option("--dir", help="where the site keeps its things; default site-NAME")] = None,
    server: Annotated[str | None, typer.Option(help="HOST:PORT, where it differs from the kit's")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
) -> None:
    """Join a federation with this site's data, and answer until stopped.

    Example: unseen join north.kit --data folder:scans --policy policy.toml
    """
    with answering():
        needs_flower()
        from unseen.federation.site.join import SiteSettings
        from unseen.federation.site.join import join as join_federation

        _stop_on_sigterm()
        home = folder or Path(f"site-{kit.stem}")
        rules = str(policy) if policy else None
        join_federation(SiteSettings(str(kit), str(home), data, domain, size, rules, evaluate_only, device), server, _say)


@ledger_app.command()
def show(file: _LEDGER, run: Annotated[str | None, typer.Option(help="only this run")] = None) -> None:
    """Print what left a site, line by line.

    Example: unseen ledger show site-north
    """
    with answering():
        from unseen.federation.site.ledger import read_ledger

        widths = dict(zip(("number", "time", "run", "round", "task", "field"), (7, 26, 9, 6, 18, 12), strict=True))
        widths |= {"kind": 10, "shape": 20, "bytes": 12, "sha256": 9}
        _say("".join(name.ljust(width) for name, width in widths.items()))
        for entry in read_ledger(_ledger_file(file)):
            if run is None or str(entry.get("run", "")).startswith(run):
                cells = {**entry, "run": str(entry.get("run", ""))[:8], "sha256": str(entry.get("sha256", ""))[:8]}
                _say("".join(f"{cells.get(name, '')!s} ".ljust(width) for name, width in widths.items()))


@ledger_app.command()
def verify(file: _LEDGER) -> None:
    """Check that nothing in a ledger was changed: exit code 2 if something was.

    Example: unseen ledger verify site-north
    """
    with answering():
        from unseen.federation.site.ledger import verify as verify_ledger

        count = verify_ledger(_ledger_file(file))
        errors.print(f"{count} lines, as they were written")


def _ledger_file(file: Path) -> Path:
    return file / "ledger.jsonl" if file.is_dir() else file
