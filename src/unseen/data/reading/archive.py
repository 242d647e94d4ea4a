"""Reading tar and zip files where they lie. Nothing is unpacked, and members that point out of the archive are refused.

So is an archive that would unpack to far more than it is: see `limits.py`.
"""

from __future__ import annotations

import gzip
import io
import lzma
import posixpath
import re
import stat
import tarfile
import tempfile
import threading
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO, cast

from unseen.data.reading.limits import refuse_members, refuse_size, unpacked_in_parts
from unseen.data.reading.source import FolderSource, Source, is_hidden, listed
from unseen.errors import BadInput

__all__ = ["TarSource", "ZipSource", "is_archive", "nested", "open_source"]

ARCHIVE_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip")
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
_LONGEST_HEADER = 1 << 20  # bytes of a member's names and notes
_LONG_NUMBER = re.compile(rb"\d{256}")
_PART = 1 << 20
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the others cannot be unpacked in parts of a bounded size


def open_source(path: Path) -> Source:
    """A folder, or a .tar, .tar.gz, .tar.bz2, .tar.xz or .zip file."""
    if path.is_dir():
        return FolderSource(path)
    if not path.exists():
        raise BadInput(f"{path} does not exist; expected a folder or an archive ({', '.join(ARCHIVE_ENDINGS)})")
    if not is_archive(path.name):
        raise BadInput(f"{path} is a file of no known kind; expected a folder or an archive ({', '.join(ARCHIVE_ENDINGS)})")
    return _open_archive(path.open("rb"), str(path), path.stat().st_size)


def nested(source: Source, name: str) -> Source:
    """An archive that lies in a folder or in another archive, which will close it. The outermost one's size counts for all."""
    data = source.read(name)
    packed = len(data) if source.packed is None else min(len(data), source.packed)
    source.inner.append(_open_archive(io.BytesIO(data), f"{source.label}/{name}", packed))
    return source.inner[-1]


def is_archive(name: str) -> bool:
    return name.lower().endswith(ARCHIVE_ENDINGS)


def _open_archive(file: BinaryIO, label: str, packed: int) -> Source:
    try:
        if label.lower().endswith(".zip"):
            return ZipSource(file, label, packed)
        file = _decompressed(file, label, packed)
        return TarSource(file, label, packed)
    except BaseException as error:
        file.close()
        if isinstance(error, BadInput) or not isinstance(error, _DAMAGED):
            raise
        raise BadInput(f"{label} is damaged or no archive: {error}") from None


def _decompressed(file: BinaryIO, label: str, packed: int) -> BinaryIO:
    """A compressed tar can only be read from its start, so it becomes a plain one for as long as it is open."""
    parts = unpacked_in_parts(file, packed, label, whole=True)
    if parts is None:
        return file
    plain = tempfile.TemporaryFile()  # noqa: SIM115  the source closes it
    try:
        with file:
            for part in parts:
                plain.write(part)
    except BaseException:
        plain.close()
        raise
    plain.seek(0)
    return plain


class _Headers:
    """A tar as its headers are read: nothing in one of them is long. The library takes hours over a long row of digits."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, size: int) -> bytes:
        if size > _LONGEST_HEADER:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        data = self._file.read(size)
        if size > tarfile.BLOCKSIZE and _LONG_NUMBER.search(data):
            raise tarfile.ReadError("a header with a number of more than 255 digits")
        return data


class TarSource(Source):
    """A plain tar, read by the offsets of its members."""

    def __init__(self, file: BinaryIO, label: str, packed: int) -> None:
        super().__init__(label)
        self._file, self._lock, self.packed = file, threading.Lock(), packed
        members: dict[str, tarfile.TarInfo] = {}
        with tarfile.open(fileobj=cast(BinaryIO, _Headers(file)), mode="r:") as tar:
            for number, member in enumerate(tar, 1):
                refuse_members(number, packed, label)
                members[_plain_name(member.name)] = member
        plain = file.seek(0, io.SEEK_END)
        for name, member in members.items():
            refuse_size(member.size, plain, f"{name} in {label}")
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

    def __init__(self, file: BinaryIO, label: str, packed: int) -> None:
        super().__init__(label)
        self._file, self._zip, self.packed = file, zipfile.ZipFile(file), packed
        infos = self._zip.infolist()
        refuse_members(len(infos), packed, label)
        for info in infos:  # neither of the two sizes that it tells has to be true: see `read`
            refuse_size(info.file_size, min(info.compress_size, packed), f"{info.filename} in {label}")
        refuse_size(sum(info.file_size for info in infos), packed, label, whole=True)
        _refuse(label, [problem for info in infos if (problem := _unsafe_entry(info))])
        self._members = {_plain_name(i.filename): i for i in infos if not i.is_dir() and not is_hidden(_plain_name(i.filename))}
        self.names = tuple(sorted(self._members))
        self.empty_folders = _empty([_plain_name(i.filename) for i in infos if i.is_dir()], self.names)

    def read(self, name: str) -> bytes:
        """In parts: the library would unpack a member whose told size is too small to gigabytes at once."""
        try:
            with self._zip.open(self._members[name]) as stream:
                return b"".join(iter(lambda: stream.read(_PART), b""))
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
    if member.issparse():
        return f"{member.name!r} is a file with holes"
    return ""


def _unsafe_entry(info: zipfile.ZipInfo) -> str:
    if _points_out(info.filename):
        return f"{info.filename!r} points out of the archive"
    if stat.S_ISLNK(info.external_attr >> 16):
        return f"{info.filename!r} is a link"
    if info.flag_bits & 0x1:
        return f"{info.filename!r} is encrypted"
    if info.compress_type not in _ZIP_METHODS:
        return f"{info.filename!r} is packed in another way than zip's usual one (deflate)"
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
