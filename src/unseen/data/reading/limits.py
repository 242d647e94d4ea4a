"""How much a file that somebody sent may become. What is larger is refused before it is unpacked, or as soon as it shows.

Whoever packs a file says how large it is, and may lie. So sizes are compared with the bytes that are there: a small file may unpack to
`FREE` bytes, a larger one to `RATIO` times its own size. Images of patients and whole data sets stay far below; a bomb does not.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from unseen.errors import BadInput

__all__ = ["LIMITS", "pixel_limit", "refuse_members", "refuse_pixels", "refuse_size", "unpacked", "unpacked_in_parts"]

LIMITS = "UNSEEN_LIMITS"  # of the environment: a number that all limits are multiplied by
FREE, RATIO = 200 * 10**6, 50  # bytes that anything may unpack to, and how many times its packed size
FILE, ARCHIVE = 4 * 10**9, 64 * 10**9  # bytes of one file, and of all files of an archive
MEMBERS, BYTES_A_MEMBER = 100_000, 100  # files of an archive; of a large one, so many bytes each
PIXELS = 50 * 10**6  # of one image, or voxels of one volume
FREE_PIXELS, PIXELS_A_BYTE = 16 * 10**6, 100  # pixels that any file may hold, and how many for each of its bytes

_DAMAGED = (EOFError, OSError, ValueError, lzma.LZMAError, zlib.error)
_OPENERS: dict[bytes, Callable[..., Any]] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}
_PART = 1 << 20


def refuse_size(size: int, packed: int, what: str, *, whole: bool = False) -> None:
    """BadInput if a file of `packed` bytes must not become one of `size`; with `whole`, if an archive must not become so many files."""
    most = _most(packed, whole)
    if size > most:
        raise BadInput(_too_large(what, f" and unpacks to {_megabytes(size)}" if size != packed else "", packed, most))


def refuse_members(number: int, packed: int, what: str) -> None:
    """BadInput if an archive of `packed` bytes must not hold so many files and folders."""
    most = int(_factor() * max(MEMBERS, packed // BYTES_A_MEMBER))
    if number > most:
        raise BadInput(f"{what} holds more than {most:,} files in {_megabytes(packed)}. {_HOW_TO_RAISE}")


def refuse_pixels(number: int, packed: int, what: str) -> None:
    """BadInput if a file of `packed` bytes must not hold an image, or a volume, of so many pixels."""
    most = int(min(pixel_limit(), _factor() * max(FREE_PIXELS, PIXELS_A_BYTE * packed)))
    if number > most:
        raise BadInput(f"{what} has {number:,} pixels in {_megabytes(packed)}; at most {most:,} are taken. {_HOW_TO_RAISE}")


def pixel_limit() -> int:
    """The most pixels of one image, however large its file is."""
    return int(_factor() * PIXELS)


def unpacked_in_parts(file: BinaryIO, packed: int, what: str, *, whole: bool = False) -> Iterator[bytes] | None:
    """The content of a file that is packed with gzip, bzip2 or xz, in parts, up to its limit; None for any other file."""
    start = file.read(6)
    file.seek(0)
    opener = next((opener for magic, opener in _OPENERS.items() if start.startswith(magic)), None)
    return None if opener is None else _parts(opener(file, "rb"), packed, what, whole)


def unpacked(data: bytes, what: str) -> bytes:
    """The same for bytes in memory, whole; bytes that are not packed come back as they are."""
    try:
        parts = unpacked_in_parts(io.BytesIO(data), len(data), what)
        return data if parts is None else b"".join(parts)
    except BadInput:
        raise
    except _DAMAGED as error:
        raise BadInput(f"{what} is damaged: {error}") from None


def _parts(stream: BinaryIO, packed: int, what: str, whole: bool) -> Iterator[bytes]:
    most, size = _most(packed, whole), 0
    with stream:
        while part := stream.read(_PART):
            size += len(part)
            if size > most:
                raise BadInput(_too_large(what, " and unpacks to more", packed, most))
            yield part


def _most(packed: int, whole: bool) -> int:
    return int(_factor() * min(ARCHIVE if whole else FILE, max(FREE, RATIO * packed)))


def _too_large(what: str, becomes: str, packed: int, most: int) -> str:
    return f"{what} has {_megabytes(packed)}{becomes}; at most {_megabytes(most)} are taken. {_HOW_TO_RAISE}"


_HOW_TO_RAISE = f"If you trust who made it, {LIMITS}=10 in the environment makes all limits ten times as large"


def _megabytes(size: int) -> str:
    """
    >>> _megabytes(700_000), _megabytes(64 * 10**9)
    ('0.7 MB', '64,000 MB')
    """
    return f"{size / 1e6:,.1f} MB" if size < 10**7 else f"{size / 1e6:,.0f} MB"


def _factor() -> float:
    text = os.environ.get(LIMITS, "1")
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        raise BadInput(f"{LIMITS} is {text!r}; expected a number above 0, by which the limits on files are multiplied")
    return factor
