"""Pieces and the SuperLink's database: which files go, and when, and what is asked for again."""

from __future__ import annotations

import hashlib
import sqlite3
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from sqlalchemy import event

from one_piece import BODY, HEAD, NAME, files
from unseen.federation.flower.pieces import Pieces, ask_again_for_lost, keep_in_files


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own
def test_a_piece_stays_as_long_as_the_database_has_it(pieces: Pieces, tmp_path: Path) -> None:
    """What the database cannot write down, as the disk is full, did not happen."""

    class Store(SqlObjectStore):  # type: ignore[misc]
        pass

    keep_in_files(Store, pieces)
    store, root, other, full = Store(str(tmp_path / "state.db")), "f" * 64, "1" * 64, [False]
    store.initialize()
    store.preregister(5, ObjectTree(object_id=root, children=[ObjectTree(object_id=name) for name in (NAME, other)]))
    for name in (NAME, other):
        pieces.lay(name, BODY)
        store.put(name, HEAD)

    @event.listens_for(store._engine, "commit")
    def fails(connection: Any) -> None:
        if full[0]:
            raise sqlite3.OperationalError("database or disk is full")

    full[0] = True
    with pytest.raises(sqlite3.OperationalError):
        store.delete(root)
    full[0] = False
    assert root in store and files(pieces) == sorted([NAME, other])
    with store.session():  # of somebody who does more at once
        store.delete(root)
        assert NAME not in store and files(pieces) == sorted([NAME, other])
    assert not files(pieces) and len(store) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own
def test_a_piece_that_is_asked_for_again_while_it_goes_stays(pieces: Pieces, tmp_path: Path) -> None:
    class Store(SqlObjectStore):  # type: ignore[misc]
        pass

    keep_in_files(Store, pieces)
    store, removed = Store(str(tmp_path / "state.db")), list[Any]()
    store.initialize()
    store.preregister(5, ObjectTree(object_id=NAME))
    pieces.lay(NAME, BODY)
    with store.session() as session:
        event.listen(session, "after_commit", lambda _: removed.append(Context().run(store.preregister, 6, ObjectTree(object_id=NAME))))
        store.delete(NAME)
    assert removed == [[NAME]] and NAME in store and files(pieces) == [NAME]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own
def test_a_piece_that_was_lost_is_asked_for_again(pieces: Pieces, tmp_path: Path) -> None:

    class Store(SqlObjectStore):  # type: ignore[misc]
        pass

    keep_in_files(Store, pieces)
    store, kept, text = Store(str(tmp_path / "state.db")), "1" * 64, b"ConfigRecord  5\0hello"
    store.initialize()
    small = hashlib.sha256(text).hexdigest()
    tree = ObjectTree(object_id="f" * 64, children=[ObjectTree(object_id=name) for name in (NAME, kept, small)])
    store.preregister(5, tree)
    for name in (NAME, kept):
        pieces.lay(name, BODY)
        store.put(name, HEAD)
    store.put(small, text)
    pieces.remove(NAME)
    assert set(store.preregister(6, tree)) == {"f" * 64}
    ask_again_for_lost(store, pieces)
    assert set(store.preregister(7, tree)) == {"f" * 64, NAME}
    assert store.get(kept) == HEAD and store.get(small) == text
