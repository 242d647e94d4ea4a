"""Predictions for files: the same as for arrays, whatever way the files are named; one bad file does not stop the others."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from unseen.cli import app
from unseen.data.domain import DomainDataset
from unseen.deploy import Deployed, predict
from unseen.deploy.images import as_input, find_image_files
from unseen.deploy.prediction import to_csv
from unseen.errors import BadInput


def written(images: np.ndarray, folder: Path, number: int = 4) -> Path:
    (folder / "below").mkdir(parents=True)
    for n in range(number):
        Image.fromarray(images[n].transpose(1, 2, 0)).save(folder / ("below" if n % 2 else ".") / f"{n}.png")
    return folder


def read(file: str) -> np.ndarray:
    with Image.open(file) as image:
        return np.asarray(image)


@pytest.fixture
def folder(tiny: DomainDataset, tmp_path: Path) -> Path:
    return written(tiny["c"].images, tmp_path / "images")


def test_probabilities_are_calibrated_and_add_up(classifier: Deployed, tiny: DomainDataset, folder: Path) -> None:
    rows = list(predict(classifier, find_image_files([folder]), batch=3))
    assert [Path(row["file"]).stem for row in rows] == ["0", "2", "1", "3"]
    for row in rows:
        logits = classifier.logits(tiny["c"].images[int(Path(row["file"]).stem)][None])[0]
        expected = torch.softmax(logits / classifier.card.temperature, 0)
        assert [row["p_x"], row["p_y"], row["p_z"]] == pytest.approx(expected.tolist(), abs=1e-6)
        assert row["prediction"] == "xyz"[int(expected.argmax())] and row["probability"] == pytest.approx(float(expected.max()), abs=1e-6)


def test_files_folders_and_lists_give_the_same(classifier: Deployed, folder: Path, classes_run: Path) -> None:
    model = classes_run / "export-safetensors"
    files = [str(folder / "0.png"), str(folder / "2.png"), str(folder / "below/1.png"), str(folder / "below/3.png")]
    asked = [CliRunner().invoke(app, ["predict", str(model), *names]).stdout for names in ([str(folder)], files)]
    listed = CliRunner().invoke(app, ["predict", str(model / "model.safetensors"), "-"], input="\n".join(files) + "\n").stdout
    assert asked[0] == asked[1] == listed and len(list(csv.DictReader(io.StringIO(listed)))) == 4
    as_json = json.loads(CliRunner().invoke(app, ["predict", str(model), str(folder), "--format", "json"]).stdout)
    assert [row["file"] for row in as_json] == files


def test_a_bad_file_has_its_own_row(classifier: Deployed, folder: Path, classes_run: Path) -> None:
    (folder / "1-bad.png").write_bytes(b"no image")
    done = CliRunner().invoke(app, ["predict", str(classes_run / "export-safetensors"), str(folder)])
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert done.exit_code == 1 and len(rows) == 5
    assert [bool(row["error"]) for row in rows] == [False, True, False, False, False] and "cannot be read" in rows[1]["error"]


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "I;16"])
def test_other_sizes_and_modes_are_brought_to_the_models(classifier: Deployed, mode: str, tmp_path: Path) -> None:
    image = Image.new("RGB", (37, 21), (200, 30, 30))
    image = Image.fromarray(np.full((21, 37), 40000, dtype=np.uint16)) if mode == "I;16" else image.convert(mode)
    image.save(tmp_path / "x.tif")
    (row,) = predict(classifier, find_image_files([tmp_path]))
    assert row["prediction"] in "xyz"


def test_masks_have_the_files_own_size(segmenter: Deployed, tiny_masks: DomainDataset, tmp_path: Path) -> None:
    image = Image.fromarray(tiny_masks["c"].images[0].transpose(1, 2, 0))
    (tmp_path / "in").mkdir()
    image.resize((48, 32), Image.Resampling.NEAREST).save(tmp_path / "in/wide.png")
    turned = image.resize((48, 32)).getexif()
    turned[0x0112] = 6  # lies on its side: upright it is 32 wide and 48 high
    image.resize((48, 32)).save(tmp_path / "in/turned.jpg", exif=turned)
    image.save(tmp_path / "in/same.png")
    rows = {Path(r["file"]).name: r for r in predict(segmenter, find_image_files([tmp_path / "in"]), masks=tmp_path / "out")}
    masks = {name: read(row["mask_disc"]) for name, row in rows.items()}
    assert masks["wide.png"].shape == (32, 48) and masks["turned.jpg"].shape == (48, 32)
    expected = segmenter.logits(tiny_masks["c"].images[:1])[0, 0].numpy() > 0
    assert np.array_equal(masks["same.png"], expected * np.uint8(255)) and rows["same.png"]["share_disc"] == pytest.approx(
        expected.mean(), abs=1e-6
    )
    assert to_csv(list(rows.values())).startswith("file,share_disc")


def test_mistakes(classifier: Deployed, segmenter: Deployed, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="draws no masks"):
        next(predict(classifier, find_image_files([folder]), masks=tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match="no images in"):
        find_image_files([tmp_path / "empty"])
    with pytest.raises(BadInput, match="2 problems"):
        find_image_files([tmp_path / "a.png"], ["b.png\n"])
    twice = find_image_files([folder / "0.png", folder / "0.png"])
    with pytest.raises(BadInput, match="overwrite each other"):
        next(predict(segmenter, twice, masks=tmp_path))
    with pytest.raises(BadInput, match="this model takes uint8"):
        classifier.logits(np.zeros((2, 3, 9, 8), dtype=np.uint8))
    image, size = as_input((folder / "0.png").read_bytes(), "0.png", classifier.card)
    assert image.shape == (3, 8, 8) and size == (8, 8)
