"""Between sites as in one process: the same bits; what is missing or refused is left out and recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from federation_in_memory import Town
from tiny_settings import SETTINGS
from unseen import Experiment
from unseen.codec import same_bits
from unseen.data.domain import DomainDataset
from unseen.training import Silent, train

METHODS_BETWEEN_SITES = ("fedsb", "elcfs", "feddag", "fedadg", "fedavg-sha", "feddyn", "elcfs-masks")


@pytest.mark.parametrize("name", METHODS_BETWEEN_SITES)
def test_the_same_bits_as_in_process(name: str, tiny: DomainDataset, tiny_masks: DomainDataset, tmp_path: Path) -> None:
    case = SETTINGS[name]
    data = tiny if case.task == "classification" else tiny_masks
    here = train(Experiment(case.build(), data, "c", rounds=2), tmp_path / "here", watch=Silent())
    town = Town(tmp_path, data, "c")
    experiment = Experiment(case.build(), data.name, "c", rounds=2)
    there = train(experiment, tmp_path / "there", watch=Silent(), elsewhere=town.federate(experiment))
    assert same_bits(here.state, there.state)
    for file in ("records.jsonl", "model.safetensors", "best.safetensors"):
        assert (tmp_path / "here" / file).read_bytes() == (tmp_path / "there" / file).read_bytes()
