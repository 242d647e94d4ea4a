"""What the page says before its tables: the finding in words, images of the domains, a caveat beside a paper's number, a row per run."""

from __future__ import annotations

import base64
import html
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from synthetic_runs import write_bench, write_run
from unseen.data import load
from unseen.errors import BadInput
from unseen.report.collect import collect
from unseen.report.page import render_page
from unseen.report.saying import what_was_found
from unseen.report.summary import run_rows, settings, settings_beside
from unseen.report.thumbnails import strips


def changed(folder: Path, **values: Any) -> None:
    """Another word in a run's description."""
    about = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(about | values))


def of_digits(folder: Path, data: str = "styled-digits") -> None:
    """A run that says it was made on the embedded digits, or on other data with their domains."""
    write_run(folder, fold="outline", data=data)
    clients = {name: {"domain": name, "train": 9, "validation": 1} for name in ("plain", "textured")}
    changed(folder, clients=clients)


def test_the_finding_of_each_rule_stands_first(tmp_path: Path) -> None:
    write_bench(tmp_path / "b", methods=3, seeds=3, rounds=4)
    found = collect(tmp_path / "b")
    page = render_page(found, "x")
    for rule in ("last", "source", "oracle"):
        said = page.index(html.escape(what_was_found(found.cells, rule)))
        assert page.index("<h1>") < said < page.index("<nav")


def test_images_are_those_of_the_domains(tmp_path: Path) -> None:
    of_digits(tmp_path / "r")
    shown = strips(collect(tmp_path).runs)
    assert [(s.domain, s.unseen) for s in shown] == [("plain", False), ("textured", False), ("outline", True)]  # nobody has `inverted`
    strip = shown[-1]
    assert strip.words == "8 images of outline: 0, 1, 2, 3, 4, 5, 6, 7"
    kind, _, coded = strip.address.partition(",")
    with Image.open(io.BytesIO(base64.b64decode(coded))) as picture:
        assert kind == "data:image/jpeg;base64" and picture.size == (strip.width, strip.height)
        drawn = np.asarray(picture.convert("RGB").crop((58, 0, 114, 56)), dtype=float)
    domain = load("styled-digits")["outline"]
    one = Image.fromarray(domain.images[np.flatnonzero(domain.labels == 1)[0]].transpose(1, 2, 0)).resize(
        (56, 56), Image.Resampling.BILINEAR
    )
    assert np.abs(drawn - np.asarray(one, dtype=float)).mean() < 8  # but for what JPEG loses
    page = render_page(collect(tmp_path), "x")
    assert strip.address in page and strip.words in page


def test_sites_and_paths_that_a_file_names_are_never_shown(tmp_path: Path) -> None:
    of_digits(tmp_path / "a" / "r")
    changed(tmp_path / "a" / "r", between_sites=True)
    assert strips(collect(tmp_path / "a").runs) == []
    pictures = tmp_path / "mine" / "plain" / "dog"
    pictures.mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (16, 16), (40 * number, 0, 0)).save(pictures / f"{number}.png")
    of_digits(tmp_path / "b" / "r", data=f"folder:{tmp_path / 'mine'}")
    runs = collect(tmp_path / "b").runs
    assert strips(runs) == [] and "data:image" not in render_page(collect(tmp_path / "b"), "x")
    (given,) = strips(runs, f"folder:{tmp_path / 'mine'}")  # by the reader
    assert given.words == "4 images of plain: dog, dog, dog, dog"
    with pytest.raises(BadInput, match="nowhere"):
        strips(runs, f"folder:{tmp_path / 'nowhere'}")
    of_digits(tmp_path / "c" / "r", data="pacs")  # not prepared here
    assert strips(collect(tmp_path / "c").runs) == []
    write_run(tmp_path / "d" / "r", data="styled-digits", size=[32])
    assert strips(collect(tmp_path / "d").runs) == []


def test_settings_say_what_none_and_auto_came_to(tmp_path: Path) -> None:
    write_run(tmp_path / "r", network=None, augment="auto")
    changed(tmp_path / "r", augment="domainbed", model={"network": "resnet18", "labels": [], "size": [224, 224]})
    common, _, _ = settings(collect(tmp_path).runs)
    assert (common["network"], common["augment"], common["size"]) == ("resnet18", "domainbed", "224")
    write_run(tmp_path / "older", seed=1, network=None, augment="auto")  # of a version that did not write it
    (_, own, _) = settings(collect(tmp_path).runs)
    assert own["FedAvg"]["augment"] == "auto | domainbed"


def test_a_papers_number_has_a_caveat(tmp_path: Path) -> None:
    write_run(tmp_path / "r", rounds=2)
    changed(
        tmp_path / "r", model={"network": "resnet18", "labels": [], "size": [64, 64]}, departures={"rounds": [100, 2], "size": [224, 64]}
    )
    (tmp_path / "bench.json").write_text(json.dumps({"paper_numbers": {"FedAvg": {"art": 80.0}, "JiGen": {"art": 70.0}}}))
    found = collect(tmp_path)
    told = "resnet18, 64 px, 2 rounds, 1 seed; departs in rounds 2 (paper: 100), size 64 (paper: 224)"
    assert settings_beside(found.runs) == {"FedAvg": told}
    page = render_page(found, "x")
    assert told in page and page.index("comes from its own code") < page.index("80.00")


def test_a_row_per_run_with_what_one_would_sort_by(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rounds=3)
    write_run(tmp_path / "b", seed=1, rounds=3, done=2)
    write_run(tmp_path / "c", seed=2, rounds=3, done=0)
    found = collect(tmp_path)
    first, second, third = run_rows(found.runs)
    records = found.runs[0].records
    assert first.scores["last"] == pytest.approx(100 * records[-1]["target"]["art"]["accuracy"])
    assert first.picked is not None and first.source == pytest.approx(100 * records[first.picked - 1]["source_mean"]["accuracy"])
    assert first.seconds == pytest.approx(sum(t["train"] + t["score"] for t in found.runs[0].timings)) and first.sent == 9 * 44_700_000
    assert (first.rounds, second.rounds, third.rounds) == ("3", "2 of 3", "0 of 3") and not second.finished
    assert third.scores == {} and third.picked is None and third.seconds is None
    assert render_page(found, "x").count('<th scope="row">FedAvg</th><td class="l">art</td>') == 3
