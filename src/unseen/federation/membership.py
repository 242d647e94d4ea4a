"""Who belongs to a federation, at its server: sites are admitted, get new keys and are removed while everything runs.

All of it is in `federation.json`, which is replaced as a whole under a lock. `unseen serve` looks at it again and again.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from unseen.errors import BadInput
from unseen.federation.keys import Authority, fingerprint, read_curve, refuse_expired, timestamp, valid_until
from unseen.federation.kits import KEYS, MOST_DAYS, read_register
from unseen.federation.requests import MembershipRequest
from unseen.files import write_atomically

__all__ = ["Member", "admit", "members", "remove", "renew"]

_PATIENCE = 10.0  # seconds to wait for another command that changes the members


@dataclass(frozen=True)
class Member:
    """A site that belongs to a federation, or did."""

    name: str
    keys: dict[str, str]
    since: str
    trial: bool = False  # the server made its keys
    until: str = ""  # when it was removed, or its keys were replaced
    why: str = ""  # removed, rotated or replaced

    @property
    def fingerprint(self) -> str:
        return fingerprint({"name": self.name, **self.keys})


def members(path: Path) -> list[Member]:
    """The members by name, then those that were, the last one first."""
    about = read_register(path)
    present = [Member(name, _keys(m), m["since"], m["trial"]) for name, m in sorted(about["clients"].items())]
    past = [Member(m["name"], _keys(m), m["since"], until=m["until"], why=m["why"]) for m in reversed(about["removed"])]
    return present + past


def admit(path: Path, request: MembershipRequest, replace: bool = False) -> str:
    """Make the site a member, or give a member the keys that it asks for; how it came about: admitted, rotated or replaced."""
    with _changed(path) as about:
        if request.federation != about["id"]:
            raise BadInput(f"the request is for federation {request.federation}, and {path} is federation {about['id']}")
        name, known = request.name, about["clients"].get(request.name)
        if known is not None and _keys(known) == request.keys:
            raise BadInput(f"{name} is a member with these very keys; there is nothing to do")
        _refuse_used_keys(about, request)
        how = "admitted" if known is None else _how_replaced(request, known["signing"], replace)
        if known is not None:
            _retire(about, name, how)
        elif request.replaces:
            raise BadInput(f"{name} is no member, so it has no keys to replace; let it ask with `unseen federation request`")
        about["clients"][name] = {**request.keys, "since": timestamp(), "trial": False}
    return how


def _how_replaced(request: MembershipRequest, known: str, replace: bool) -> str:
    if request.replaces == known:
        return "rotated"
    if replace:
        return "replaced"
    if request.replaces:
        raise BadInput(f"the request replaces other keys than those of {request.name}; is it an old request?")
    raise BadInput(
        f"{request.name} is a member, with other keys. A site that has its keys asks for new ones with `unseen federation rotate`; "
        f"if it lost them, make sure by telephone that the request is its own, and add --replace"
    )


def _refuse_used_keys(about: dict[str, Any], request: MembershipRequest) -> None:
    used = [(name, member) for name, member in about["clients"].items()] + [(m["name"], m) for m in about["removed"]]
    for name, member in used:
        if any(request.keys[kind] == member[kind] for kind in KEYS):
            state = f"were those of {name} until {member['until']}" if "until" in member else f"are those of {name}"
            raise BadInput(f"keys in the request {state}; the site has to make new ones (`unseen federation request` in a new folder)")


def remove(path: Path, name: str) -> None:
    """End a site's membership at once. Its keys do not come back."""
    with _changed(path) as about:
        if name not in about["clients"]:
            raise BadInput(f"{name!r} is no member; there are: {', '.join(sorted(about['clients'])) or 'none'}")
        _retire(about, name, "removed")
    (path / "kits" / f"{name}.kit").unlink(missing_ok=True)


def _retire(about: dict[str, Any], name: str, why: str) -> None:
    member = about["clients"].pop(name)
    about["removed"].append({"name": name, **_keys(member), "since": member["since"], "until": timestamp(), "why": why})


def renew(path: Path, days: int) -> datetime.datetime:
    """A new certificate for the server, of the same authority and for the same key; until when it holds."""
    if not 1 <= days <= MOST_DAYS:
        raise BadInput(f"{days} days; a certificate lasts 1 to {MOST_DAYS}")
    about, ca = read_register(path), path / "ca.pem"
    refuse_expired(ca, "it is the authority's; make a new federation with `unseen federation init`")
    left = (valid_until(ca) - datetime.datetime.now(datetime.UTC)).days
    if days > left:
        raise BadInput(f"{days} days; the authority's own certificate ends in {left}")
    certificate, _ = Authority.read(ca, path / "secrets/ca.key").certify(about["server"], days, read_curve(path / "secrets/server.key"))
    write_atomically(path / "server.pem", certificate, 0o600)
    return valid_until(path / "server.pem")


@contextmanager
def _changed(path: Path) -> Iterator[dict[str, Any]]:
    """What `federation.json` says, to be changed; written back whole if nothing was refused."""
    read_register(path)  # no lock in a folder without a federation
    try:
        with FileLock(path / ".federation.lock", timeout=_PATIENCE, mode=0o600):
            about = read_register(path)
            yield about
            write_atomically(path / "federation.json", json.dumps(about, indent=1) + "\n", 0o600)
    except Timeout:
        raise BadInput(f"another command is changing the members of {path}; try again") from None


def _keys(member: dict[str, Any]) -> dict[str, str]:
    return {kind: member[kind] for kind in KEYS}
