"""Digits-5: MNIST, MNIST-M, SVHN, SynthDigits and USPS, each in the files in which it is published; all 32 px RGB.

What is not there is left out with a note, as long as two of the five remain. Where a set is there in two formats, the first counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from PIL import Image

from unseen.data.domain import Pixels
from unseen.data.reading.archive import is_archive, nested
from unseen.data.reading.decode import Original, planes, resized
from unseen.data.reading.piece import Block, Facts, ImagePiece, Piece, ReadPlan, classification_plan
from unseen.data.reading.source import Source, WrongLayout, listed
from unseen.data.sets.digit_files import Digits, read_h5, read_idx, read_libsvm, read_mat
from unseen.errors import BadInput

__all__ = ["DOMAINS", "read_digits5"]

DOMAINS = ("mnist", "mnist_m", "svhn", "synth", "usps")
_MNIST = {"train": r"train-images[-.]idx3-ubyte(\.gz)?", "test": r"t10k-images[-.]idx3-ubyte(\.gz)?"}
_USPS = {"train": r"usps(\.bz2)?", "test": r"usps\.t(\.bz2)?"}
_SVHN = {"train": r"train_32x32\.mat", "test": r"test_32x32\.mat"}
_SYNTH = {"train": r"synth_train_32x32(_small)?\.mat", "test": r"synth_test_32x32(_small)?\.mat"}


def read_digits5(source: Source) -> ReadPlan:
    readers: dict[str, Callable[[Source], Sequence[Piece]]] = {
        "mnist": _mnist,
        "mnist_m": _mnist_m,
        "svhn": lambda s: _files(s, _SVHN, read_mat),
        "synth": lambda s: _files(s, _SYNTH, read_mat),
        "usps": _usps,
    }
    pieces = {name: found for name, read in readers.items() if (found := read(source))}
    if len(pieces) < 2:
        raise WrongLayout(f"only {listed(list(pieces)) or 'none'} of the five sets of digits is there")
    missing = [name for name in DOMAINS if name not in pieces]
    notes = [f"not found and left out: {', '.join(missing)}"] if missing else []
    centred = Pixels((0.5,) * 3, (0.5,) * 3)
    return classification_plan(tuple("0123456789"), pieces, notes, pixels=centred, network="digits_cnn", augment="none")


@dataclass(frozen=True)
class _DigitsPiece:
    """A file with many digits."""

    id: str
    split: str
    load: Callable[[], Digits]

    def block(self, size: int) -> Block:
        digits, labels = self.load()
        images = np.empty((len(digits), 3, size, size), dtype=np.uint8)
        for row, digit in enumerate(digits):
            images[row] = planes(resized(Image.fromarray(digit), size).convert("RGB"))
        facts = [Facts(f"{self.id}/{row}", split=self.split) for row in range(len(digits))]
        original = Original("RGB" if digits.ndim == 4 else "L", digits.shape[2], digits.shape[1])
        return Block(images, labels, facts, originals=[original] * len(digits))


def _matching(source: Source, pattern: str) -> str | None:
    """The first file of that name, wherever it lies."""
    return next((name for name in source.names if re.fullmatch(pattern, PurePosixPath(name).name)), None)


def _files(source: Source, patterns: dict[str, str], read: Callable[[bytes, str], Digits]) -> list[Piece]:
    found = {split: name for split, pattern in patterns.items() if (name := _matching(source, pattern))}

    def loader(name: str) -> Callable[[], Digits]:
        return lambda: read(source.read(name), name)

    return [_DigitsPiece(name, split, loader(name)) for split, name in found.items()]


def _mnist(source: Source) -> list[Piece]:
    def read(data: bytes, name: str) -> Digits:
        labels_name = name.replace("images", "labels").replace("idx3", "idx1")
        if labels_name not in source.names:
            raise BadInput(f"{labels_name} is missing beside {name}")
        images, labels = read_idx(data, name), read_idx(source.read(labels_name), labels_name)
        if images.ndim != 3 or labels.shape != images.shape[:1] or labels.max(initial=0) > 9:
            raise BadInput(f"{name} holds {images.shape}, {labels_name} {labels.shape}; expected (n, 28, 28) and n digits")
        return images, labels.astype(np.int64)

    return _files(source, _MNIST, read)


def _usps(source: Source) -> list[Piece]:
    name = _matching(source, r"usps\.(h5|hdf5)")
    found = _files(source, _USPS, read_libsvm)
    if found or name is None:
        return found

    def loader(split: str) -> Callable[[], Digits]:
        return lambda: read_h5(source.read(name), name, split)

    return [_DigitsPiece(f"{name}/{split}", split, loader(split)) for split in ("train", "test")]


def _mnist_m(source: Source) -> list[Piece]:
    """`mnist_m_train/` and `mnist_m_test/` with `mnist_m_<part>_labels.txt`; they may lie in an archive of their own."""
    archives = [n for n in source.names if is_archive(n) and PurePosixPath(n).name.startswith("mnist_m")]
    return [piece for place in (source, *(nested(source, name) for name in archives)) for piece in _mnist_m_parts(place)]


def _mnist_m_parts(source: Source) -> list[Piece]:
    pieces: list[Piece] = []
    for split in ("train", "test"):
        table = _matching(source, rf"mnist_m_{split}_labels\.txt")
        if table is None:
            continue
        folder = f"{table.rpartition('/')[0]}/mnist_m_{split}/".lstrip("/")
        there, missing = set(source.names), []
        for number, line in enumerate(source.text(table).splitlines(), 1):
            file, _, label = line.strip().partition(" ")
            if not file:
                continue
            if label.strip() not in tuple("0123456789"):
                raise BadInput(f"{table} line {number} is {line!r}; expected `image.png digit`")
            if folder + file not in there:
                missing.append(folder + file)
            pieces.append(ImagePiece(source, folder + file, int(label), Facts(folder + file, split=split)))
        if missing:
            raise BadInput(f"{table} names {len(missing)} images that are not there: {listed(missing)}")
    return pieces
