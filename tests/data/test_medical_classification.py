"""Camelyon17, GDRBench, ISIC 2019 and MIDOG 2022 from small files in their own formats."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from unseen.data import load, prepare, recognise
from unseen.data.sets.camelyon17 import stratified
from unseen.errors import BadInput


def image(path: Path, colour: tuple[int, int, int] = (0, 0, 0), size: tuple[int, int] = (12, 12)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def small_camelyon(root: Path, per_slide: int = 10) -> Path:
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for center in range(5):
        for patient in (4 + center, 20 + center):
            for n in range(per_slide):
                slide = f"patient_{patient:03}_node_4"
                image(root / "patches" / slide / f"patch_{slide}_x_{n * 32}_y_{center}.png", (40 * center, n, 0))
                lines.append(f"{len(lines)},{patient:03},4,{n * 32},{center},{n % 2},{center},{center},{n % 3 == 0:d}")
    (root / "metadata.csv").write_text("\n".join(lines) + "\n")
    return root


def test_camelyon17(tmp_path: Path) -> None:
    root = small_camelyon(tmp_path / "camelyon17_v1.0")
    assert recognise(root) == "camelyon17"
    prepare("camelyon17", root, cache=tmp_path / "cache", size=12)
    data = load("camelyon17", cache=tmp_path / "cache", size=12)
    assert data.names == tuple(f"center{n}" for n in range(5))
    center = data["center2"]
    assert (center.images[:, 0] == 80).all() and center.labels.tolist() == [n % 2 for n in range(10)] * 2
    assert center.groups is not None and set(center.groups) == {"patient_006", "patient_022"}
    assert center.split is None  # the published one divides patients


def test_camelyon17_tenth(tmp_path: Path) -> None:
    prepare("camelyon17-tenth", small_camelyon(tmp_path / "in"), cache=tmp_path / "cache", size=12)
    data = load("camelyon17-tenth", cache=tmp_path / "cache", size=12)
    assert all(sorted(d.labels.tolist()) == [0, 1] for d in data.domains)  # a tenth of ten in each of two classes
    assert data.notes == ("a stratified 10% of 100 patches",)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("01")), max_size=60), st.floats(0.01, 1))
def test_a_stratified_fraction(strata: list[tuple[str, str]], fraction: float) -> None:
    ids = [str(n) for n in range(len(strata))]
    chosen = stratified(strata, ids, fraction)
    assert chosen == sorted(set(chosen)) == stratified(strata, ids, fraction)
    for stratum in set(strata):
        there = strata.count(stratum)
        assert sum(strata[i] == stratum for i in chosen) == max(1, round(fraction * there))


def test_camelyon17_names_what_is_wrong(tmp_path: Path) -> None:
    root = small_camelyon(tmp_path / "in")
    next((root / "patches" / "patient_004_node_4").iterdir()).unlink()
    with pytest.raises(BadInput, match="names 1 patches that are not there"):
        prepare("camelyon17", root, cache=tmp_path / "cache")
    (root / "metadata.csv").write_text("patient,node\n1,2\n")
    with pytest.raises(BadInput, match="no column x_coord, y_coord, tumor, center"):
        prepare("camelyon17", root, cache=tmp_path / "cache")


def test_gdrbench(tmp_path: Path) -> None:
    root, grades = tmp_path / "GDRBench", ("nodr", "mild_npdr", "moderate_npdr", "severe_npdr", "pdr")
    for site in ("APTOS", "IDRID"):
        for number, grade in enumerate(grades):
            for n in range(2):
                image(root / "images" / site / grade / f"{n}.png", (50 * number, 0, 0))
                image(root / "masks" / site / grade / f"{n}.png", (255, 255, 255))
    (root / "splits").mkdir()
    for part, n in (("train", 0), ("crossval", 1)):
        lines = [f"APTOS/{grade}/{n}.png {number}" for number, grade in enumerate(grades)]
        (root / "splits" / f"APTOS_{part}.txt").write_text("\n".join(lines))
    assert recognise(root) == "gdrbench"
    prepare("gdrbench", root, cache=tmp_path / "cache", size=8)
    data = load("gdrbench", cache=tmp_path / "cache", size=8)
    assert data.names == ("APTOS", "IDRID")
    for domain in data.domains:  # by severity, not by the alphabet; and no masks
        assert len(domain) == 10 and (domain.images[:, 0, 0, 0] == 50 * domain.labels).all()
    split = data["APTOS"].split
    assert split is not None and sorted(split) == ["train"] * 5 + ["val"] * 5


def test_gdrbench_with_numbered_grades(tmp_path: Path) -> None:
    for site in ("APTOS", "DDR"):
        for grade in range(5):
            image(tmp_path / "in" / "images" / site / str(grade) / "a.png")
    prepare("gdrbench", tmp_path / "in", cache=tmp_path / "cache", size=8)
    assert load("gdrbench", cache=tmp_path / "cache", size=8)["DDR"].labels.tolist() == [0, 1, 2, 3, 4]


def small_isic(root: Path) -> Path:
    lines = ["image,target,center,fold,fold2"]
    for n in range(12):
        image(root / "ISIC_2019_Training_Input_preprocessed" / f"ISIC_{n:07}.jpg", (0, 0, 20 * n))
        fold = "train" if n < 6 else "test"
        lines.append(f"ISIC_{n:07},{n % 8},{n % 6},{fold},{fold}_{n % 6}")
    (root / "train_test_split").write_text("\n".join(lines))
    return root


def test_isic2019(tmp_path: Path) -> None:
    root = small_isic(tmp_path / "isic")
    meta = ["image,age_approx,anatom_site_general,lesion_id,sex", *(f"ISIC_{n:07},50,head,HAM_{n // 6},male" for n in range(12))]
    (root / "ISIC_2019_Training_Metadata.csv").write_text("\n".join(meta))
    assert recognise(root) == "isic2019"
    prepare("isic2019", root, cache=tmp_path / "cache", size=8)
    data = load("isic2019", cache=tmp_path / "cache", size=8)
    assert data.names == ("BCN", "HAM_vidir_molemax", "HAM_vidir_modern", "HAM_rosendahl", "MSK", "HAM_vienna_dias")
    third = data["HAM_rosendahl"]  # center 3: images 3 and 9
    assert third.labels.tolist() == [3, 1]
    assert third.split is not None and third.split.tolist() == ["train", "test"]
    assert third.groups is not None and third.groups.tolist() == ["HAM_0", "HAM_1"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [(",3,3,train,", ",9,3,train,", "target of ISIC_0000003 is '9'"), (",3,3,train,", ",3,x,train,", "center of")],
)
def test_isic2019_numbers_out_of_range(tmp_path: Path, old: str, new: str, message: str) -> None:
    root = small_isic(tmp_path / "isic")
    table = root / "train_test_split"
    table.write_text(table.read_text().replace(old, new))
    with pytest.raises(BadInput, match=message):
        prepare("isic2019", root, cache=tmp_path / "cache")


def small_midog(root: Path, corners: bool = True, tumour: str | None = None) -> Path:
    """Images 1 and 160 with a bright cell at (100, 60), one in the very corner, and an image without labels."""
    images, annotations = [], []
    for number in (1, 160, 360):
        pixels = np.zeros((200, 300, 3), dtype=np.uint8)
        pixels[55:65, 95:105] = 255
        root.mkdir(exist_ok=True)
        Image.fromarray(pixels).save(root / f"{number:03}.tiff")
        images.append(
            {
                "id": number,
                "file_name": f"{number:03}.tiff",
                "width": 300,
                "height": 200,
                **({"tumor_type": f"{tumour}{number}"} if tumour else {}),
            }
        )
        for x, y, category in ((100, 60, 1), (298, 2, 2)) if number < 355 else ():
            box = [x - 25, y - 25, x + 25, y + 25] if corners else [x - 25, y - 25, 50, 50]
            annotations.append({"id": len(annotations), "image_id": number, "category_id": category, "bbox": box})
    categories = [{"id": 1, "name": "mitotic figure"}, {"id": 2, "name": "not mitotic figure"}]
    table = {"images": images, "annotations": annotations, "categories": categories}
    (root / "MIDOG2022_training.json").write_text(json.dumps(table))
    return root


@pytest.mark.parametrize("corners", [True, False])
def test_midog2022(tmp_path: Path, corners: bool) -> None:
    root = small_midog(tmp_path / "midog", corners)
    assert recognise(root) == "midog2022"
    prepare("midog2022", root, cache=tmp_path / "cache")
    data = load("midog2022", cache=tmp_path / "cache")
    assert data.names == ("human breast", "canine lung") and data.size == (128, 128)
    breast = data["human breast"]
    assert breast.labels.tolist() == [1, 0] and breast.groups is not None and breast.groups.tolist() == ["001", "001"]
    # The cell is at (100, 60); the patch begins at 100 - 64 = 36 and, since 60 - 64 would leave the image, at 0.
    assert breast.images[0, 0, 60, 64] == 255 and breast.images[0, 0, 60, 70] == 0 and breast.images[0, 0, 64, 64] == 255
    assert breast.images[1].max() == 0


def test_midog2022_tumours_named_in_the_table(tmp_path: Path) -> None:
    prepare("midog2022", small_midog(tmp_path / "midog", tumour="kind"), cache=tmp_path / "cache")
    assert load("midog2022", cache=tmp_path / "cache").names == ("kind1", "kind160")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"categories": [{"id": 1, "name": "cell"}, {"id": 2, "name": "x"}]}, "no category 'mitotic figure'"),
        ({"categories": [{"id": 1, "name": "mitotic figure"}]}, r"categories \[2\], which it does not define"),
        ({"annotations": [{"image_id": 1, "category_id": 1, "bbox": [1, 2]}]}, "not four numbers"),
        ({"images": [{"id": 1}]}, "no table of images"),
        ({"images": [{"id": 1, "file_name": "404.tiff"}]}, "not there: 404.tiff"),
    ],
)
def test_midog2022_bad_tables(tmp_path: Path, change: dict[str, object], message: str) -> None:
    root = small_midog(tmp_path / "midog")
    table = root / "MIDOG2022_training.json"
    table.write_text(json.dumps({**json.loads(table.read_text()), **change}))
    with pytest.raises(BadInput, match=message):
        prepare("midog2022", root, cache=tmp_path / "cache")
