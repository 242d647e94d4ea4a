"""`unseen data`: prepare, check and compare the files a user has, and train on them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from unseen.cli import app


def unseen(*arguments: object, expect: int = 0) -> str:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == expect, result.output
    assert "Traceback" not in result.output
    return result.output


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three sites of two classes, small PNG files with names and brightness of their own."""
    monkeypatch.setenv("UNSEEN_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    for number, site in enumerate(("north", "south", "west")):
        for label, kind in enumerate(("healthy", "ill")):
            folder = tmp_path / "sites" / site / kind
            folder.mkdir(parents=True)
            for image in range(14):
                pixels = rng.integers(0, 90, (20, 24, 3), dtype=np.uint8) + np.uint8(30 * number)
                pixels[:10] += np.uint8(100 * label)
                Image.fromarray(pixels).save(folder / f"{site}{image}.png")
    return tmp_path / "sites"


def test_prepare_check_gap_and_run_on_ones_own_folder(sites: Path, tmp_path: Path) -> None:
    spec = f"folder:{sites}"
    assert "north 28, south 28, west 28" in unseen("data", "prepare", spec, "--size", 16)
    card = json.loads(unseen("data", "check", spec, "--size", 16, "--json"))
    assert [c["domain"] for c in card["cards"]] == ["north", "south", "west"] and not card["findings"]
    assert "north" in unseen("data", "check", spec, "--size", 16)
    gaps = json.loads(unseen("data", "gap", spec, "--size", 16, "--json", "--out", tmp_path / "gap.png"))
    assert gaps["gaps"][0][0] == 0 and gaps["gaps"][0][2] > 0 and (tmp_path / "gap.png").stat().st_size > 1000
    options = ["--size", 16, "--network", "small_cnn:width=4", "--set", "batch=8", "--set", "lr=0.01", "--workers", 1, "-q"]
    unseen("run", "--method", "fedavg", "--data", spec, "--target", "west", "--rounds", 4, *options, "--out", tmp_path / "run")
    last = json.loads((tmp_path / "run/records.jsonl").read_text().splitlines()[-1])
    assert last["source_mean"]["accuracy"] > 0.8


def test_a_fault_in_the_data_is_found_before_round_1(sites: Path, tmp_path: Path) -> None:
    for image in (sites / "north/ill").iterdir():
        image.rename(sites / "south/ill" / f"copy-{image.name}")
    (sites / "north/ill").rmdir()
    spec = f"folder:{sites}"
    copy = sites / "south/ill/copy-north3.png"
    (sites / "west/ill/again.png").write_bytes(copy.read_bytes())
    text = unseen("data", "check", spec, "--size", 16, expect=2)
    assert "error" in text and "north" in text
    run = ["run", "--method", "fedavg", "--data", spec, "--target", "west", "--size", 16, "--network", "small_cnn:width=2"]
    text = unseen(*run, "--rounds", 1, "--workers", 1, "--out", tmp_path / "run")
    assert "warning: north" in text and "ill" in text


def test_bad_input(sites: Path, tmp_path: Path) -> None:
    assert "does not exist" in unseen("data", "check", f"folder:{tmp_path}/nowhere", expect=2)
    assert "not prepared" in unseen("data", "check", "pacs", expect=2)
    assert "did you mean 'pacs'" in unseen("data", "prepare", "pasc", "--from", sites, expect=2)
    assert "unseen data prepare" in " ".join(unseen("data", "prepare", "pacs", expect=2).split())
    text = " ".join(unseen("data", "prepare", "pacs", "--from", sites, expect=2).split())
    assert "not laid out as pacs" in text and "north" in text
    assert "made on the spot" in unseen("data", "prepare", "styled-digits", expect=2)


def test_the_embedded_sets_are_clean() -> None:
    for name in ("styled-digits", "phantom-sites"):
        assert not [f for f in json.loads(unseen("data", "check", name, "--json"))["findings"] if f["severity"] == "error"]


def test_a_partition_is_drawn_saved_and_used_again(tmp_path: Path) -> None:
    setting = ["--source", "plain", "--partition", "dirichlet:0.3", "--clients", 4]
    drawn = unseen("data", "partition", "styled-digits", *setting, "--seed", 5, "--out", tmp_path / "four.json")
    assert "plain-03" in drawn
    again = unseen("data", "partition", "styled-digits", "--source", "plain", "--partition", f"file:{tmp_path}/four.json")
    assert again == drawn
    run = ["run", "--method", "fedavg", "--protocol", "single-source", "--source", "plain", "--rounds", 1, "--workers", 1, "-q"]
    run += ["--network", "small_cnn:width=2", "--set", "steps=1"]
    unseen(*run, "--partition", f"file:{tmp_path}/four.json", "--out", tmp_path / "run")
    saved = json.loads((tmp_path / "run/run.json").read_text())
    assert saved["partition"] in drawn and len(saved["clients"]) == 4
    for content, says in (("{", "no saved partition"), ("[]", "no saved partition"), ("{}", "domains")):
        (tmp_path / "bad.json").write_text(content)
        text = unseen("data", "partition", "styled-digits", "--source", "plain", "--partition", f"file:{tmp_path}/bad.json", expect=2)
        assert says in text
    assert "cannot be read" in unseen("data", "partition", "styled-digits", "--source", "plain", "--partition", "file:none.json", expect=2)
    few = unseen(*run, "--partition", "split", "--clients", 9, "--minimum", 500, "--out", tmp_path / "few", expect=2)
    assert "500" in few


@pytest.mark.parametrize("command", ["prepare", "check", "gap", "partition"])
def test_help_shows_an_example(command: str) -> None:
    assert "Example: unseen data" in " ".join(unseen("data", command, "--help").split())
