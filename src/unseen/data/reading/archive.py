"""Reading tar and zip files where they lie. Nothing is unpacked, and members that point out of the archive are refused."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import posixpath
import shutil
import stat
import tarfile
import tempfile
import threading
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from unseen.data.reading.source import FolderSource, Source, is_hidden, listed
from unseen.errors import BadInput

__all__ = ["TarSource", "ZipSource", "is_archive", "nested", "open_source"]

ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip")
_COMPRESSIONS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    zlib.error,
    OSError,
    ValueError,
    NotImplementedError,
)
_LONGEST_CHAIN = 8  # links to links to ... inside an archive


def open_source(path: Path) -> Source:
    """A folder, or a .tar, .tar.gz, .tar.bz2, .tar.xz or .zip file."""
    if path.is_dir():
        return FolderSource(path)
    if not path.exists():
        raise BadInput(f"{path} does not exist; expected a folder or an archive ({', '.join(ARCHIVE_ENDINGS)})")
    if not is_archive(path.name):
        raise BadInput(f"{path} is a file of no known kind; expected a folder or an archive ({', '.join(ARCHIVE_ENDINGS)})")
    return _open_archive(path.open("rb"), str(path))


def nested(source: Source, name: str) -> Source:
    """An archive that lies in a folder or in another archive, which will close it."""
    source.inner.append(_open_archive(io.BytesIO(source.read(name)), f"{source.label}/{name}"))
    return source.inner[-1]


def is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVE_ENDINGS)


def _open_archive(file: BinaryIO, label: str) -> Source:
    try:
        if label.lower().endswith(".zip"):
            return ZipSource(file, label)
        file = _decompressed(file)
        return TarSource(file, label)
    except BaseException as error:
        file.close()
        if isinstance(error, BadInput) or not isinstance(error, _DAMAGED):
            raise
        raise BadInput(f"{label} is damaged or no archive: {error}") from None


def _decompressed(file: BinaryIO) -> BinaryIO:
    """A compressed tar can only be read from its start, so it becomes a plain one for as long as it is open."""
    start = file.read(6)
    file.seek(0)
    opener = next((opener for magic, opener in _COMPRESSIONS.items() if start.startswith(magic)), None)
    if opener is None:
        return file
    plain = tempfile.TemporaryFile()  # noqa: SIM115  the source closes it
    try:
        with file, opener(file, "rb") as packed:
            shutil.copyfileobj(packed, plain, 1 << 20)
    except BaseException:
        plain.close()
        raise
    plain.seek(0)
    return plain


class TarSource(Source):
    """A plain tar, read by the offsets of its members."""

    def __init__(self, file: BinaryIO, label: str) -> None:
        super().__init__(label)
        self._file, self._lock = file, threading.Lock()
        with tarfile.open(fileobj=file, mode="r:") as tar:
            members = {_plain_name(m.name): m for m in tar.getmembers()}
        _refuse(label, [problem for m in members.values() if (problem := _unsafe_member(m))])
        targets = {name: _followed(name, members) for name, m in members.items() if not m.isdir()}
        _refuse(label, [f"{name} is a link to nothing in the archive" for name, m in targets.items() if m is None])
        self._where = {n: (m.offset_data, m.size) for n, m in targets.items() if m is not None and m.isreg() and not is_hidden(n)}
        self.names = tuple(sorted(self._where))
        self.empty_folders = _empty([name for name, m in members.items() if m.isdir()], self.names)

    def read(self, name: str) -> bytes:
        offset, size = self._where[name]
        with self._lock:
            self._file.seek(offset)
            data = self._file.read(size)
        if len(data) < size:
            raise BadInput(f"{name} is cut short: the archive {self.label} ends in it")
        return data

    def close(self) -> None:
        super().close()
        self._file.close()


class ZipSource(Source):
    """A zip file; the library's reader may be shared between threads."""

    def __init__(self, file: BinaryIO, label: str) -> None:
        super().__init__(label)
        self._file, self._zip = file, zipfile.ZipFile(file)
        infos = self._zip.infolist()
        _refuse(label, [problem for info in infos if (problem := _unsafe_entry(info))])
        self._members = {_plain_name(i.filename): i for i in infos if not i.is_dir() and not is_hidden(_plain_name(i.filename))}
        self.names = tuple(sorted(self._members))
        self.empty_folders = _empty([_plain_name(i.filename) for i in infos if i.is_dir()], self.names)

    def read(self, name: str) -> bytes:
        try:
            return self._zip.read(self._members[name])
        except (*_DAMAGED, RuntimeError) as error:
            raise BadInput(f"{name} cannot be read from {self.label}: {error}") from None

    def close(self) -> None:
        super().close()
        self._zip.close()
        self._file.close()


def _plain_name(name: str) -> str:
    return posixpath.normpath(name.replace("\\", "/"))


def _points_out(name: str) -> bool:
    """
    >>> [_points_out(n) for n in ("a/b", "a/../b", "../a", "/a", "C:/a", "a/../../b")]
    [False, True, True, True, True, True]
    """
    name = name.replace("\\", "/")
    return name.startswith("/") or name[1:2] == ":" or ".." in name.split("/")


def _unsafe_member(member: tarfile.TarInfo) -> str:
    if _points_out(member.name):
        return f"{member.name!r} points out of the archive"
    if member.islnk() and _points_out(member.linkname):
        return f"{member.name!r} is a link out of the archive, to {member.linkname!r}"
    if member.issym():
        target = posixpath.normpath(posixpath.join(posixpath.dirname(member.name), member.linkname.replace("\\", "/")))
        if target.startswith(("/", "..")) or member.linkname[1:2] == ":":
            return f"{member.name!r} is a link out of the archive, to {member.linkname!r}"
    if not (member.isreg() or member.isdir() or member.islnk() or member.issym()):
        return f"{member.name!r} is neither a file nor a folder"
    return ""


def _unsafe_entry(info: zipfile.ZipInfo) -> str:
    if _points_out(info.filename):
        return f"{info.filename!r} points out of the archive"
    if stat.S_ISLNK(info.external_attr >> 16):
        return f"{info.filename!r} is a link"
    if info.flag_bits & 0x1:
        return f"{info.filename!r} is encrypted"
    return ""


def _refuse(label: str, problems: list[str]) -> None:
    if problems:
        raise BadInput(
            f"{label} is refused: {listed(problems)}. Take an archive without such members, or unpack it yourself and give the folder"
        )


def _followed(name: str, members: dict[str, tarfile.TarInfo]) -> tarfile.TarInfo | None:
    """The file behind a member that may be a link to a file in the same archive."""
    for _ in range(_LONGEST_CHAIN):
        member = members.get(name)
        if member is None or not (member.islnk() or member.issym()):
            return member
        beside = posixpath.dirname(name) if member.issym() else ""
        name = _plain_name(posixpath.join(beside, member.linkname))
    return None


def _empty(folders: list[str], names: tuple[str, ...]) -> tuple[str, ...]:
    used = {name[:cut] for name in (*names, *folders) for cut, letter in enumerate(name) if letter == "/"}
    return tuple(sorted(f for f in folders if f not in used and not is_hidden(f) and f != "."))
