"""Prepared data: complete or not there, made once, made anew when something changed."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unseen.data import DATASETS, cache_root, load, prepare, prepared
from unseen.errors import BadInput


def small_data(root: Path, shade: int = 50, images: int = 2) -> Path:
    for domain in ("a", "b"):
        for label in ("x", "y"):
            (root / domain / label).mkdir(parents=True, exist_ok=True)
            for n in range(images):
                Image.new("L", (8, 8), shade + n).save(root / domain / label / f"{n}.png")
    return root


def everything_in(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.name != ".lock")


def test_the_cache_folder_argument_comes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "env"))
    assert cache_root(tmp_path / "given") == tmp_path / "given"
    assert cache_root() == tmp_path / "env"
    monkeypatch.delenv("UNSEEN_CACHE")
    assert "unseen" in str(cache_root())


def test_the_manifest_says_what_was_made_from_what(tmp_path: Path) -> None:
    root = small_data(tmp_path / "in")
    manifest = prepared(f"folder:{root}", cache=tmp_path / "cache", size=8).manifest
    assert manifest["source"]["path"] == str(root) and len(manifest["source"]["sha256"]) == 64
    assert manifest["options"] == {"size": 8} and manifest["versions"]["numpy"] == np.__version__
    assert [(d["name"], d["samples"], d["per_class"]) for d in manifest["domains"]] == [("a", 4, [2, 2]), ("b", 4, [2, 2])]
    assert manifest["domains"][0]["originals"] == {"modes": {"L": 4}, "width": [8, 8], "height": [8, 8]}
    images = load(f"folder:{root}", cache=tmp_path / "cache", size=8)["a"].images
    assert manifest["domains"][0]["images"]["sha256"] == hashlib.sha256(images.tobytes()).hexdigest()


def test_the_second_time_nothing_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small_data(tmp_path / "in")
    first = prepare(f"folder:{root}", cache=tmp_path / "cache", size=8)
    monkeypatch.setattr("unseen.data.loading.write_dataset", lambda *_: pytest.fail("decoded again"))
    assert prepare(f"folder:{root}", cache=tmp_path / "cache", size=8) == first
    monkeypatch.chdir(tmp_path)
    assert prepare("folder:in", cache=tmp_path / "cache", size=8) == first  # the same folder by another name


@pytest.mark.parametrize("change", ["content", "added", "removed", "renamed"])
def test_a_changed_source_is_noticed(tmp_path: Path, change: str) -> None:
    root, cache = small_data(tmp_path / "in"), tmp_path / "cache"
    before = load(f"folder:{root}", cache=cache, size=8)
    one = root / "a" / "x" / "0.png"
    if change == "content":
        Image.new("L", (8, 8), 200).save(one)
    elif change == "added":
        Image.new("L", (8, 8), 200).save(one.with_name("9.png"))
    elif change == "removed":
        one.unlink()
    else:
        one.rename(root / "a" / "y" / "9.png")
    after = load(f"folder:{root}", cache=cache, size=8)
    assert before["a"].images.tobytes() != after["a"].images.tobytes() or before["a"].labels.tolist() != after["a"].labels.tolist()
    assert before["a"].images[0, 0, 0, 0] == 50  # the old one stays readable for whoever has it open
    assert len([p for p in next(cache.iterdir()).iterdir() if p.is_dir()]) == 1  # and its files are gone


def test_sizes_stand_beside_each_other(tmp_path: Path) -> None:
    root = small_data(tmp_path / "in")
    for size in (8, 16):
        assert load(f"folder:{root}", cache=tmp_path / "cache", size=size).size == (size, size)
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_failed_preparation_leaves_nothing_and_keeps_the_old(tmp_path: Path) -> None:
    root, cache = small_data(tmp_path / "in"), tmp_path / "cache"
    prepare("vlcs", _as_vlcs(tmp_path / "vlcs"), cache=cache, size=8)
    before = everything_in(cache)
    broken = _as_vlcs(tmp_path / "broken")
    (broken / "SUN09" / "bird" / "0.png").write_bytes(b"broken")
    with pytest.raises(BadInput, match="1 of 8 files"):
        prepare("vlcs", broken, cache=cache, size=8)
    assert everything_in(cache) == before
    assert load("vlcs", cache=cache, size=8).names == ("Caltech101", "LabelMe", "SUN09", "VOC2007")
    assert root.exists()


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(f"folder:{small_data(tmp_path / 'in')}", cache=tmp_path / "cache", size=8, progress=interrupt)
    assert [p for p in everything_in(tmp_path / "cache") if "/" in p] == []


SLOW = """
import sys, time
from pathlib import Path
from unseen.data import prepare
prepare("folder:" + sys.argv[1], cache=Path(sys.argv[2]), size=8, progress=lambda done, total: time.sleep(60 if done == 2 else 0))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="no such signal here")
def test_what_a_killed_process_left_is_swept_away(tmp_path: Path) -> None:
    root, cache = small_data(tmp_path / "in"), tmp_path / "cache"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", SLOW, str(root), str(cache)], env=environment) as process:
        patience = time.monotonic() + 60
        while not list(cache.glob("*/.scratch-*/0.images.npy")) and time.monotonic() < patience:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert list(cache.glob("*/.scratch-*"))
    assert len(load(f"folder:{root}", cache=cache, size=8)["a"]) == 4
    assert not list(cache.glob("*/.scratch-*"))


def test_two_at_once_prepare_once(tmp_path: Path) -> None:
    root, cache = small_data(tmp_path / "in", images=5), tmp_path / "cache"
    calls: list[int] = []
    places: list[Path] = []

    def work() -> None:
        places.append(prepare(f"folder:{root}", cache=cache, size=8, progress=lambda done, total: calls.append(done)))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(places)) == 1 and calls == list(range(1, 21))


def test_progress_counts_up_to_the_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    prepare(f"folder:{small_data(tmp_path / 'in')}", cache=tmp_path / "c", size=8, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n, 8) for n in range(1, 9)]


def test_what_is_not_prepared_says_how(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"run unseen data prepare pacs --from FOLDER$"):
        load("pacs", cache=tmp_path)
    with pytest.raises(BadInput, match=r"run unseen data prepare pacs --from FOLDER --size 64$"):
        load("pacs", cache=tmp_path, size=64)
    with pytest.raises(BadInput, match="did you mean 'pacs'"):
        load("pcas", cache=tmp_path)
    with pytest.raises(BadInput, match="expected 8 to 4096 pixels"):
        load("pacs", cache=tmp_path, size=3)
    with pytest.raises(BadInput, match="say where the files of pacs are"):
        prepare("pacs", cache=tmp_path)
    with pytest.raises(BadInput, match="nothing to prepare"):
        prepare("styled-digits", tmp_path, cache=tmp_path)


def test_damaged_data_are_not_loaded(tmp_path: Path) -> None:
    spec, cache = f"folder:{small_data(tmp_path / 'in')}", tmp_path / "cache"
    folder = prepare(spec, cache=cache, size=8)
    with (folder / "0.images.npy").open("r+b") as file:
        file.truncate(200)
    with pytest.raises(BadInput, match=r"damaged .* prepare them again"):
        load(spec, cache=cache, size=8)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(BadInput, match="damaged"):
        load(spec, cache=cache, size=8)


def test_an_older_format_is_prepared_anew(tmp_path: Path) -> None:
    spec, cache = f"folder:{small_data(tmp_path / 'in')}", tmp_path / "cache"
    folder = prepare(spec, cache=cache, size=8)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 0}))
    assert prepare(spec, cache=cache, size=8) != folder


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be written"):
        prepare(f"folder:{small_data(tmp_path / 'in')}", cache=tmp_path / "file", size=8)


def test_images_are_mapped_not_read(tmp_path: Path) -> None:
    data = load(f"folder:{small_data(tmp_path / 'in')}", cache=tmp_path / "cache", size=8)
    assert isinstance(data["a"].images, np.memmap) and not data["a"].images.flags.writeable


def test_every_entry_is_complete() -> None:
    for name, entry in DATASETS.items():
        assert entry.name == name and entry.about and (entry.embedded or (entry.layout and entry.read))


@pytest.mark.parametrize("name", [name for name, entry in DATASETS.items() if entry.embedded])
def test_embedded_sets_are_as_their_entries_say(name: str) -> None:
    data, entry = load(name), DATASETS[name]
    assert data.names == entry.domains and data.size == (entry.size, entry.size) and data.task.name == entry.task
    assert data.task.outputs == len(entry.classes or ())
    with pytest.raises(BadInput, match="not to be had"):
        load(name, size=100)


def _as_vlcs(root: Path) -> Path:
    for domain in ("Caltech101", "LabelMe", "SUN09", "VOC2007"):
        for label in ("bird", "car"):
            (root / domain / label).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(root / domain / label / "0.png")
    return root
