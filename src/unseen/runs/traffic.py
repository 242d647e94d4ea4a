"""What travelled: who sent and received which field, of what kind, how many bytes, and whether it grows with the data."""

from __future__ import annotations

from typing import Any

from unseen.payload import Payload, carried

__all__ = ["Traffic", "total_bytes"]

Row = tuple[str, str, str, str, int, bool]  # task, direction, field, kind, bytes, grows


class Traffic:
    """The traffic of one round. Rows that are equal for several clients are kept once, with the clients' names."""

    def __init__(self) -> None:
        self._rows: dict[Row, list[str]] = {}

    def sent(self, task: str, client: str, payload: Payload) -> None:
        self._note(task, "sent", client, payload)

    def received(self, task: str, client: str, payload: Payload) -> None:
        self._note(task, "received", client, payload)

    def _note(self, task: str, direction: str, client: str, payload: Payload) -> None:
        for field in carried(payload):
            if not field.bytes:  # an optional field that was left empty did not travel
                continue
            row = (task, direction, field.field, field.kind, field.bytes, field.grows)
            self._rows.setdefault(row, []).append(client)

    def rows(self) -> list[dict[str, Any]]:
        """As a record holds it: `sent` is what left a client, `received` what reached it, bytes are those of one client."""
        keys = ("task", "direction", "field", "kind", "bytes", "grows")
        return [{**dict(zip(keys, row, strict=True)), "clients": clients} for row, clients in self._rows.items()]


def total_bytes(rows: list[dict[str, Any]], direction: str) -> int:
    """All bytes in one direction, over all clients.

    >>> total_bytes([{"direction": "sent", "bytes": 4, "clients": ["a", "b"]}], "sent")
    8
    """
    return sum(int(row["bytes"]) * len(row["clients"]) for row in rows if row["direction"] == direction)
