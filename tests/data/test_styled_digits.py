"""Styled digits: the same bytes every time, no digit in two domains, and styles that a classifier does notice."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid

from unseen.data.domain import Domain, DomainDataset
from unseen.data.sets.styled_digits import originals, styled_digits
from unseen.task import Classification

NAMES = ("plain", "textured", "inverted", "outline")


@pytest.fixture(scope="module")
def digits() -> DomainDataset:
    return styled_digits()


def fingerprint(dataset: DomainDataset) -> str:
    parts = (array.tobytes() for domain in dataset.domains for array in (domain.images, domain.labels))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def coarse_greys(domain: Domain) -> np.ndarray:
    """The images as 16 x 16 greys in 0..1, one row each."""
    return domain.images.mean(1).reshape(len(domain), 16, 2, 16, 2).mean((2, 4)).reshape(len(domain), -1) / 255


def test_two_calls_give_equal_bytes(digits):
    np.random.seed(1)  # the global stream must not matter
    assert fingerprint(styled_digits()) == fingerprint(digits)


def test_what_the_data_set_says_of_itself(digits):
    assert (digits.name, digits.network, digits.names) == ("styled-digits", "small_cnn", NAMES)
    assert digits.task == Classification(tuple("0123456789"))
    assert digits.pixels.mean == digits.pixels.std == (0.5, 0.5, 0.5)
    assert (digits.channels, digits.size) == (3, (32, 32))


def test_every_original_is_drawn_once_and_with_its_own_label(digits):
    split = originals()
    assert tuple(split) == NAMES
    assert sorted(np.concatenate(list(split.values()))) == list(range(1797))
    for domain in digits.domains:
        np.testing.assert_array_equal(domain.labels, load_digits().target[split[domain.name]])


def test_domains_differ_in_size_but_not_in_their_mix_of_classes(digits):
    assert [len(domain) for domain in digits.domains] == [600, 480, 400, 317]
    overall = np.bincount(load_digits().target) / 1797
    for domain in digits.domains:
        counts = np.bincount(domain.labels, minlength=10)
        assert np.abs(counts - overall * len(domain)).max() <= 1


def test_images_are_bytes_that_use_their_range_and_none_is_empty(digits):
    for domain in digits.domains:
        assert domain.images.dtype == np.uint8 and domain.images.shape[1:] == (3, 32, 32)
        assert domain.labels.dtype == np.int64
        contrast = np.ptp(domain.images.mean(1), axis=(1, 2))
        assert contrast.min() > 60
        assert domain.images.min() < 20 and domain.images.max() > 230


def test_the_original_can_be_found_again_in_its_plain_drawing(digits):
    """Shrunk back to cells, a plain drawing resembles its own original more than most others: the right digit was drawn."""
    cells = load_digits().images[originals()["plain"]].reshape(600, -1)
    inner = digits["plain"].images.mean(1)[:, 4:28, 4:28].reshape(600, 8, 3, 8, 3).mean((2, 4)).reshape(600, -1)
    likeness = np.corrcoef(inner, cells)[:600, 600:]
    better = (likeness > likeness.diagonal()[:, None]).sum(1)
    assert np.median(better) <= 3


def test_styles_are_what_they_are_called(digits):
    def border(name: str) -> np.ndarray:
        return digits[name].images[:, :, [0, 0, -1, -1], [0, -1, 0, -1]].mean((1, 2))

    def grey_gap(name: str) -> float:
        return float(np.ptp(digits[name].images, axis=1).mean())

    assert (border("plain") < digits["plain"].images.mean((1, 2, 3))).all()
    assert (border("inverted") > digits["inverted"].images.mean((1, 2, 3))).mean() > 0.95
    assert grey_gap("plain") == grey_gap("inverted") == 0
    assert grey_gap("textured") > 40 and grey_gap("outline") > 20
    # A contour encloses what a pen fills: its line covers less than the stroke does.
    bright = {name: (digits[name].images.mean(1) > 128).mean() for name in ("plain", "outline")}
    assert bright["outline"] < 0.8 * bright["plain"]


@pytest.mark.parametrize("source", ["plain", "inverted", "outline"])
def test_a_nearest_centroid_classifier_loses_accuracy_in_every_other_domain(digits, source):
    pixels, labels = coarse_greys(digits[source]), digits[source].labels
    model = NearestCentroid().fit(pixels[::2], labels[::2])
    at_home = model.score(pixels[1::2], labels[1::2])
    away = {d.name: model.score(coarse_greys(d), d.labels) for d in digits.domains if d.name != source}
    assert at_home > 0.4
    assert max(away.values()) < at_home - 0.2, away


def test_the_last_domain_is_hard_from_the_other_three(digits):
    sources, unseen = digits.domains[:3], digits["outline"]
    model = KNeighborsClassifier(1).fit(np.concatenate([coarse_greys(d) for d in sources]), np.concatenate([d.labels for d in sources]))
    own = coarse_greys(unseen)
    at_home = KNeighborsClassifier(1).fit(own[::2], unseen.labels[::2]).score(own[1::2], unseen.labels[1::2])
    assert model.score(own, unseen.labels) < at_home - 0.2


def test_three_statistics_of_an_image_tell_its_domain(digits):
    def statistics(domain: Domain) -> np.ndarray:
        images = domain.images.astype(np.float64)
        return np.stack([images.mean((1, 2, 3)), images.std((1, 2, 3)), np.ptp(images, axis=1).mean((1, 2))], axis=1)

    x, y = np.concatenate([statistics(d) for d in digits.domains]), np.repeat(NAMES, [len(d) for d in digits.domains])
    assert KNeighborsClassifier(5).fit(x[::2], y[::2]).score(x[1::2], y[1::2]) > 0.9
