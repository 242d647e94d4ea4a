"""`unseen federation`: who belongs to a federation. Sites make their keys, the server admits them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from unseen.cli.answers import answering, say, screen
from unseen.cli.between import needs_cryptography

__all__ = ["admit", "init", "list_members", "remove", "renew", "request", "rotate"]

_FOLDER = Annotated[Path, typer.Argument(help="the federation's folder, at the server")]


def init(
    folder: Annotated[Path, typer.Argument(help="a new folder, which stays at the server")],
    server: Annotated[str, typer.Option(help="host name or address under which the sites reach the server")],
    clients: Annotated[str, typer.Option(help="for a trial on one machine: names of sites (a,b,c) whose keys the server makes")] = "",
    port: Annotated[int, typer.Option(help="port of the server")] = 8000,
    days: Annotated[int, typer.Option(help="how long the server's certificate lasts")] = 365,
) -> None:
    """Make a federation: its authority, the server's certificate and keys, and an invitation to send to sites.

    Example: unseen federation init consortium --server fl.example.org
    """
    with answering():
        needs_cryptography()
        from unseen.federation.kits import init as make
        from unseen.federation.requests import read_invitation

        made = make(folder, server, [c.strip() for c in clients.split(",") if c.strip()], port, days)
        invitation = folder / "invitation.json"
        say(f"federation {made.id} in {folder}. Send {invitation} to the sites, and tell them its fingerprint by telephone:")
        say(f"  {read_invitation(invitation).fingerprint}")
        if made.clients:
            say("Kits for a trial on one machine. The server made their keys and so knows them: between sites, let each make its own.")
        for client in made.clients:
            say(f"  {client}: {folder / 'kits' / client}.kit")


def request(
    invitation: Annotated[Path, typer.Argument(help="the server's invitation.json")],
    name: Annotated[str, typer.Option(help="this site's name in the federation")],
    folder: Annotated[Path | None, typer.Option("--dir", help="a new folder for the site's keys; default site-NAME")] = None,
) -> None:
    """At a site: make its own keys, and the request to send to the server.

    Example: unseen federation request invitation.json --name north
    """
    with answering():
        needs_cryptography()
        from unseen.federation.kits import refuse_name
        from unseen.federation.requests import make_site, read_invitation

        invited = read_invitation(invitation)
        refuse_name(name)
        home = folder or Path(f"site-{name}")
        asked, file = make_site(invited, name, home)
        say(f"Keys of {name} in {home}; they stay there. Send {file} to the server, and compare both fingerprints by telephone:")
        say(f"  server {invited.fingerprint}")
        say(f"  {name} {asked.fingerprint}")
        say(f"Once the server has admitted {name}: unseen join {home} --data ...")


def rotate(
    folder: Annotated[Path, typer.Argument(help="the site's folder, made by `unseen federation request`")],
    admitted: Annotated[bool, typer.Option("--admitted", help="the server has admitted the new keys: use them from now on")] = False,
) -> None:
    """At a site: make new keys beside the old ones, and the request that they replace them; then, with --admitted, use them.

    Example: unseen federation rotate site-north
    """
    with answering():
        needs_cryptography()
        from unseen.federation.kits import open_kit
        from unseen.federation.requests import request_rotation
        from unseen.federation.rotation import take_next_keys

        if admitted:
            take_next_keys(folder)
            kit = open_kit(folder, folder)
            say(f"{kit.client} has its new keys. Start `unseen join` again. The old public key is kept: it signed a part of the ledger.")
            return
        asked, file = request_rotation(folder)
        say(f"New keys of {asked.name} wait in {folder / 'next'}. Send {file} to the server, and compare the fingerprint by telephone:")
        say(f"  {asked.name} {asked.fingerprint}")
        say(f"Once the server has admitted them: unseen federation rotate {folder} --admitted")


def admit(
    folder: _FOLDER,
    file: Annotated[Path, typer.Argument(metavar="REQUEST", help="a site's NAME.request")],
    replace: Annotated[bool, typer.Option("--replace", help="the member of this name lost its keys: these take their place")] = False,
) -> None:
    """Admit a site by its request, or give a member the new keys that it asks for. A running server knows it at once.

    Example: unseen federation admit consortium north.request
    """
    with answering():
        needs_cryptography()
        from unseen.federation.membership import admit as admit_site
        from unseen.federation.requests import read_request

        asked = read_request(file)
        say(f"{asked.name} {asked.fingerprint}")
        if replace:
            say(f"--replace: the keys that {asked.name} has now end for good, and only your comparison says that these are its new ones.")
        if sys.stdin.isatty() and not typer.confirm(f"Did {asked.name} read out this fingerprint?"):
            say("not admitted")
            raise typer.Exit(1)
        how = admit_site(folder, asked, replace)
        words = {"admitted": "is a member", "rotated": "has its new keys", "replaced": "has new keys; its old ones end here"}
        say(f"{asked.name} {words[how]}. Its fingerprint must be the one that the site reads out; if not: {_removal(folder, asked.name)}")


def _removal(folder: Path, name: str) -> str:
    return f"unseen federation remove {folder} {name}"


def remove(folder: _FOLDER, name: Annotated[str, typer.Argument(help="the site's name")]) -> None:
    """Remove a site at once. Its keys do not come back: to return, it makes new ones.

    Example: unseen federation remove consortium north
    """
    with answering():
        needs_cryptography()
        from unseen.federation.membership import remove as remove_site

        remove_site(folder, name)
        say(f"{name} is no member any more")


def renew(
    folder: _FOLDER,
    days: Annotated[int, typer.Option(help="how long the new certificate lasts")] = 365,
) -> None:
    """Renew the server's certificate. The sites notice nothing.

    Example: unseen federation renew consortium
    """
    with answering():
        needs_cryptography()
        from unseen.federation.membership import renew as renew_certificate

        until = renew_certificate(folder, days)
        say(f"the server's certificate is valid until {until:%Y-%m-%d}. A running `unseen serve` shows it from the next connection on")


def list_members(folder: _FOLDER) -> None:
    """List the sites, their fingerprints, those that were, and until when the certificates hold.

    Example: unseen federation list consortium
    """
    with answering():
        needs_cryptography()
        from rich.table import Table

        from unseen.federation.keys import valid_until
        from unseen.federation.membership import members
        from unseen.federation.requests import read_invitation

        table = Table(box=None, pad_edge=False)
        for heading in ("site", "fingerprint", "since", "keys", "until"):
            table.add_column(heading, header_style="bold", overflow="fold")
        for member in members(folder):
            kind = member.why or ("trial" if member.trial else "own")
            style = "dim" if member.until else ""
            table.add_row(member.name, member.fingerprint, member.since[:10], kind, member.until[:10], style=style)
        screen.print(table, width=None if screen.is_terminal else 160)
        say(f"\nserver's fingerprint: {read_invitation(folder / 'invitation.json').fingerprint}")
        for what, file in (("server's certificate", "server.pem"), ("authority", "ca.pem")):
            say(f"{what}: valid until {valid_until(folder / file):%Y-%m-%d}")
