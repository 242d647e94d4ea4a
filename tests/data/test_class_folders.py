"""A user's own folders: what is found in them, and what is said when it is not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from unseen.data import load, prepare, prepared, recognise
from unseen.errors import BadInput
from unseen.task import Classification


def image(path: Path, shade: int = 0, size: tuple[int, int] = (10, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, shade, shade)).save(path)


def two_domains(root: Path) -> Path:
    for d, domain in enumerate(("photo", "sketch")):
        for c, label in enumerate(("cat", "dog")):
            for n in range(2):
                image(root / domain / label / f"{n}.png", 100 * d + 10 * c + n)
    return root


def test_domains_and_classes_are_the_folders(tmp_path: Path) -> None:
    data = load(f"folder:{two_domains(tmp_path / 'my' / 'wrapped')}", cache=tmp_path / "cache", size=16)
    assert data.names == ("photo", "sketch") and data.name == "wrapped"
    assert data.task == Classification(("cat", "dog"))
    assert data["sketch"].labels.tolist() == [0, 0, 1, 1]
    assert data["sketch"].images[:, 0, 3, 3].tolist() == [100, 101, 110, 111]
    assert data["photo"].groups is None and data["photo"].split is None


def test_outer_folders_do_not_matter(tmp_path: Path) -> None:
    two_domains(tmp_path / "a" / "b" / "c")
    assert load(f"folder:{tmp_path / 'a'}", cache=tmp_path / "cache", size=8).names == ("photo", "sketch")


def test_one_site_alone_is_a_data_set(tmp_path: Path) -> None:
    image(tmp_path / "in" / "site" / "cat" / "0.png")
    image(tmp_path / "in" / "site" / "dog" / "0.png")
    assert load(f"folder:{tmp_path / 'in'}", cache=tmp_path / "cache", size=8).names == ("site",)


def test_splits_and_patients_from_folders(tmp_path: Path) -> None:
    for domain in ("a", "b"):
        for split in ("train", "valid", "test"):
            for label in ("0", "10", "9"):
                image(tmp_path / "in" / domain / split / label / "patient7" / "x.png")
    data = load(f"folder:{tmp_path / 'in'}", cache=tmp_path / "cache", size=8)
    assert data.task == Classification(("0", "9", "10"))  # by number
    assert data["a"].split is not None and sorted(set(data["a"].split)) == ["test", "train", "val"]
    assert data["a"].groups is not None and set(data["a"].groups) == {"patient7"}


def test_full_beside_the_splits_is_not_read_twice(tmp_path: Path) -> None:
    for domain in ("a", "b"):
        for split in ("train", "crossval", "full"):
            image(tmp_path / "in" / domain / split / "cat" / f"{split}.png")
            image(tmp_path / "in" / domain / split / "dog" / f"{split}.png")
    assert len(load(f"folder:{tmp_path / 'in'}", cache=tmp_path / "cache", size=8)["a"]) == 4


def test_a_class_that_a_site_lacks_is_noted_and_an_empty_class_refused(tmp_path: Path) -> None:
    root = two_domains(tmp_path / "in")
    image(root / "photo" / "fox" / "0.png")
    (root / "sketch" / "fox").mkdir()
    assert load(f"folder:{root}", cache=tmp_path / "cache", size=8).notes == ("sketch has no image of fox",)
    (root / "sketch" / "owl").mkdir()
    with pytest.raises(BadInput, match="no images in the class folder sketch/owl"):
        load(f"folder:{root}", cache=tmp_path / "cache", size=8)


def test_domains_that_differ_by_case_are_refused(tmp_path: Path) -> None:
    root = two_domains(tmp_path / "in")
    image(root / "Photo" / "cat" / "0.png")
    if len(list(root.iterdir())) == 2:
        pytest.skip("this disk does not tell Photo from photo")
    with pytest.raises(BadInput, match="'Photo' and 'photo' differ only in upper and lower case"):
        load(f"folder:{root}", cache=tmp_path / "cache", size=8)


def test_missing_empty_and_flat_folders_say_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist; expected"):
        load(f"folder:{tmp_path / 'nowhere'}", cache=tmp_path / "cache")
    (tmp_path / "empty" / "within").mkdir(parents=True)
    with pytest.raises(BadInput, match="Found nothing but empty folders"):
        load(f"folder:{tmp_path / 'empty'}", cache=tmp_path / "cache")
    image(tmp_path / "flat" / "cat" / "0.png")
    with pytest.raises(
        BadInput, match=r"cat/0\.png is not in a class folder .* Expected either <domain>/<class>/<image>.* Found 1 files \(\.png\)"
    ):
        load(f"folder:{tmp_path / 'flat'}", cache=tmp_path / "cache")


def test_a_wrong_layout_names_the_nearest_data_set(tmp_path: Path) -> None:
    for domain in ("Art", "Clipart", "Product", "Real World"):
        for label in ("Alarm_Clock", "Bed"):
            image(tmp_path / "in" / domain / label / "1.jpg")
    assert recognise(tmp_path / "in") == "office-home"
    with pytest.raises(BadInput, match="It looks like office-home: unseen data prepare office-home"):
        prepare("pacs", tmp_path / "in", cache=tmp_path / "cache")
    prepare("office-home", tmp_path / "in", cache=tmp_path / "cache", size=8)
    assert load("office-home", cache=tmp_path / "cache", size=8).names == ("Art", "Clipart", "Product", "Real World")


def test_other_names_of_known_domains(tmp_path: Path) -> None:
    for domain in ("clip", "info", "paint", "quick", "real", "sketch"):
        image(tmp_path / "in" / domain / "axe" / "1.jpg")
    prepare("domainnet", tmp_path / "in", cache=tmp_path / "cache", size=8)
    assert set(load("domainnet", cache=tmp_path / "cache", size=8).names) == {
        "clipart",
        "infograph",
        "painting",
        "quickdraw",
        "real",
        "sketch",
    }


def test_all_unreadable_files_are_named_at_once(tmp_path: Path) -> None:
    root = two_domains(tmp_path / "in")
    for n in range(14):
        (root / "photo" / "cat" / f"bad{n:02}.png").write_bytes(b"no image")
    with pytest.raises(BadInput) as caught:
        load(f"folder:{root}", cache=tmp_path / "cache", size=8)
    text = str(caught.value)
    assert "14 of 22 files" in text and "bad00.png" in text and "bad09.png" in text and "bad10.png" not in text and "and 4 more" in text


def test_a_loop_of_links_is_refused_and_links_are_followed(tmp_path: Path) -> None:
    root = two_domains(tmp_path / "in")
    real = two_domains(tmp_path / "elsewhere") / "photo"
    (root / "linked").symlink_to(real, target_is_directory=True)
    assert load(f"folder:{root}", cache=tmp_path / "cache", size=8).names == ("linked", "photo", "sketch")
    (root / "photo" / "loop").symlink_to(root, target_is_directory=True)
    with pytest.raises(BadInput, match="link to a folder that it lies in"):
        load(f"folder:{root}", cache=tmp_path / "cache", size=8)
    (root / "photo" / "loop").unlink()
    (root / "photo" / "cat" / "gone.png").symlink_to(root / "nothing.png")
    with pytest.raises(BadInput, match=r"gone\.png cannot be opened"):
        load(f"folder:{root}", cache=tmp_path / "cache", size=8)


def test_where_each_sample_came_from_is_kept(tmp_path: Path) -> None:
    spec = f"folder:{two_domains(tmp_path / 'in')}"
    assert prepared(spec, cache=tmp_path / "cache", size=8).ids("photo").tolist() == [
        f"photo/{c}/{n}.png" for c in ("cat", "dog") for n in (0, 1)
    ]


names = st.text(st.characters(codec="utf-8", exclude_characters='/\\\0:*?"<>|.', exclude_categories=["Cc", "Cs"]), min_size=1, max_size=8)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(names, st.sets(names, min_size=1, max_size=3), min_size=2, max_size=3))
def test_any_names_are_read_or_refused(tmp_path: Path, tree: dict[str, set[str]]) -> None:
    root = tmp_path / str(abs(hash(str(tree))))
    for domain, labels in tree.items():
        for label in labels:
            image(root / domain / label / "x.png")
    try:
        data = load(f"folder:{root}", cache=root / ".cache", size=8)
    except BadInput:
        return
    assert sum(len(d) for d in data.domains) == sum(len(labels) for labels in tree.values())
    assert np.isin([*data.names], [*tree]).all()
