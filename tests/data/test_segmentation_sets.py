"""Images with masks: fundus, prostate, vessels and a user's own, from small files in their own formats."""

from __future__ import annotations

import sys
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from unseen.data import load, prepare, recognise
from unseen.data.reading.masks import MaskMap, deduce_map
from unseen.data.sets.prostate import PIXELS
from unseen.errors import BadInput
from unseen.task import Segmentation


def save(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def own_sites(root: Path, value: int = 255, mask_name: str = "{}.png") -> Path:
    for s, site in enumerate(("north", "south")):
        for n in range(3):
            save(root / site / "images" / f"eye{n}.jpg", np.full((16, 16, 3), 60 * s, dtype=np.uint8))
            mask = np.zeros((16, 16), dtype=np.uint8)
            mask[: 4 * n] = value
            save(root / site / "masks" / mask_name.format(f"eye{n}"), mask)
    return root


@pytest.mark.parametrize("value", [1, 255])
@pytest.mark.parametrize("name", ["{}.png", "{}_mask.png", "mask_{}.tif", "{}_segmentation.png"])
def test_own_sites(tmp_path: Path, value: int, name: str) -> None:
    data = load(f"folder:{own_sites(tmp_path / 'in', value, name)}", cache=tmp_path / "cache", size=16)
    assert data.names == ("north", "south") and data.task == Segmentation(("foreground",)) and data.pixels.mean == (0.0,)
    for domain in data.domains:
        assert domain.labels.shape == (3, 1, 16, 16) and set(np.unique(domain.labels)) == {0, 1}
        assert [int(m[0].sum()) for m in domain.labels] == [0, 64, 128]


def test_sites_may_disagree_on_one_and_255(tmp_path: Path) -> None:
    root = own_sites(tmp_path / "in", 255)
    own_sites(tmp_path / "other", 1)
    (tmp_path / "other" / "north").rename(root / "east")
    data = load(f"folder:{root}", cache=tmp_path / "cache", size=16)
    assert [int(d.labels.sum()) for d in data.domains] == [192, 192, 192]
    assert data.notes == ("some masks mark the structure with 1, others with 255",)


def test_splits_below_the_site_and_one_site_alone(tmp_path: Path) -> None:
    root = tmp_path / "in"
    for split in ("train", "test"):
        for site in ("a", "b"):
            save(root / site / split / "images" / "x.png", np.zeros((8, 8, 3), dtype=np.uint8))
            save(root / site / split / "masks" / "x.png", np.zeros((8, 8), dtype=np.uint8))
    data = load(f"folder:{root}", cache=tmp_path / "cache", size=8)
    assert data.names == ("a", "b") and data["a"].split is not None and sorted(data["a"].split) == ["test", "train"]
    assert load(f"folder:{root / 'a'}", cache=tmp_path / "cache", size=8).names == ("a",)


def test_a_mask_of_another_size_and_a_missing_mask_are_named(tmp_path: Path) -> None:
    root = own_sites(tmp_path / "in")
    save(root / "north" / "masks" / "eye1.png", np.zeros((16, 20), dtype=np.uint8))
    with pytest.raises(BadInput, match=r"eye1\.png is 20 x 16 pixels, its image north/images/eye1\.jpg 16 x 16"):
        load(f"folder:{root}", cache=tmp_path / "cache", size=8)
    (root / "north" / "masks" / "eye1.png").unlink()
    with pytest.raises(BadInput, match=r"1 images have no mask of the same name: north/images/eye1\.jpg"):
        load(f"folder:{root}", cache=tmp_path / "cache", size=8)


def histogram(**counts: int) -> np.ndarray:
    out = np.zeros(256, dtype=np.int64)
    for value, count in counts.items():
        out[int(value[1:])] = count
    return out


def test_what_mask_values_mean() -> None:
    labels, _ = deduce_map([histogram(v0=90, v1=5, v2=5), histogram(v0=100)])
    assert labels.structures == {"value_1": frozenset({1}), "value_2": frozenset({2})}
    compressed = histogram(v0=500, v3=20, v9=5, v100=3, v200=3, v250=20, v255=400)
    drawn, note = deduce_map([compressed])
    assert drawn.apply(np.array([[0, 100, 127, 128, 250]], dtype=np.uint8)).tolist() == [[[0, 0, 0, 1, 1]]] and "grey levels" in note
    with pytest.raises(BadInput, match="8 different values"):
        deduce_map([histogram(v0=50, v30=50, v60=50, v90=50, v120=50, v150=50, v180=50, v255=50)])


@given(st.lists(st.integers(0, 255), min_size=1, max_size=30))
def test_a_map_gives_each_value_its_structures_or_refuses(values: list[int]) -> None:
    mask_map = MaskMap({"disc": frozenset({0, 128}), "cup": frozenset({0})}, background=frozenset({255}))
    array = np.array([values], dtype=np.uint8)
    strange = [v for v in values if min(abs(v - k) for k in (0, 128, 255)) > 8]
    if len(strange) > 0.01 * len(values):
        with pytest.raises(BadInput, match="expected 0, 128, 255"):
            mask_map.check(array, "m")
    else:
        mask_map.check(array, "m")
        disc, cup = mask_map.apply(array)[:, 0]
        assert disc.tolist() == [int(v < 192) for v in values] and cup.tolist() == [int(v < 64) for v in values]


def small_fundus(root: Path, side: int = 900) -> Path:
    """A cup of 200 pixels inside a disc of 400 in the middle; a frame that the crop takes away."""
    mask = np.full((side, side), 255, dtype=np.uint8)
    middle = side // 2
    mask[middle - 200 : middle + 200, middle - 200 : middle + 200] = 128
    mask[middle - 100 : middle + 100, middle - 100 : middle + 100] = 0
    photo = np.full((side, side, 3), 200, dtype=np.uint8)
    photo[50:-50, 50:-50] = 90
    for number in (1, 2, 3, 4):
        for split in ("train", "test"):
            save(root / f"Domain{number}" / split / "ROIs" / "image" / f"g{number}.png", photo)
            save(root / f"Domain{number}" / split / "ROIs" / "mask" / f"g{number}.png", mask)
    return root


def test_fundus(tmp_path: Path) -> None:
    root = small_fundus(tmp_path / "Fundus")
    assert recognise(root) == "fundus"
    prepare("fundus", root, cache=tmp_path / "cache")
    data = load("fundus", cache=tmp_path / "cache")
    assert (
        data.names == ("Domain1", "Domain2", "Domain3", "Domain4")
        and data.size == (384, 384)
        and data.task == Segmentation(("disc", "cup"))
    )
    domain = data["Domain1"]
    assert (domain.images == 90).all()  # of 900 pixels the central 800: the frame is gone
    assert [int(m.sum()) for m in domain.labels[0]] == [192 * 192, 96 * 96]  # 400 and 200 of 800 pixels, at 384
    assert domain.split is not None and sorted(domain.split) == ["test", "train"]


def test_fundus_mask_values_outside_the_map(tmp_path: Path) -> None:
    root = small_fundus(tmp_path / "Fundus", side=40)
    save(root / "Domain2" / "train" / "ROIs" / "mask" / "g2.png", np.full((40, 40), 60, dtype=np.uint8))
    with pytest.raises(BadInput, match=r"Domain2/train/ROIs/mask/g2\.png has mask values 60 in 100% of its pixels; expected 0, 128, 255"):
        prepare("fundus", root, cache=tmp_path / "cache")


def nifti(path: Path, volume: np.ndarray, spacing: tuple[float, float, float] = (0.5, 0.75, 3.0), flip: bool = False) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    affine = np.diag([*spacing, 1.0])
    if flip:  # the first axis runs from right to left, as many scanners write it
        affine[0, 0], volume = -spacing[0], volume[::-1]
    nibabel.save(nibabel.Nifti1Image(volume, affine), path)


def small_prostate(root: Path) -> tuple[Path, np.ndarray]:
    volume = np.random.default_rng(0).normal(100, 20, (6, 8, 3)).astype(np.float32)
    labels = np.zeros((6, 8, 3), dtype=np.uint8)
    labels[1, 2, 1], labels[4, 5, 1] = 1, 2
    for site, flip in (("RUNMC", False), ("UCL", True)):
        nifti(root / site / "Case00.nii.gz", volume, flip=flip)
        nifti(root / site / "Case00_Segmentation.nii.gz", labels, flip=flip)
    return root, volume


def test_prostate(tmp_path: Path) -> None:
    root, _ = small_prostate(tmp_path / "prostate")
    assert recognise(root) == "prostate"
    prepare("prostate", root, cache=tmp_path / "cache", size=8)
    data = load("prostate", cache=tmp_path / "cache", size=8)
    site = data["RUNMC"]
    assert site.images.shape == (3, 1, 8, 8) and data.pixels == PIXELS
    assert site.groups is not None and site.groups.tolist() == ["RUNMC/Case00"] * 3
    np.testing.assert_allclose(site.spacing, [[0.75, 0.5 * 6 / 8]] * 3)
    np.testing.assert_array_equal(site.images, data["UCL"].images)  # the same patient, however the axes run
    np.testing.assert_array_equal(site.labels, data["UCL"].labels)


def test_prostate_keeps_z_scores_and_merges_labels(tmp_path: Path) -> None:
    volume = np.random.default_rng(1).normal(50, 5, (8, 8, 2)).astype(np.float32)
    labels = np.zeros((8, 8, 2), dtype=np.uint8)
    labels[2, 7, 0], labels[3, 0, 0] = 1, 2
    nifti(tmp_path / "in" / "A" / "Case01.nii", volume)
    nifti(tmp_path / "in" / "A" / "Case01_segmentation.nii", labels)
    prepare("prostate", tmp_path / "in", cache=tmp_path / "cache", size=8)
    domain = load("prostate", cache=tmp_path / "cache", size=8)["A"]
    scores = (domain.images / 255 - PIXELS.mean[0]) / PIXELS.std[0]
    expected = ((volume - volume.mean()) / volume.std()).transpose(2, 1, 0)[:, None, ::-1]
    assert np.abs(scores - expected).max() <= 4 / 255 + 1e-6  # half a step of a byte
    assert np.argwhere(domain.labels[0, 0]).tolist() == [[0, 2], [7, 3]]  # the highest row (front) comes first


def test_prostate_bad_volumes(tmp_path: Path) -> None:
    root, volume = small_prostate(tmp_path / "in")

    def problem() -> str:
        with pytest.raises(BadInput) as caught:
            prepare("prostate", root, cache=tmp_path / "cache", size=8)
        return str(caught.value)

    broken = volume.copy()
    broken[0, 0, 0] = np.nan
    nifti(root / "UCL" / "Case00.nii.gz", broken)
    assert "UCL/Case00.nii.gz has 1 voxels that are NaN or infinite" in problem()
    nifti(root / "UCL" / "Case00.nii.gz", np.ones_like(volume))
    assert "same value everywhere" in problem()
    nifti(root / "UCL" / "Case00.nii.gz", volume)
    nifti(root / "UCL" / "Case00_Segmentation.nii.gz", np.full((6, 8, 3), 7, dtype=np.uint8))
    assert "has labels 7; expected 0, 1 and 2" in problem()
    nifti(root / "UCL" / "Case00_Segmentation.nii.gz", np.zeros((6, 8, 2), dtype=np.uint8))
    assert "expected the same" in problem()
    (root / "UCL" / "Case00_Segmentation.nii.gz").write_bytes(b"broken")
    assert "cannot be read as NIfTI" in problem()
    (root / "UCL" / "Case00_Segmentation.nii.gz").unlink()
    assert "no segmentation beside them: UCL/Case00.nii.gz" in problem()


def test_prostate_without_its_library_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, _ = small_prostate(tmp_path / "in")
    monkeypatch.setitem(sys.modules, "nibabel", None)
    with pytest.raises(BadInput, match=r"pip install 'unseen\[medical\]'"):
        prepare("prostate", root, cache=tmp_path / "cache")


def test_vessels_as_the_collections_name_them(tmp_path: Path) -> None:
    root = tmp_path / "vessels"
    photo, mask = np.zeros((20, 20, 3), dtype=np.uint8), np.zeros((20, 20), dtype=np.uint8)
    mask[5] = 255
    for site, image, masks in (
        ("drive", "21_training.tif", ["21_manual1.gif"]),
        ("chase", "Image_01L.jpg", ["Image_01L_1stHO.png", "Image_01L_2ndHO.png"]),
        ("chase", "Image_01R.jpg", ["Image_01R_1stHO.png"]),
        ("stare", "im0001.ppm", ["im0001.ah.ppm", "im0001.vk.ppm"]),
        ("hrf", "01_h.jpg", ["01_h.tif"]),
    ):
        save(root / site / "images" / image, photo)
        for name in masks:
            save(root / site / "masks" / name, mask if "2nd" not in name and "vk" not in name else mask * 0)
    prepare("retinal-vessels", root, cache=tmp_path / "cache", size=20)
    data = load("retinal-vessels", cache=tmp_path / "cache", size=20)
    assert data.names == ("chase", "drive", "hrf", "stare") and data.task == Segmentation(("vessel",))
    assert data.notes == ()  # second observers are left out without a word
    assert all((d.labels.sum(axis=(1, 2, 3)) == 20).all() for d in data.domains)
    assert data["chase"].groups is not None and data["chase"].groups.tolist() == ["Image_01", "Image_01"]  # two eyes, one patient
