"""Phantom sites: the same bytes every time, sound anatomy in every image, and sites that differ."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from scipy import ndimage
from sklearn.linear_model import LogisticRegression

from unseen.data.domain import UNIT, Domain, DomainDataset
from unseen.data.sets.phantom_sites import phantom_sites
from unseen.task import Segmentation

NAMES = ("north", "east", "south", "west")


@pytest.fixture(scope="module")
def sites() -> DomainDataset:
    return phantom_sites()


def fingerprint(dataset: DomainDataset) -> str:
    parts = (array.tobytes() for domain in dataset.domains for array in (domain.images, domain.labels))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def test_two_calls_give_equal_bytes(sites):
    np.random.seed(1)  # the global stream must not matter
    assert fingerprint(phantom_sites()) == fingerprint(sites)


def test_what_the_data_set_says_of_itself(sites):
    assert (sites.name, sites.network, sites.names) == ("phantom-sites", "unet", NAMES)
    assert sites.task == Segmentation(("disc", "cup"))
    assert sites.pixels == UNIT
    assert (sites.channels, sites.size) == (3, (64, 64))


def test_four_sites_of_unequal_size(sites):
    assert [len(site) for site in sites.domains] == [90, 75, 60, 45]
    for site in sites.domains:
        assert site.images.dtype == np.uint8 and site.images.shape == (len(site), 3, 64, 64)
        assert site.labels.dtype == np.uint8 and site.labels.shape == (len(site), 2, 64, 64)
        assert set(np.unique(site.labels)) == {0, 1}


def test_no_two_images_are_alike(sites):
    images = np.concatenate([site.images for site in sites.domains])
    assert len({image.tobytes() for image in images}) == 270


def test_the_cup_lies_inside_the_disc_and_neither_is_empty_or_cut_off(sites):
    for site in sites.domains:
        disc, cup = site.labels[:, 0], site.labels[:, 1]
        assert not (cup & ~disc & 1).any()
        areas = site.labels.sum((2, 3), dtype=np.int64)
        assert areas[:, 1].min() >= 40  # enough pixels for a Dice score to mean something
        assert (areas[:, 1] < 0.8 * areas[:, 0]).all()
        frame = np.ones((64, 64), bool)
        frame[1:-1, 1:-1] = False
        assert not disc[:, frame].any()


def test_disc_and_cup_are_one_piece_each(sites):
    for site in sites.domains:
        pieces = [ndimage.label(mask)[1] for masks in site.labels for mask in masks]
        assert set(pieces) == {1}


def test_the_disc_is_brighter_than_its_surroundings_and_the_cup_than_its_rim(sites):
    for site in sites.domains:
        gains = []
        for image, masks in zip(site.images.mean(1), site.labels == 1, strict=True):
            disc, cup = masks
            around = ndimage.binary_dilation(disc, iterations=5) & ~disc
            assert image[disc].mean() > image[around].mean() + 8
            gains.append(np.median(image[cup]) - np.median(image[disc & ~cup]))
        assert np.mean(np.array(gains) > 0) > 0.9  # vessels may hide a small cup


def test_two_eyes_per_patient_and_no_patient_at_two_sites(sites):
    everyone: set[str] = set()
    for site in sites.domains:
        visits = Counter(site.groups.tolist())
        assert sorted(visits.values(), reverse=True) == [2] * (len(site) // 2) + [1] * (len(site) % 2)
        assert not everyone & set(visits)
        everyone |= set(visits)


def test_eyes_of_one_patient_resemble_each_other(sites):
    """Discs of a pair differ less in size than discs of strangers: splitting by image would leak."""
    for site in sites.domains:
        sizes = np.sqrt(site.labels[:, 0].sum((1, 2), dtype=np.float64))
        pairs = sizes[: len(sizes) // 2 * 2].reshape(-1, 2)
        within = np.abs(pairs[:, 0] - pairs[:, 1]).mean()
        between = np.abs(pairs[:, 0] - np.roll(pairs[:, 1], 1)).mean()
        assert within < 0.6 * between


def test_sites_differ_in_colour_contrast_and_anatomy(sites):
    colours = {s.name: s.images.mean((0, 2, 3)) for s in sites.domains}
    assert min(np.abs(colours[a] - colours[b]).max() for a, b in combinations(NAMES, 2)) > 5
    blue_by_red = {name: colour[2] / colour[0] for name, colour in colours.items()}
    assert blue_by_red["east"] < 0.9 * blue_by_red["north"] and blue_by_red["north"] < 0.5 * blue_by_red["south"]
    contrast = {s.name: s.images.std((2, 3)).mean() for s in sites.domains}
    assert contrast["north"] > 1.3 * contrast["west"]
    discs = {s.name: s.labels[:, 0].mean() for s in sites.domains}
    assert discs["east"] > 1.5 * discs["south"]


def test_noise_and_blur_differ_by_site(sites):
    grain = {s.name: np.abs(s.images[:, 2] - ndimage.median_filter(s.images[:, 2].astype(float), (1, 3, 3))).mean() for s in sites.domains}
    assert max(grain, key=grain.get) == "south"
    assert grain["south"] > 1.5 * grain["north"]


def pixels(site: Domain, every: int) -> tuple[np.ndarray, np.ndarray]:
    """Some pixels' colours and whether each belongs to the disc."""
    colours = site.images.transpose(0, 2, 3, 1).reshape(-1, 3) / 255
    return colours[::every], site.labels[:, 0].reshape(-1)[::every]


def dice(found: np.ndarray, mask: np.ndarray) -> float:
    return float(2 * (found & mask).sum() / (found.sum() + mask.sum()))


@pytest.mark.parametrize("unseen", NAMES)
def test_a_colour_rule_learnt_at_one_site_fails_at_another(sites, unseen):
    """A linear rule on colours finds the disc where it was learnt; taken from a site of another cast it does not."""
    x, y = pixels(sites[unseen], 7)
    at_home = dice(LogisticRegression(C=100).fit(*pixels(sites[unseen], 13)).predict(x), y)
    away = [dice(LogisticRegression(C=100).fit(*pixels(s, 13)).predict(x), y) for s in sites.domains if s.name != unseen]
    assert at_home > 0.75
    assert min(away) < at_home - 0.15
