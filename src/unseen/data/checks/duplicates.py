"""Images that are there twice: the same bytes, or the same picture after recompression or a change of brightness.

Exact copies have the same SHA-256. Near copies are found in two steps. A 64-bit perceptual hash (the signs of the low
frequencies of a small grey thumbnail) proposes pairs; a hash alone would also propose any two sketches on white paper, or any
two fundus photographs, so that a pair counts only if the details of the two thumbnails correlate as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Looks", "byte_digests", "copies_of_earlier", "hamming", "look_at", "near_pairs"]

HASH_RADIUS = 10  # bits of 64 in which the hashes of a pair may differ: JPEG at quality 30 changes fewer
SAME_DETAILS = 0.95  # correlation of the details from which two images are the same picture
_THUMBNAIL = 32  # pixels
_NO_DETAIL = 1e-2  # length of the details below which there are none: rounding in an even image, not a picture
_BLOCK = 2048  # hashes compared at once: 2048 x 2048 x 8 bytes stay near the cache
_BYTE_BITS = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


@dataclass(frozen=True, eq=False)
class Looks:
    """How images look, in a form that can be compared quickly."""

    hashes: NDArray[np.uint64]  # [n]
    details: NDArray[np.float16]  # [n, 1024], mean 0 and length 1; zeros for an image without any detail

    @staticmethod
    def joined(parts: Sequence[Looks]) -> Looks:
        return Looks(np.concatenate([p.hashes for p in parts]), np.concatenate([p.details for p in parts]))


def byte_digests(images: NDArray[np.uint8]) -> list[bytes]:
    """The SHA-256 of every image's bytes."""
    return [hashlib.sha256(image.tobytes()).digest() for image in images]


def copies_of_earlier(digests: Sequence[bytes]) -> list[tuple[int, int]]:
    """(first, copy) for every digest that was there before, in order.

    >>> copies_of_earlier([b"a", b"b", b"a", b"a"])
    [(0, 2), (0, 3)]
    """
    first: dict[bytes, int] = {}
    earlier = [(first.setdefault(digest, here), here) for here, digest in enumerate(digests)]
    return [pair for pair in earlier if pair[0] != pair[1]]


def look_at(images: NDArray[np.uint8]) -> Looks:
    """Perceptual hash and details of every image [n, c, h, w]; neither sees a change of brightness or contrast."""
    grey = torch.from_numpy(images.sum(axis=1, dtype=np.float32, keepdims=True))
    thumbnails = F.adaptive_avg_pool2d(grey / images.shape[1], _THUMBNAIL)
    return Looks(_perceptual_hashes(thumbnails[:, 0]), _details(thumbnails))


def near_pairs(a: Looks, b: Looks) -> list[tuple[int, int]]:
    """(row of a, row of b) for every image of `a` that has a near copy in `b`, with the one most like it."""
    best = np.full(len(a.hashes), SAME_DETAILS, dtype=np.float32)
    partner = np.full(len(a.hashes), -1)
    for rows, columns, candidates in _candidates(a.hashes, b.hashes):
        alike = np.where(candidates, a.details[rows].astype(np.float32) @ b.details[columns].astype(np.float32).T, 0)
        column = alike.argmax(1)
        likeness = alike[np.arange(len(rows)), column]
        better = likeness > best[rows]
        best[rows[better]], partner[rows[better]] = likeness[better], columns[column[better]]
    found = np.flatnonzero(partner >= 0)
    return list(zip(found.tolist(), partner[found].tolist(), strict=True))


def hamming(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """In how many bits numbers differ.

    >>> hamming(np.array([0b1011], dtype=np.uint64), np.array([0b0001], dtype=np.uint64))
    array([2], dtype=uint8)
    """
    different = np.asarray(a ^ b)
    counts: NDArray[np.uint8]
    if hasattr(np, "bitwise_count"):  # numpy 2
        counts = np.bitwise_count(different)
    else:
        counts = _BYTE_BITS[different[..., None].view(np.uint8)].sum(-1, dtype=np.uint8)
    return counts


def _candidates(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]]:
    """Rows of a, rows of b and which of their pairs have near hashes, for a block of the table of all pairs at a time."""
    for top in range(0, len(a), _BLOCK):
        for left in range(0, len(b), _BLOCK):
            near = hamming(a[top : top + _BLOCK, None], b[None, left : left + _BLOCK]) <= HASH_RADIUS
            rows, columns = np.flatnonzero(near.any(1)), np.flatnonzero(near.any(0))
            if len(rows):
                yield rows + top, columns + left, near[np.ix_(rows, columns)]


def _perceptual_hashes(thumbnails: Tensor) -> NDArray[np.uint64]:
    """Which of the 63 lowest frequencies of a thumbnail are above their median."""
    low = (_LOW_FREQUENCIES @ thumbnails @ _LOW_FREQUENCIES.T).flatten(1)[:, 1:]  # without the mean, which is brightness
    bits = F.pad(low > low.median(1, keepdim=True).values, (1, 0))
    return np.packbits(bits.numpy(), axis=1).view(np.uint64)[:, 0]


def _details(thumbnails: Tensor) -> NDArray[np.float16]:
    """A thumbnail less its blurred self, as a unit vector.

    Clipped at half a standard deviation: else the rim of a fundus photograph, the same for every patient, outweighs the vessels.
    """
    blurred = F.avg_pool2d(thumbnails, 5, stride=1, padding=2, count_include_pad=False)
    details = (thumbnails - blurred).flatten(1)
    details = details - details.mean(1, keepdim=True)
    bound = details.square().mean(1, keepdim=True).sqrt() / 2
    clipped = details.clamp(-bound, bound)
    details = clipped - clipped.mean(1, keepdim=True)
    return F.normalize(details, dim=1, eps=_NO_DETAIL).numpy().astype(np.float16)


def _cosines(count: int, length: int) -> Tensor:
    """The first rows of the orthonormal DCT-II."""
    k, n = np.arange(count)[:, None], np.arange(length)[None]
    rows = np.cos(np.pi * k * (2 * n + 1) / (2 * length)) * np.sqrt(2 / length)
    rows[0] /= np.sqrt(2)
    return torch.from_numpy(rows.astype(np.float32))


_LOW_FREQUENCIES = _cosines(8, _THUMBNAIL)
