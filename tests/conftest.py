"""What several tests stand on: a tiny data set that learns in seconds, and small networks."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
import torch

try:
    from hypothesis import settings
except ImportError:  # a machine with a GPU may have pytest and torch alone, which is enough for `make gpu-test`
    settings = None

from unseen.data.domain import UNIT, Domain, DomainDataset
from unseen.task import Classification, Segmentation

if settings is not None:
    settings.register_profile("unseen", deadline=None, derandomize=True, max_examples=50)
    settings.load_profile("unseen")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("there is no GPU here")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def state_for_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """No test touches the user's own state or finds the user's prepared data, not even a fixture of a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNSEEN_STATE", str(folder := tmp_path_factory.mktemp("state")))
        if "UNSEEN_CACHE" not in os.environ:
            patch.setenv("UNSEEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield folder


@pytest.fixture(autouse=True)
def state(state_for_all: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What one test spends of its data, no other test knows."""
    folder = state_for_all / hashlib.sha256(request.node.nodeid.encode()).hexdigest()
    monkeypatch.setenv("UNSEEN_STATE", str(folder))
    return folder


def tiny_classification(sizes: tuple[int, ...] = (40, 30, 20), classes: int = 3, side: int = 8) -> DomainDataset:
    """Domains whose classes differ in which stripe is bright, each domain under its own brightness."""
    domains = []
    for number, size in enumerate(sizes):
        rng = np.random.default_rng(number)
        labels = np.arange(size) % classes
        images = rng.integers(0, 60, (size, 3, side, side)).astype(np.uint8) + np.uint8(15 * number)
        for row, label in enumerate(labels):
            images[row, :, int(label) * 2 : int(label) * 2 + 2] += np.uint8(120)
        domains.append(Domain("abcdefgh"[number], images, labels.astype(np.int64)))
    task = Classification(tuple("xyzuvw"[:classes]))
    return DomainDataset("tiny", task, tuple(domains), pixels=UNIT, network="small_cnn:width=4")


def tiny_segmentation(sizes: tuple[int, ...] = (12, 10, 8), side: int = 16) -> DomainDataset:
    """A bright square with a brighter one inside it."""
    domains = []
    for number, size in enumerate(sizes):
        rng = np.random.default_rng(number)
        images = rng.integers(0, 50, (size, 3, side, side)).astype(np.uint8) + np.uint8(20 * number)
        masks = np.zeros((size, 2, side, side), dtype=np.uint8)
        for row in range(size):
            top, left = rng.integers(1, 5, 2)
            masks[row, 0, top : top + 9, left : left + 9] = 1
            masks[row, 1, top + 3 : top + 6, left + 3 : left + 6] = 1
        images += 60 * masks.sum(1, dtype=np.uint8)[:, None]
        domains.append(Domain("abcdefgh"[number], images, masks))
    return DomainDataset("tiny-masks", Segmentation(("disc", "cup")), tuple(domains), pixels=UNIT, network="unet:width=4,depth=3")


@pytest.fixture(scope="session")
def tiny() -> DomainDataset:
    return tiny_classification()


@pytest.fixture(scope="session")
def tiny_masks() -> DomainDataset:
    return tiny_segmentation()


@pytest.fixture(scope="session")
def few() -> DomainDataset:
    """Half as many: for what every method has to show, and what does not depend on how much there is."""
    return tiny_classification((20, 15, 10))


@pytest.fixture(scope="session")
def few_masks() -> DomainDataset:
    return tiny_segmentation((6, 6, 4))
