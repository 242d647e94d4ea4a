"""`unseen ledger`: what left a site, and whether its ledger is as it was written."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unseen.cli.answers import answering, errors, screen

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

__all__ = ["ledger_app"]

ledger_app = typer.Typer(help="What left a site, and what it refused.", no_args_is_help=True)
_LEDGER = Annotated[Path, typer.Argument(help="a site's folder, or a ledger.jsonl")]
_WIDTH = 80


@ledger_app.command()
def show(
    file: _LEDGER,
    study: Annotated[str | None, typer.Option(help="only this study: the first digits of its hash")] = None,
    json: Annotated[bool, typer.Option("--json", help="the entries as they stand, one JSON object per line")] = False,
) -> None:
    """Print what left a site, and what it refused.

    Example: unseen ledger show site-north
    """
    with answering():
        from json import dumps

        from unseen.federation.activity import printable
        from unseen.federation.site.ledger_chain import read_ledger

        before = None
        for entry in read_ledger(_ledger_file(file)):
            if study is not None and not str(entry.get("study", "")).startswith(study):
                continue
            if json:
                screen.print(dumps(entry), markup=False)
                continue
            answer = _answer(entry)
            if answer != before:
                screen.print(printable(answer), markup=False)
            before = answer
            screen.print(textwrap.fill(printable(_told(entry)), _WIDTH, subsequent_indent=" " * 8, break_on_hyphens=False), markup=False)


def _answer(entry: dict[str, Any]) -> str:
    """To which question an entry belongs, in one line."""
    words = [str(entry.get("time", ""))[:16].replace("T", " ")]
    study = entry.get("study", entry.get("run"))
    words += [f"study {str(study)[:12]}"] if study else []
    words += [f"round {entry['round']}"] if "round" in entry else []
    return "  ".join([*words, str(entry.get("task") or "")[:30]]).rstrip()


def _told(entry: dict[str, Any]) -> str:
    """What an entry tells, in a line that may be folded."""
    begin = f"{entry.get('number', ''):>6}  "
    if entry.get("kind") == "start":
        return f"{begin}the ledger of {entry.get('site')} begins; federation {entry.get('federation')}, key {str(entry.get('key'))[:16]}"
    if entry.get("kind") == "key":
        return f"{begin}a new key of the site, {str(entry.get('key'))[:16]}"
    if entry.get("kind") == "refusal":
        return f"{begin}REFUSED: {entry.get('reason')}"
    if entry.get("kind") == "look":
        return f"{begin}a study would part the data in another way ({entry.get('split')}); whether the rules allow it was looked at"
    if entry.get("kind") == "summed":
        return f"{begin}what is summed in this study is summed among {', '.join(entry.get('sites', []))}"
    if entry.get("kind") == "approval":
        by = "a person" if entry.get("by") == "hand" else "rule"
        counts = f"{entry.get('train')} to train, {entry.get('validation')} to validate" if entry.get("train") is not None else "no counts"
        return f"{begin}the study was approved by {by}; {entry.get('split')}; told: {counts}"
    kind, part = entry.get("kind", ""), " ".join(str(entry[name]) for name in ("network", "part") if entry.get(name))
    size = f"{entry['bytes']:,} bytes" if isinstance(entry.get("bytes"), int) else ""
    shape = entry.get("shape")
    sizes = "x".join(map(str, shape)) if isinstance(shape, list) else str(shape or "")
    size += " under a mask" if entry.get("masked") else ""
    noise = " ".join(f"{name} {entry[name]}" for name in ("noise", "epsilon") if entry.get(name) is not None)
    told = [str(entry.get("field", "")), f"{kind} ({part})" if part else str(kind), sizes, size, noise]
    digest = f"sha256 {str(entry['sha256'])[:12]}" if "sha256" in entry else ""
    return begin + ", ".join(word for word in [*told, digest] if word)


@ledger_app.command()
def verify(
    file: _LEDGER,
    receipts: Annotated[Path | None, typer.Option(help="the receipts that the server keeps: receipts/SITE.jsonl in its folder")] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="the site's public key, hexadecimal or a file, for a copy elsewhere; earlier keys after it")
    ] = None,
) -> None:
    """Check that nothing in a ledger was changed, cut off or begun anew: exit code 2 if something was.

    Example: unseen ledger verify site-north --receipts consortium/receipts/north.jsonl
    """
    with answering():
        from unseen.federation.keys import public_hex
        from unseen.federation.site.ledger_chain import verify as verify_ledger

        ledger = _ledger_file(file)
        if key:
            current, *earlier = [_public_key(text) for text in key]
            server, before = _server_of(ledger), tuple(public_hex(one) for one in earlier)
        else:
            current, server, before = _keys_beside(ledger)
        count = verify_ledger(ledger, current, server, receipts, before)
        checked = "" if receipts else "; with --receipts, what the server has signed is compared too"
        errors.print(f"{count} lines, as this site wrote them{checked}", markup=False)


@ledger_app.command()
def anew(
    federation: Annotated[Path, typer.Argument(help="the federation's folder, at the server")],
    site: Annotated[str, typer.Argument(help="the site whose ledger was lost")],
) -> None:
    """Let a site whose ledger was lost begin a new one. Its receipts so far are kept.

    Example: unseen ledger anew consortium north
    """
    with answering():
        from unseen.errors import choose
        from unseen.federation.kits import read_federation
        from unseen.federation.server.receipts import Receipts

        known = read_federation(federation)
        receipts = Receipts(known)
        receipts.begin_anew(choose("site", site, known.clients))
        errors.print(f"{site} may begin a new ledger; {receipts.file(site)} says so", markup=False)


def _ledger_file(file: Path) -> Path:
    return file / "ledger.jsonl" if file.is_dir() else file


def _keys_beside(ledger: Path) -> tuple[Ed25519PublicKey, Ed25519PublicKey, tuple[str, ...]]:
    """The site's key, the server's, and the site's earlier ones, from the site's folder."""
    import tomllib

    from unseen.errors import BadInput
    from unseen.federation.keys import read_public, read_signing
    from unseen.federation.rotation import earlier_keys

    home = ledger.parent
    if not ledger.is_file():
        raise BadInput(f"no ledger {ledger}; give a site's folder, or its ledger.jsonl")
    if not (home / "signing.key").exists():
        raise BadInput(
            f"{home} is not a site's folder: it has no signing.key; for a copy of a ledger give the site's public key with --key"
        )
    try:
        server = str(tomllib.loads((home / "kit.toml").read_text())["server_key"])
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"{home / 'kit.toml'} cannot be read ({type(error).__name__}); was the site's folder changed?") from error
    return read_signing(home / "signing.key").public_key(), read_public(server), earlier_keys(home)


def _public_key(text: str) -> Ed25519PublicKey:
    from unseen.errors import BadInput
    from unseen.federation.keys import read_public, read_signing

    file = Path(text)
    if len(text) == 64 and not file.exists():
        return read_public(text)
    if not file.is_file():
        raise BadInput(f"--key {text!r}: expected 64 hexadecimal digits, or a file with them")
    data = file.read_bytes()
    return read_public(data.decode(errors="replace").strip()) if len(data) < 100 else read_signing(file).public_key()


def _server_of(ledger: Path) -> Ed25519PublicKey | None:
    """The server's key as a ledger's first line names it: the receipts must fit it, and the server's own file fits no other."""
    from unseen.federation.keys import read_public
    from unseen.federation.site.ledger_chain import read_ledger

    start = next(read_ledger(ledger), {})
    return read_public(str(start["server"])) if "server" in start else None
