"""`unseen federation status`: how a federation stands, at its server or at a site. It reads, and changes nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.answers import answering, say, screen
from unseen.cli.between import needs_cryptography

if TYPE_CHECKING:
    from unseen.federation.site.status import SiteStatus

__all__ = ["status"]

_MOST_LINES = 5


def status(
    folder: Annotated[Path, typer.Argument(help="the federation's folder at the server, or a site's folder")],
    as_json: Annotated[bool, typer.Option("--json", help="for programs")] = False,
) -> None:
    """How a federation stands: members, who is connected, studies and what each waits for; at a site, its studies, ledger and budget.

    Example: unseen federation status consortium
    """
    with answering():
        needs_cryptography()
        from unseen.errors import BadInput

        if (folder / "federation.json").exists():
            told = server_status(folder)
            typer.echo(json.dumps(told, indent=1)) if as_json else _show_server(told)
        elif (folder / "kit.toml").exists():
            from dataclasses import asdict

            from unseen.federation.site.status import site_status

            found = site_status(folder)
            typer.echo(json.dumps(asdict(found), indent=1)) if as_json else _show_site(found)
        else:
            raise BadInput(f"{folder} is neither a federation's folder nor a site's; expected one with federation.json, or with kit.toml")


def server_status(folder: Path) -> dict[str, Any]:
    """Everything that the server's folder and its own socket tell. No key and no secret is in it."""
    from dataclasses import asdict

    from unseen.federation.keys import valid_until
    from unseen.federation.kits import read_register
    from unseen.federation.membership import members
    from unseen.federation.server.standing import standings

    about = read_register(folder)
    connected = _connected(folder)
    return {
        "federation": about["id"],
        "server": f"{about['server']}:{about['port']}",
        "folder": str(folder),
        "served": connected is not None,
        "certificate_until": f"{valid_until(folder / 'server.pem'):%Y-%m-%d}",
        "authority_until": f"{valid_until(folder / 'ca.pem'):%Y-%m-%d}",
        "members": [
            {
                "name": one.name,
                "since": one.since,
                "keys": "trial" if one.trial else "own",
                "fingerprint": one.fingerprint,
                "connected_since": (connected or {}).get(one.name),
                "receipts": _receipts(folder, one.name),
            }
            for one in members(folder)
            if not one.until
        ],
        "studies": [{**asdict(one), "waits_for": one.waits_for} for one in standings(folder)],
    }


def _connected(folder: Path) -> dict[str, str] | None:
    """Who is connected, and since when; None if nobody serves this folder."""
    from importlib.util import find_spec

    if find_spec("flwr") is None or not (folder / "flower/superlink.sock").exists():
        return None
    from unseen.federation.flower.superlink import connections

    try:
        return connections(folder)
    except OSError:
        return None


def _receipts(folder: Path, name: str) -> int:
    """Lines of a site's ledger for which the server gave a receipt."""
    try:
        last = (folder / "receipts" / f"{name}.jsonl").read_bytes().splitlines()[-1]
        return int(json.loads(last)["number"])
    except (OSError, IndexError, ValueError, KeyError, TypeError):
        return 0


def _show_server(told: dict[str, Any]) -> None:
    from unseen.cli.live import plain_table
    from unseen.cli.server_view import STUDY_HEADINGS, study_rows
    from unseen.federation.server.standing import standings

    served = "`unseen serve` is running" if told["served"] else "`unseen serve` is not running (over a folder it need not)"
    say(f"federation {told['federation']} at {told['server']}\n{served}")
    say(f"the server's certificate holds until {told['certificate_until']}, the authority until {told['authority_until']}\n")
    rows = [(m["name"], m["keys"], m["since"][:10], _line(m, told["served"]), f"{m['receipts']} lines") for m in told["members"]]
    if rows:
        screen.print(plain_table(("site", "keys", "member since", "line", "ledger seen"), rows), soft_wrap=False)
    else:
        say(f"no member yet; admit one with: unseen federation admit {told['folder']} NAME.request")
    found = standings(Path(told["folder"]))
    say("")
    if not found:
        say("no study yet; write one down with: unseen federation propose")
        return
    screen.print(plain_table(STUDY_HEADINGS, study_rows(found), folds=True), soft_wrap=False)
    errors = sorted((when, one.study, text) for one in found for when, text in one.errors)
    _show_refusals([(_moment(when), f"study {study[:8]}, {text}") for when, study, text in errors])


def _line(member: dict[str, Any], served: bool) -> str:
    if member["connected_since"]:
        return f"connected since {str(member['connected_since'])[:16].replace('T', ' ')}"
    return "not connected" if served else "-"


def _show_site(told: SiteStatus) -> None:
    from unseen.cli.live import plain_table
    from unseen.cli.site_view import how_to_approve
    from unseen.federation.activity import amount

    work = "`unseen join` is running" if told.at_work else "`unseen join` is not running"
    if told.connected_since is not None:
        work += f", connected since {_moment(told.connected_since)}"
    say(f"{told.site} of federation {told.federation} at {told.server}\n{work}\n")
    rows = [
        (
            one.study[:8],
            one.method + (", sums" if one.sums else ""),
            f"{one.round} of {one.rounds}",
            amount(one.left),
            one.approved,
            one.state,
        )
        for one in told.studies
    ]
    if rows:
        screen.print(plain_table(("study", "method", "round", "left", "approved", "state"), rows, folds=True), soft_wrap=False)
    else:
        say("no study yet")
    for one in told.studies:
        if one.state == "waits for approval":
            say("\n".join([f"\nto look at study {one.study[:8]}, and to approve it:", *how_to_approve(Path(told.folder), one.study)]))
    if told.to_take_up:
        say(f"\n{told.to_take_up} approvals wait for `unseen join`")
    say("")
    if told.ledger_problem:
        say(f"ledger: {told.ledger_problem}\nwhat to do: docs/operating.md, 'What to do when'")
    else:
        say(f"ledger: {told.ledger_lines} lines, as this site wrote them; head {told.ledger_head[:16] or 'none'}")
    say(_spent(told))
    _show_refusals([(at[:16].replace("T", " "), why) for at, why in told.refusals])


def _show_refusals(rows: list[tuple[str, str]]) -> None:
    """The last ones; one that came several times stands there once."""
    from unseen.cli.live import plain_table

    if not rows:
        return
    last = {why: when for when, why in rows}
    times = {why: sum(other == why for _, other in rows) for why in last}
    told = [(when, why + (f" ({times[why]} times)" if times[why] > 1 else "")) for why, when in last.items()]
    say("\nlast refusals")
    screen.print(plain_table(("when", "why"), told[-_MOST_LINES:], folds=True), soft_wrap=False)


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _spent(told: SiteStatus) -> str:
    noised = f"epsilon {told.epsilon:.2f} with noise" if told.epsilon is not None else "nothing with noise"
    plain = f"{told.plain_answers} answers without noise" if told.plain_answers else "no answer without noise"
    return f"budget, as the ledger has it: {noised}; {plain}"
