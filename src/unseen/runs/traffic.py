"""What travelled: who sent and received which field, of what kind, how many bytes, and whether it grows with the data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypedDict

from unseen.payload import Payload, carried

__all__ = ["Direction", "Traffic", "Travelled", "total_bytes"]

Direction = Literal["sent", "received"]  # left a client, reached it


class Travelled(TypedDict):
    """What one field of one task carried for each of these clients."""

    task: str
    direction: Direction
    field: str
    kind: str
    bytes: int  # of one client
    grows: bool
    clients: list[str]


_Row = tuple[str, Direction, str, str, int, bool]  # a Travelled without its clients


class Traffic:
    """The traffic of one round. Rows that are equal for several clients are kept once, with the clients' names."""

    def __init__(self) -> None:
        self._rows: dict[_Row, list[str]] = {}

    def sent(self, task: str, client: str, payload: Payload) -> None:
        self._note(task, "sent", client, payload)

    def received(self, task: str, client: str, payload: Payload) -> None:
        self._note(task, "received", client, payload)

    def _note(self, task: str, direction: Direction, client: str, payload: Payload) -> None:
        for field in carried(payload):
            if not field.bytes:  # an optional field that was left empty did not travel
                continue
            row: _Row = (task, direction, field.field, field.kind, field.bytes, field.grows)
            self._rows.setdefault(row, []).append(client)

    def rows(self) -> list[Travelled]:
        """As a record holds it."""
        return [
            Travelled(task=task, direction=direction, field=field, kind=kind, bytes=size, grows=grows, clients=clients)
            for (task, direction, field, kind, size, grows), clients in self._rows.items()
        ]


def total_bytes(rows: Iterable[Travelled], direction: Direction) -> int:
    """All bytes in one direction, over all clients.

    >>> total_bytes([{"direction": "sent", "bytes": 4, "clients": ["a", "b"]}], "sent")
    8
    """
    return sum(row["bytes"] * len(row["clients"]) for row in rows if row["direction"] == direction)
