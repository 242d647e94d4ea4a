"""Copies are found after recompression and changes of brightness, and nothing else is."""

from __future__ import annotations

import io
import time

import numpy as np
import pytest
import scipy.fft
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from unseen.data.checks import duplicates
from unseen.data.checks.duplicates import HASH_RADIUS, Looks, byte_digests, copies_of_earlier, hamming, look_at, near_pairs

Images = NDArray[np.uint8]


def pictures(number: int, seed: int = 0, size: int = 96) -> Images:
    """Random pictures as photographs are: coarse structure, finer details, colours that follow the brightness."""
    noise = torch.from_numpy(np.random.default_rng(seed).normal(size=(number, 1, 24, 24)))
    coarse = F.interpolate(F.adaptive_avg_pool2d(noise, 6), size=size, mode="bilinear") * 4
    fine = F.interpolate(noise, size=size, mode="bilinear")
    tint = torch.tensor([1.0, 0.8, 0.6]).view(1, 3, 1, 1)
    return (128 + tint * (25 * coarse + 25 * fine)).clamp(0, 255).byte().numpy()


def recompressed(image: Images, quality: int) -> Images:
    file = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file).convert("RGB")).transpose(2, 0, 1)


def brighter(image: Images, by: int) -> Images:
    return np.clip(image.astype(np.int64) + by, 0, 255).astype(np.uint8)


ALTERATIONS = {
    "recompressed": lambda image: recompressed(image, 50),
    "brighter": lambda image: brighter(image, 30),
    "darker": lambda image: brighter(image, -30),
    "less contrast": lambda image: (image * 0.7).astype(np.uint8),
    "recompressed and brighter": lambda image: recompressed(brighter(image, 20), 60),
    "in grey": lambda image: np.broadcast_to(image.mean(0, keepdims=True), image.shape).astype(np.uint8),
}


@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_altered_copies_are_found_and_only_they(alteration: str):
    originals, others = pictures(60), pictures(60, seed=1)
    copied = {7: 3, 21: 40, 55: 59}
    for source, place in copied.items():
        others[place] = ALTERATIONS[alteration](originals[source])
    assert near_pairs(look_at(originals), look_at(others)) == list(copied.items())


@pytest.mark.parametrize("make", [pictures, lambda n, seed: np.random.default_rng(seed).integers(0, 256, (n, 3, 32, 32), dtype=np.uint8)])
def test_no_false_alarm_on_different_images(make):
    assert near_pairs(look_at(make(300, seed=1)), look_at(make(300, seed=2))) == []


def test_pictures_in_one_common_frame_are_not_copies():
    """A bright disc on black, as every fundus photograph is: hashes are near, details differ."""
    y, x = np.mgrid[:96, :96]
    disc = ((y - 48) ** 2 + (x - 48) ** 2 < 42**2).astype(np.uint8)
    a, b = (look_at((pictures(40, seed) // 2 + 100) * disc) for seed in (1, 2))
    assert (hamming(a.hashes[:, None], b.hashes[None]) <= HASH_RADIUS).sum() > 20
    assert near_pairs(a, b) == []


def test_even_images_are_copies_of_nothing():
    even = np.stack([np.full((3, 40, 40), value, dtype=np.uint8) for value in (0, 9, 255)])
    assert near_pairs(look_at(even), look_at(even)) == []


def test_the_hash_is_the_sign_of_low_frequencies_about_their_median():
    image = pictures(1, size=32)
    spectrum = scipy.fft.dctn(image[0].mean(0), norm="ortho")[:8, :8].ravel()[1:]
    expected = int("0" + "".join("1" if value > np.median(spectrum) else "0" for value in spectrum), 2)
    assert int.from_bytes(look_at(image).hashes.tobytes(), "big") == expected


def test_near_pairs_equals_a_loop_over_all_pairs(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(duplicates, "_BLOCK", 7)
    images = pictures(20)
    others = np.concatenate([pictures(9, seed=5), np.stack([brighter(image, 25) for image in images[::2]])])
    a, b = look_at(images), look_at(others)
    expected = []
    for i in range(len(a.hashes)):
        likeness = a.details[i].astype(np.float32) @ b.details.astype(np.float32).T
        near = [bin(int(a.hashes[i]) ^ int(h)).count("1") <= HASH_RADIUS for h in b.hashes]
        likeness[~np.array(near)] = 0
        if likeness.max() > duplicates.SAME_DETAILS:
            expected.append((i, int(likeness.argmax())))
    assert near_pairs(a, b) == expected
    assert len(expected) == 10


def test_of_several_copies_the_most_alike_is_named_whichever_block_it_is_in(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(duplicates, "_BLOCK", 2)
    original = pictures(1)
    worse, best = recompressed(original[0], 40), brighter(original[0], 3)
    others = np.stack([worse, *pictures(1, seed=1), best, *pictures(1, seed=2), worse])
    assert near_pairs(look_at(original), look_at(others)) == [(0, 2)]


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), min_size=1, max_size=20))
def test_hamming_counts_the_bits_that_differ(pairs: list[tuple[int, int]]):
    a, b = (np.array(numbers, dtype=np.uint64) for numbers in zip(*pairs, strict=True))
    assert hamming(a, b).tolist() == [(x ^ y).bit_count() for x, y in pairs]


def test_hamming_without_numpy_2(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    a, b = np.array([[0], [2**64 - 1]], dtype=np.uint64), np.array([[0, 5]], dtype=np.uint64)
    assert hamming(a, b).tolist() == [[0, 2], [64, 62]]


def test_digests_are_of_the_bytes():
    images = pictures(4, size=16)
    images[3] = images[1]
    assert copies_of_earlier(byte_digests(images)) == [(1, 3)]
    assert byte_digests(images[::-1])[0] == byte_digests(images)[3]


@settings(max_examples=20, deadline=None)
@given(n=st.integers(0, 3), channels=st.integers(1, 4), height=st.integers(1, 50), width=st.integers(1, 50))
def test_images_of_any_form_have_looks(n: int, channels: int, height: int, width: int):
    looks = look_at(np.random.default_rng(0).integers(0, 256, (n, channels, height, width), dtype=np.uint8))
    assert looks.hashes.shape == (n,) and looks.details.shape == (n, 1024)
    assert np.isfinite(looks.details).all()


def test_joined_looks_are_those_of_all_images():
    images = pictures(5)
    joined, whole = Looks.joined([look_at(images[:2]), look_at(images[2:])]), look_at(images)
    assert np.array_equal(joined.hashes, whole.hashes) and np.allclose(joined.details, whole.details, atol=1e-3)


def test_ten_thousand_images_that_all_look_alike_by_hash_take_seconds():
    details = np.random.default_rng(0).normal(size=(5000, 1024)).astype(np.float16) / 32
    looks = Looks(np.zeros(5000, dtype=np.uint64), details)
    start = time.perf_counter()
    assert near_pairs(looks, Looks(looks.hashes, np.roll(details, 1, axis=1))) == []
    assert time.perf_counter() - start < 20
