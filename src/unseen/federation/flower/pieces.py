"""The pieces of messages, in files: beside the SuperLink's state at the server, beside the SuperNode's at a site.

Flower copies a piece with every call that gives or takes one, and keeps it in memory or in its database. At either end two processes of
one owner hand pieces to each other. So here a piece lies in a file that both can open, in a folder of that owner alone, and Flower's store
has its head, which tells how much there is. A file gets the name of its piece when it is whole. At the server it gets it only if its bytes
have that name: what a site sends is hashed on the way in.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextvars import Context
from pathlib import Path
from typing import Any

from unseen.errors import BadInput

__all__ = [
    "MOST_PIECES",
    "PIECE",
    "STEP",
    "Arriving",
    "Pieces",
    "ask_again_for_lost",
    "field",
    "forget_ended_runs",
    "head_of",
    "keep_in_files",
    "size_told",
]

PIECE = 2**25  # bytes
MOST_PIECES = 100  # objects of one message: more than the largest that is taken has
_ROOM = 2**30  # bytes of the disk that are not for pieces: its owner's other files need some
STEP = 2**18  # bytes that are read or written at a time: they stay in the processor's cache on the way
_HEAD = re.compile(rb"ArrayChunk  ([1-9][0-9]{0,9})\x00")  # as Flower writes it: kind, children (none), bytes that follow
_NAME = re.compile(r"[0-9a-f]{64}")
_ARRIVING = "arriving-"
_OLD, _LOOK = 3600.0, 600.0  # seconds after which a file that nobody wants was left behind, and between two looks for such


def head_of(size: int) -> bytes:
    return b"ArrayChunk  %d\x00" % size


def size_told(content: bytes) -> int | None:
    """The bytes of a piece, if this is its head and nothing else."""
    told = _HEAD.fullmatch(content)
    return int(told[1]) if told else None


def field(number: int, size: int) -> bytes:
    """What protobuf writes before a field of so many bytes."""
    head, left = bytearray([number << 3 | 2]), size
    while left > 127:
        head.append(left & 127 | 128)
        left >>= 7
    return bytes((*head, left))


class Arriving:
    """A file that is being written and has no name yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file, self._path = tempfile.mkstemp(prefix=_ARRIVING, dir=folder)  # its owner's alone

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def name(self, path: Path) -> None:
        os.replace(self._path, path)

    def close(self) -> None:
        os.close(self._file)
        with contextlib.suppress(OSError):
            Path(self._path).unlink()  # gone, if it got a name


class Pieces:
    """The pieces in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = self._folder = folder
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)  # else it would have the mode of everyday folders
        try:
            folder.mkdir(exist_ok=True, mode=0o700)
            if stat.S_IMODE(folder.stat().st_mode) != 0o700:
                folder.chmod(0o700)
        except (FileExistsError, PermissionError) as error:
            raise BadInput(f"{folder} is no folder of its owner alone ({error.strerror}); delete it, it is made anew") from None

    def path(self, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise ValueError("a piece without a proper name")
        return self._folder / name

    def must_leave_room(self, size: int) -> None:
        """OSError if the disk would be nearly full with so many bytes more."""
        if shutil.disk_usage(self._folder).free - size < _ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    @contextlib.contextmanager
    def arriving(self) -> Iterator[Arriving]:
        """To be written, and then named. What gets no name is thrown away."""
        one = Arriving(self._folder)
        try:
            yield one
        finally:
            one.close()

    def lay(self, name: str, data: bytes | memoryview) -> None:
        """A piece whose name is known to be right."""
        path = self.path(name)
        with self.arriving() as one:
            one.write(data)
            one.name(path)

    def open(self, name: str, size: int) -> int:
        """To be read and closed. LookupError if it is not there, whole."""
        try:
            file = os.open(self.path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            raise LookupError("a piece that is not there") from None
        if not _is_whole(os.fstat(file), size):
            os.close(file)
            raise LookupError("a piece that is not whole")
        return file

    def read(self, name: str, room: memoryview) -> None:
        """The whole piece, for which there must be exactly as much room."""
        file = self.open(name, len(room))
        try:
            while room:
                read = os.readv(file, [room])
                if not read:
                    raise LookupError("a piece that is not whole")
                room = room[read:]
        finally:
            os.close(file)

    def has(self, name: str) -> bool:
        return _NAME.fullmatch(name) is not None and self.path(name).exists()

    def holds(self, name: str, content: bytes) -> bool:
        """Whether this is the head of a piece that lies here."""
        size = size_told(content)
        try:
            return size is not None and _is_whole(self.path(name).lstat(), size)
        except (OSError, ValueError):
            return False

    def remove(self, name: str) -> bool:
        """Whether it was there."""
        try:
            self.path(name).unlink()
        except (OSError, ValueError):
            return False
        return True

    def sweep(self, wanted: Any = (), older: float | None = None) -> None:
        """Throw away all that nobody wants, and what a process that was killed had begun to write; or what of it is older than this."""
        for file in list(self._folder.iterdir()):
            with contextlib.suppress(OSError):  # gone meanwhile, or no file
                if (older is None or file.lstat().st_mtime < time.time() - older) and file.name not in wanted:
                    file.unlink()


def _is_whole(found: os.stat_result, size: int) -> bool:
    return stat.S_ISREG(found.st_mode) and found.st_size == size


def keep_in_files(kind: Any, pieces: Pieces) -> None:
    """Make one of Flower's stores take the head of a piece for the piece, where that lies in the folder, and remove the file with it.

    All else is checked as Flower does it: the name must be the hash. What was left behind goes now and then.
    """
    from flwr.supercore.inflatable.inflatable_object import get_object_id
    from flwr.supercore.inflatable.inflatable_utils import validate_object_content

    put, delete, looked = kind.put, kind.delete, [-_LOOK]

    def put_or_note(self: Any, object_id: str, object_content: bytes) -> None:
        if not pieces.holds(object_id, object_content):
            if get_object_id(object_content) != object_id:
                raise ValueError(f"Object ID {object_id} does not match content hash")
            validate_object_content(content=object_content)
        put(self, object_id, object_content)

    def delete_with_file(self: Any, object_id: str) -> None:
        if time.monotonic() - looked[0] >= _LOOK:
            looked[0] = time.monotonic()
            pieces.sweep(self, _OLD)
        with getattr(self, "session", contextlib.nullcontext)() as session:
            delete(self, object_id)
            if pieces.has(object_id) and object_id not in self:
                if session is None:
                    pieces.remove(object_id)
                else:
                    _remove_after_commit(self, session, object_id, pieces)

    kind.put, kind.delete = put_or_note, delete_with_file
    kind.verify = property(lambda self: False, lambda self, value: None)  # it was done


def _remove_after_commit(store: Any, session: Any, name: str, pieces: Pieces) -> None:
    """A database that cannot write down that a piece is gone still has it. One that is asked for again meanwhile stays."""
    from sqlalchemy import event
    from sqlalchemy.exc import SQLAlchemyError

    def remove() -> None:
        # Nobody asks for a piece in this session. Where it fails, the files go with a sweep.
        with contextlib.suppress(SQLAlchemyError), store._mutation_session():
            for one in gone:
                if one not in store:
                    pieces.remove(one)

    gone = session.info.setdefault("pieces", [])
    gone.append(name)
    if len(gone) == 1:
        event.listen(session, "after_commit", lambda _: Context().run(remove))  # outside of the session that ends


def ask_again_for_lost(store: Any, pieces: Pieces) -> None:
    """Pieces that the database has and the folder has not, whatever took them: it is asked for again."""
    from flwr.supercore.state.schema.objectstore_models import StoredObject
    from sqlalchemy import func, select, update

    longest = len(head_of(10**10 - 1))
    with store.session() as session:
        small = select(StoredObject.object_id, StoredObject.content).where(
            StoredObject.is_available == 1, func.length(StoredObject.content) <= longest
        )
        lost = [name for name, content in session.execute(small) if size_told(content) is not None and not pieces.holds(name, content)]
        session.execute(update(StoredObject).where(StoredObject.object_id.in_(lost)).values(content=b"", is_available=0))


def forget_ended_runs(state: Any) -> None:
    """Throw away what is left of runs that ended: late answers, and questions that nobody took. Flower keeps them until somebody asks."""
    from flwr.common.constant import Status
    from flwr.supercore.state.schema.objectstore_models import RunObject
    from flwr.supercore.utils import int64_to_uint64
    from sqlalchemy import select

    with state.object_store.session() as session:
        runs = {int64_to_uint64(run) for run in session.scalars(select(RunObject.run_id).distinct())}
    for run, told in state.get_run_status(runs).items():
        if told.status == Status.FINISHED:
            state.cleanup_run(run)
