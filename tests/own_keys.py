"""Sites with keys of their own, in folders beside a federation's."""

from __future__ import annotations

from pathlib import Path

from unseen.federation.kits import Federation, Kit, open_kit
from unseen.federation.membership import admit
from unseen.federation.requests import make_site, read_invitation, read_request


def ask(server: Federation, name: str = "north", folder: str | None = None) -> tuple[Kit, Path]:
    """A site with keys of its own, and its request."""
    home = server.path.parent / (folder or f"site-{name}") / "home"
    home.parent.mkdir(exist_ok=True)
    _, file = make_site(read_invitation(server.path / "invitation.json"), name, home)
    return open_kit(home, home), file


def admitted(server: Federation, name: str = "north") -> tuple[Kit, Path]:
    kit, file = ask(server, name)
    assert admit(server.path, read_request(file)) == "admitted"
    return kit, file


def everything(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".federation.lock"}


def open_to_others(folder: Path) -> list[Path]:
    return [p for p in (folder, *folder.rglob("*")) if p.stat().st_mode & 0o077]
