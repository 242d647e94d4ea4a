"""PACS in its own layout, with and without the official lists."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from PIL import Image

from unseen.data import load, prepare, recognise
from unseen.data.sets.pacs import CLASSES, DOMAINS
from unseen.errors import BadInput


def small_pacs(root: Path, per_class: int = 3) -> Path:
    for d, domain in enumerate(DOMAINS):
        for c, label in enumerate(CLASSES):
            folder = root / domain / label
            folder.mkdir(parents=True)
            for n in range(per_class):
                Image.new("RGB", (12, 12), (60 * d, 30 * c, 10 * n)).save(folder / f"pic_{n:03}.jpg", quality=95)
    return root


def official_lists(root: Path, domain: str, first: int = 1) -> None:
    lines = [(f"{domain}/{label}/pic_{n:03}.jpg {first + c}", n) for c, label in enumerate(CLASSES) for n in range(3)]
    (root / f"{domain}_train_kfold.txt").write_text("\n".join(line for line, n in lines if n < 2) + "\n")
    (root / f"{domain}_crossval_kfold.txt").write_text("\n".join(line for line, n in lines if n == 2) + "\n")
    (root / f"{domain}_test_kfold.txt").write_text("\n".join(line for line, _ in lines) + "\n")  # the whole domain, as published


def test_folders(tmp_path: Path) -> None:
    prepare("pacs", small_pacs(tmp_path / "PACS"), cache=tmp_path / "cache", size=8)
    data = load("pacs", cache=tmp_path / "cache", size=8)
    assert data.names == DOMAINS and data.task.outputs == 7
    for d, domain in enumerate(data.domains):
        assert domain.labels.tolist() == [c for c in range(7) for _ in range(3)]
        assert abs(domain.images[:, 0].astype(int) - 60 * d).max() <= 4
        assert abs(domain.images[:, 1, 4, 4].astype(int) - 30 * domain.labels).max() <= 4
        assert domain.split is None


def test_a_tar_gives_the_same_bytes_as_its_folder(tmp_path: Path) -> None:
    root = small_pacs(tmp_path / "PACS")
    with tarfile.open(tmp_path / "PACS.tar", "w") as tar:
        tar.add(root, "PACS")
    prepare("pacs", root, cache=tmp_path / "one", size=8)
    prepare("pacs", tmp_path / "PACS.tar", cache=tmp_path / "two", size=8, workers=1)
    one, two = (load("pacs", cache=tmp_path / c, size=8) for c in ("one", "two"))
    assert all((a.images == b.images).all() and (a.labels == b.labels).all() for a, b in zip(one.domains, two.domains, strict=True))


def test_official_lists(tmp_path: Path) -> None:
    root = small_pacs(tmp_path / "PACS")
    for domain in DOMAINS[:2]:
        official_lists(root, domain)
    prepare("pacs", root, cache=tmp_path / "cache", size=8)
    data = load("pacs", cache=tmp_path / "cache", size=8)
    split = data["art_painting"].split
    assert split is not None and split.tolist() == ["train", "train", "val"] * 7
    assert data["photo"].split is None  # no lists for it


def test_lists_that_contradict_the_folders_are_refused(tmp_path: Path) -> None:
    root = small_pacs(tmp_path / "PACS")
    official_lists(root, "photo", first=0)
    with pytest.raises(BadInput, match=r"gives photo/dog/pic_002.jpg the class '0'; its folder says dog"):
        prepare("pacs", root, cache=tmp_path / "cache", size=8)


def test_lists_that_name_other_images_are_refused(tmp_path: Path) -> None:
    root = small_pacs(tmp_path / "PACS")
    official_lists(root, "photo")
    (root / "photo" / "dog" / "pic_000.jpg").unlink()
    with pytest.raises(BadInput, match=r"that are not there: photo/dog/pic_000.jpg"):
        prepare("pacs", root, cache=tmp_path / "cache", size=8)


def test_a_missing_domain_is_noted_and_a_strange_class_refused(tmp_path: Path) -> None:
    root = small_pacs(tmp_path / "PACS")
    (root / "sketch").rename(tmp_path / "sketch")
    prepare("pacs", root, cache=tmp_path / "cache", size=8)
    assert load("pacs", cache=tmp_path / "cache", size=8).notes == ("not found and left out: sketch",)
    (root / "photo" / "dog").rename(root / "photo" / "wolf")
    with pytest.raises(BadInput, match="unknown classes photo/wolf"):
        prepare("pacs", root, cache=tmp_path / "cache", size=8)


def test_it_is_recognised(tmp_path: Path) -> None:
    assert recognise(small_pacs(tmp_path / "PACS", 1)) == "pacs"
