"""Every file under experiments/ can be run as soon as its data are there: methods, settings, domains and networks are checked here."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from unseen.bench.plan import BenchmarkCell, read_benchmark
from unseen.data.sets.registry import DATASETS
from unseen.networks import build_network

FILES = sorted((Path(__file__).parents[1] / "experiments").glob("*.toml"))


@functools.cache
def read(path: Path) -> tuple[dict[str, Any], list[BenchmarkCell]]:
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    if values.get("targets") == "all":
        values["targets"] = list(DATASETS[values["data"]].domains)  # without opening the data
    return values, read_benchmark(values, seeds=values.get("seeds", [0])[:1])


@functools.cache
def build(network: str) -> None:
    with torch.device("meta"):  # shapes without numbers: fast for any size
        build_network(network, outputs=7, channels=3, size=(224, 224))


def test_there_are_experiments() -> None:
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_its_methods_settings_and_domains_are_known(path: Path) -> None:
    values, cells = read(path)
    entry = DATASETS[values["data"]]
    for cell in cells:
        unseen = {cell.experiment.target, cell.experiment.source} - {None}
        assert unseen <= set(entry.domains), f"{path.name}: {entry.name} has the domains {entry.domains}"
    folders = [cell.folder for cell in cells]
    assert len(folders) == len(set(folders)), f"{path.name}: two rows share a label, so one would overwrite the other's runs"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_its_networks_can_be_built(path: Path) -> None:
    _, cells = read(path)
    for name in {cell.experiment.network for cell in cells} - {None}:
        build(str(name))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_the_papers_numbers_are_rows_of_numbers(path: Path) -> None:
    values, cells = read(path)
    numbers = values.get("paper_numbers", {})
    for label, row in numbers.items():
        assert row and all(type(value) in (int, float) for value in row.values()), f"{path.name}: {label} is {row}"
    labels = {cell.experiment.name for cell in cells}
    assert not numbers or labels & set(numbers), f"{path.name}: no row that runs has a number to compare with"
