"""A piece of a message, as large as those that go through files."""

from __future__ import annotations

import hashlib

from unseen.federation.flower.pieces import Pieces, head_of

BODY = bytes(range(256)) * 1000
HEAD = head_of(len(BODY))
NAME = hashlib.sha256(HEAD + BODY).hexdigest()


def files(pieces: Pieces) -> list[str]:
    return sorted(file.name for file in pieces.folder.iterdir())
