"""A site's key in the hands of a test: it signs as that site's SuperNode does."""

from __future__ import annotations

import base64
import datetime
import json
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from unseen.federation import keys
from unseen.files import write_atomically


class SiteKey:
    """A key; `hand_out` makes one and writes it into the federation's folder as a site's."""

    def __init__(self, private: bytes | None = None) -> None:
        self.private: Any = serialization.load_ssh_private_key(private or keys.SiteKeys.make().files["node.key"], None)
        self.public: bytes = public_key_to_bytes(self.private.public_key())

    @classmethod
    def hand_out(cls, federation: Path, site: str) -> SiteKey:
        made = keys.SiteKeys.make()
        clients = members(federation)
        entry = clients.get(site) or next(
            iter(clients.values())
        )  # a new one has the other keys of an old one, which count for nothing here
        rewrite(federation, {**clients, site: {**entry, "node": made.public["node"]}})
        return cls(made.files["node.key"])

    @property
    def entry(self) -> str:
        """As a federation's folder names it."""
        public = self.private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        return str(public.decode())

    def headers(self, age: float = 0.0, **changed: bytes) -> list[tuple[bytes, bytes]]:
        """What goes with a call: key, time and signature, as Flower's own client gives them."""
        time = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)).isoformat().encode()
        time = changed.get("time", time)
        signature = sign_message(self.private, changed.get("signed", time))
        public = changed.get("public", self.public)
        return [
            (b"flwr-public-key", base64.b64encode(public)),
            (b"flwr-signature", base64.b64encode(signature)),
            (b"flwr-timestamp", time),
        ]


def members(federation: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads((federation / "federation.json").read_text())["clients"]
    return found


def rewrite(federation: Path, clients: dict[str, dict[str, str]]) -> None:
    """As `admit` and `remove` do: the file is the old one or the new one."""
    about = json.loads((federation / "federation.json").read_text())
    write_atomically(federation / "federation.json", json.dumps({**about, "clients": clients}))
