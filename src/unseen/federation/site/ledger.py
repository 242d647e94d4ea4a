"""The ledger of a site: everything that left it and everything it refused, signed line by line.

Nobody without the site's key can write a line; nobody, the site included, can take one back for which the server gave a receipt.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from unseen.errors import BadInput, RefusedReply
from unseen.federation.countersigning import EMPTY, check_receipt, read_receipts, receipt_line, refuse_behind
from unseen.federation.keys import public_hex
from unseen.federation.site.ledger_chain import (
    Chain,
    check_chain,
    head_file,
    head_text,
    read_ledger,
    receipts_file,
    signed_line,
    verify,
)
from unseen.federation.site.policy import Rejected
from unseen.files import append_whole, write_atomically

__all__ = ["Ledger", "read_ledger", "verify"]

_WHAT_NOW = (
    "bring ledger.jsonl, ledger.jsonl.head and ledger.jsonl.receipts back from one copy; if there is none, move what is left to another "
    "place, keep it, and ask the server's owner for `unseen ledger anew`"
)
_OURS = {"number", "time", "previous", "hash", "signature"}  # what the ledger says of an entry itself


class Ledger:
    """Appends to a site's ledger. A line is on the disk before what it tells of leaves.

    A new ledger begins with an entry of kind "start". Where the site has a new key (`earlier` names the public ones before it), an
    entry of kind "key" says so. A ledger that was changed, that lacks a half, or that is behind a receipt is refused, and never mended.
    """

    def __init__(
        self,
        file: Path,
        key: Ed25519PrivateKey,
        server_key: Ed25519PublicKey,
        site: str,
        *,
        federation: str = "",
        earlier: Sequence[str] = (),
        receipt: Mapping[str, Any] | None = None,
    ) -> None:
        self.file = file
        self._key, self._server_key, self._site = key, server_key, site
        try:
            receipts, self._receipts_size = read_receipts(receipts_file(file), server_key, site)
            chain = self._checked(receipts, earlier)
        except BadInput as changed:
            raise BadInput(f"{changed}. This site does not start with it: {_WHAT_NOW}") from None
        self._receipted = receipts[-1]["number"] if receipts else 0
        self._hashes, self._size = chain.hashes, chain.size
        self._finish(chain)
        mine = public_hex(key)
        if not self._hashes:
            start = {"federation": federation, "site": site, "key": mine, "server": public_hex(server_key), "receipt": receipt}
            self.append([{"kind": "start", **start}])
        elif chain.signer != mine:
            self.append([{"kind": "key", "key": mine, "before": chain.signer}])

    def _checked(self, receipts: Sequence[Mapping[str, Any]], earlier: Sequence[str]) -> Chain:
        if not self.file.exists() and not head_file(self.file).exists():
            if receipts:
                raise BadInput(f"{self.file} is missing, but there are receipts for it: the ledger was changed")
            write_atomically(head_file(self.file), head_text(0, EMPTY, self._key))
        chain = check_chain(self.file, self._key.public_key(), earlier)
        refuse_behind(chain.hashes, receipts, self.file)
        if chain.hashes and chain.site != self._site:
            raise BadInput(f"{self.file} is the ledger of {chain.site!r}, not of {self._site!r}")
        return chain

    def _finish(self, chain: Chain) -> None:
        """What a kill left undone: half a line is taken away, and the head learns of whole lines that were written before it."""
        if self.file.exists() and self.file.stat().st_size != chain.size:
            append_whole(self.file, chain.size, b"")
        if chain.known != len(chain.hashes):
            write_atomically(head_file(self.file), head_text(*self.head, self._key))

    @property
    def head(self) -> tuple[int, str]:
        """The number of lines, and the hash of the last."""
        return len(self._hashes), self._hashes[-1] if self._hashes else EMPTY

    def entries(self) -> Iterator[dict[str, Any]]:
        return read_ledger(self.file)

    def append(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Sign and chain these entries, on the disk when this returns; all of them or none."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        number, last = self.head
        lines, hashes = [], []
        for entry in entries:
            if _OURS & entry.keys() or (entry.get("kind") == "start" and number):
                raise ValueError(f"an entry cannot bring {', '.join(sorted(_OURS))}, and only the first is a start")
            number += 1
            line, last = signed_line({"number": number, "time": now, **entry, "previous": last}, self._key)
            lines.append(line)
            hashes.append(last)
        if not lines:
            return
        if (self.file.stat().st_size if self.file.exists() else 0) != self._size:
            raise BadInput(f"{self.file} is not as this site left it: it was changed, or another process writes to it")
        data, head = b"".join(lines), head_text(number, last, self._key)
        append_whole(self.file, self._size, data, then=lambda: write_atomically(head_file(self.file), head))
        self._hashes += hashes
        self._size += len(data)

    def take_receipt(self, receipt: Mapping[str, Any]) -> None:
        """Keep a receipt of the server, or Rejected: not the server's, or for a line that is not here."""
        try:
            number, last = check_receipt(receipt, self._server_key, self._site)
        except RefusedReply as bad:
            raise Rejected(f"receipt: {bad}") from None
        if number > len(self._hashes) or (number and self._hashes[number - 1] != last):
            raise Rejected(f"receipt: the server has one for line {number} of this site's ledger, and there is no such line here")
        if number > self._receipted:
            line = receipt_line(receipt)
            append_whole(receipts_file(self.file), self._receipts_size, line)
            self._receipted, self._receipts_size = number, self._receipts_size + len(line)
