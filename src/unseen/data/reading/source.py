"""The files that a data set is read from, wherever they lie: by their path below a folder or inside an archive."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from stat import S_ISREG

from unseen.data.reading.limits import refuse_size
from unseen.errors import BadInput

__all__ = ["IMAGE_ENDINGS", "FolderSource", "Source", "WrongLayout", "files_fingerprint", "is_hidden", "is_image", "listed", "read_file"]

IMAGE_ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".webp")
_SHOWN = 5  # how many of many things a message lists


class WrongLayout(BadInput):
    """The files are not arranged as a reader expects; whoever called it says what was expected and what was found."""


class Source(ABC):
    """Files by name; '/' stands between the parts of a name on every platform."""

    names: tuple[str, ...]  # every file, sorted
    empty_folders: tuple[str, ...] = ()
    packed: int | None = None  # bytes of the archive that all of it came in; None for files that lie there

    def __init__(self, label: str) -> None:
        self.label = label  # what messages call it
        self.inner: list[Source] = []  # archives inside this one, open as long as it is

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The whole file. Threads may call this at the same time."""

    def close(self) -> None:
        """Give back what reading needed."""
        for source in self.inner:
            source.close()

    def text(self, name: str) -> str:
        try:
            return self.read(name).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadInput(f"{self.label}: {name} is not UTF-8 text ({error.reason} at byte {error.start})") from None

    def images(self) -> list[str]:
        return [name for name in self.names if is_image(name)]

    def found(self) -> str:
        """What there is, in a few words, for a message about a wrong layout."""
        if not self.names:
            return "nothing but empty folders" if self.empty_folders else "nothing"
        tops = sorted({name.split("/")[0] + ("/" if "/" in name else "") for name in self.names})
        endings = sorted({PurePosixPath(name).suffix.lower() or "no ending" for name in self.names})
        return f"{len(self.names)} files ({listed(endings)}) in {listed(tops)}, for example {self.names[0]}"


class FolderSource(Source):
    """A folder on the disk, links followed."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.root = root
        files: list[str] = []
        empty: list[str] = []
        for name, entry in _walk(root):
            (empty if entry is None else files).append(name)
        self.names, self.empty_folders = tuple(sorted(files)), tuple(sorted(empty))

    def read(self, name: str) -> bytes:
        return read_file(self.root / name, name)


def read_file(path: Path, name: str) -> bytes:
    """A file's bytes. One that is too large is refused: its length costs nothing where it is made of holes."""
    try:
        size = path.stat().st_size
        refuse_size(size, size, name)
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"{name} cannot be opened: {error.strerror}") from None


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_ENDINGS)


def is_hidden(name: str) -> bool:
    """Left behind by a file manager, not part of the data."""
    parts = name.split("/")
    return any(part.startswith(".") or part == "__MACOSX" for part in parts) or parts[-1] in ("Thumbs.db", "desktop.ini")


def files_fingerprint(path: Path) -> str:
    """SHA-256 over names, sizes and times of all files, or of the archive: changes when a file does, without reading them."""
    found = [("", path.stat())] if path.is_file() else _walk(path)
    lines = sorted(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}" if stat else f"{name}\0empty folder" for name, stat in found)
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _walk(root: Path) -> Iterator[tuple[str, os.stat_result | None]]:
    """Every file below a folder with what the disk says of it; an empty folder with None."""
    waiting: list[tuple[str, Path, tuple[tuple[int, int], ...]]] = [("", root, (_identity(root),))]
    while waiting:
        prefix, folder, above = waiting.pop()
        try:
            entries = [e for e in os.scandir(folder) if not is_hidden(e.name)]
        except OSError as error:
            raise BadInput(f"folder {folder} cannot be listed: {error.strerror}") from None
        if not entries and prefix:
            yield prefix.rstrip("/"), None
        for entry in entries:
            try:
                stat = entry.stat()
                is_folder = entry.is_dir()
            except OSError as error:  # a link to nothing, or to itself
                raise BadInput(f"{entry.path} cannot be opened: {error.strerror}; remove the file or repair the link") from None
            if not is_folder and not S_ISREG(stat.st_mode):
                raise BadInput(f"{entry.path} is neither a file nor a folder; remove it")
            if not is_folder:
                yield prefix + entry.name, stat
                continue
            identity = _identity(Path(entry.path))
            if identity in above:
                raise BadInput(f"{entry.path} is a link to a folder that it lies in, so the data would never end; remove the link")
            waiting.append((f"{prefix}{entry.name}/", Path(entry.path), (*above, identity)))


def _identity(folder: Path) -> tuple[int, int]:
    stat = folder.stat()
    return stat.st_dev, stat.st_ino


def listed(things: list[str]) -> str:
    """The first few, and how many more.

    >>> listed(["a", "b"])
    'a, b'
    >>> listed(list("abcdefg"))
    'a, b, c, d, e and 2 more'
    """
    more = len(things) - _SHOWN
    return ", ".join(things[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
