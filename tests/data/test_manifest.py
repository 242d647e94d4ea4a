"""A user's own table."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from unseen.data import load
from unseen.errors import BadInput
from unseen.task import Classification, Segmentation


def table(root: Path, header: str, *rows: str, images: int = 6) -> str:
    root.mkdir(exist_ok=True)
    for n in range(images):
        Image.new("L", (8, 8), 10 * n).save(root / f"{n}.png")
        Image.new("L", (8, 8), 255 * (n % 2)).save(root / f"m{n}.png")
    (root / "data.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8-sig")
    return f"csv:{root / 'data.csv'}"


def test_labels_splits_and_patients(tmp_path: Path) -> None:
    rows = [f"{n}.png, site{n % 2}, {['sick', 'well'][n // 3]}, {['train', 'Validation'][n // 4]}, P{n // 2}" for n in range(6)]
    data = load(table(tmp_path, "path, domain, label, split, patient", *rows), cache=tmp_path / "c", size=8)
    assert data.names == ("site0", "site1") and data.task == Classification(("sick", "well"))
    one = data["site1"]  # images 1, 3, 5
    assert one.images[:, 0, 0, 0].tolist() == [10, 30, 50] and one.labels.tolist() == [0, 1, 1]
    assert one.split is not None and one.split.tolist() == ["train", "train", "val"]
    assert one.groups is not None and one.groups.tolist() == ["P0", "P1", "P2"]


def test_an_unknown_patient_is_a_group_alone(tmp_path: Path) -> None:
    rows = ["0.png,a,x,P1", "1.png,a,y,", "2.png,a,x,", "3.png,a,y,P1"]
    groups = load(table(tmp_path, "path,domain,label,patient", *rows), cache=tmp_path / "c", size=8)["a"].groups
    assert groups is not None and groups.tolist() == ["P1", "1.png", "2.png", "P1"]


def test_masks(tmp_path: Path) -> None:
    rows = [f"{n}.png,{'ab'[n % 2]},m{n}.png" for n in range(6)]
    data = load(table(tmp_path, "path,domain,mask", *rows), cache=tmp_path / "c", size=8)
    assert data.task == Segmentation(("foreground",)) and [float(np.mean(d.labels)) for d in data.domains] == [0.0, 1.0]


def test_absolute_paths_and_numbers_as_labels(tmp_path: Path) -> None:
    spec = table(tmp_path, "path,domain,label", *(f"{tmp_path / str(n)}.png,a,{n * 5}" for n in range(3)))
    assert load(spec, cache=tmp_path / "c", size=8).task == Classification(("0", "5", "10"))


def test_a_changed_image_or_line_is_noticed(tmp_path: Path) -> None:
    spec = table(tmp_path, "path,domain,label", "0.png,a,x", "1.png,b,y")
    load(spec, cache=tmp_path / "c", size=8)
    Image.new("L", (8, 8), 222).save(tmp_path / "1.png")
    assert load(spec, cache=tmp_path / "c", size=8)["b"].images.max() == 222
    (tmp_path / "data.csv").write_text("path,domain,label\n0.png,a,x\n1.png,b,x\n2.png,b,y\n")
    assert load(spec, cache=tmp_path / "c", size=8)["b"].labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("header", "rows", "message"),
    [
        ("path,site,label", ["0.png,a,x"], "no column domain; its columns are path, site, label"),
        ("path,domain", ["0.png,a"], "neither of the columns label and mask"),
        ("path,domain,label,mask", ["0.png,a,x,m0.png"], "both of the columns label and mask"),
        ("path,domain,label,age", ["0.png,a,x,3"], "unknown column age"),
        ("path,domain,label", ["0.png,a"], "line 2 has not 3 values"),
        ("path,domain,label", [], "no rows"),
        ("path,domain,label", ["0.png,a,x", "1.png,,x", "2.png,a,"], "no value for one of path, domain, label: row 2, row 3"),
        ("path,domain,label", ["0.png,a,x", "0.png,b,x"], "a path that is there twice: row 1, row 2"),
        ("path,domain,label", ["9.png,a,x"], "names 1 files that are not there: 9.png"),
        ("path,domain,label,split", ["0.png,a,x,maybe", "1.png,a,x,train"], "a split other than train, val and test: row 1"),
        ("path,domain,label,split", ["0.png,a,x,", "1.png,a,x,train"], "domain 'a' has a split for some images"),
        ("path,domain,domain,label", ["0.png,a,a,x"], "column domain twice"),
        ("path,domain,label", ['"0.png,a,x'], "no readable CSV"),
    ],
)
def test_bad_tables(tmp_path: Path, header: str, rows: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        load(table(tmp_path, header, *rows), cache=tmp_path / "c", size=8)


def test_missing_and_binary_tables(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        load(f"csv:{tmp_path / 'none.csv'}", cache=tmp_path / "c")
    with pytest.raises(BadInput, match=r"expected csv:PATH"):
        load("csv:", cache=tmp_path / "c")
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\0\1")
    with pytest.raises(BadInput, match="cannot be read as a table"):
        load(f"csv:{tmp_path / 'x.csv'}", cache=tmp_path / "c")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=80))
def test_any_text_is_a_table_or_bad_input(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_text("path,domain,label\n" + text, encoding="utf-8", errors="replace")
    os.utime(tmp_path / "t.csv")
    with pytest.raises(BadInput):
        load(f"csv:{tmp_path / 't.csv'}", cache=tmp_path / "c", size=8)
