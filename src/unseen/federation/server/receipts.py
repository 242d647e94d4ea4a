"""The receipts that the server gives for its sites' ledgers, and keeps: one file per site, only ever appended to."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from unseen.errors import RefusedReply
from unseen.federation.countersigning import EMPTY, check_head, read_receipts, receipt_line, sign_receipt
from unseen.federation.kits import Federation
from unseen.files import append_whole

__all__ = ["Receipts"]


class Receipts:
    """Countersigns the head of a site's ledger as each answer names it. A site cannot go back behind its last receipt."""

    def __init__(self, federation: Federation) -> None:
        self._federation, self._key = federation, federation.signing
        self._folder = federation.path / "receipts"
        self._one_at_a_time = threading.Lock()

    def file(self, site: str) -> Path:
        """Where a site's receipts lie: what `unseen ledger verify --receipts` takes."""
        if site not in self._federation.clients:
            raise KeyError(site)
        return self._folder / f"{site}.jsonl"

    def sign(self, site: str, study: str, head: tuple[int, str]) -> None:
        """Give and keep a receipt, or RefusedReply: the head is no head, or lies behind or beside the last receipt."""
        number, last = check_head(head)
        with self._one_at_a_time:
            before, size = self._read(site)
            if before and number < before["number"]:
                raise RefusedReply(
                    f"its ledger has {number} lines, but the server gave a receipt for line {before['number']} on {before['time']}: "
                    "it was cut, or begun anew"
                )
            if before and number == before["number"]:
                if last != before["hash"]:
                    raise RefusedReply(
                        f"line {number} of its ledger is not the one for which the server gave a receipt on {before['time']}"
                    )
                return
            self._keep(site, study, (number, last), size)

    def last(self, site: str) -> dict[str, Any] | None:
        """The newest receipt of a site, which goes to it with the next question."""
        return self._read(site)[0]

    def begin_anew(self, site: str) -> None:
        """Let a site whose ledger was lost begin another; what was signed before stays in the file."""
        with self._one_at_a_time:
            self._keep(site, "", (0, EMPTY), self._read(site)[1])

    def _read(self, site: str) -> tuple[dict[str, Any] | None, int]:
        """From the disk every time: another process of the server may have signed since."""
        given, size = read_receipts(self.file(site), self._key.public_key(), site, last=True)
        return (given[-1] if given else None), size

    def _keep(self, site: str, study: str, head: tuple[int, str], size: int) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        append_whole(self.file(site), size, receipt_line(sign_receipt(self._key, self._federation.id, site, study, head)))
