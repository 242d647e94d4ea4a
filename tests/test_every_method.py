"""Every method of the project over tiny data: it runs, through bytes too, resumes, and learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tiny_settings import SETTINGS
from unseen import Experiment
from unseen.data.domain import DomainDataset
from unseen.methods import METHODS
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.training import Result, train


def test_every_method_has_tiny_settings() -> None:
    assert {case.method for case in SETTINGS.values()} == set(METHODS)


def go(name: str, tiny: DomainDataset, tiny_masks: DomainDataset, out: Path | None = None, rounds: int = 2, **modes: Any) -> Result:
    case = SETTINGS[name]
    data = tiny if case.task == "classification" else tiny_masks
    return train(Experiment(case.build(), data, "c", rounds=rounds, partition=case.partition), out, watch=Silent(), **modes)


@pytest.mark.parametrize("name", SETTINGS)
def test_same_bits_through_bytes_and_after_resume(name: str, tiny: DomainDataset, tiny_masks: DomainDataset, tmp_path: Path) -> None:
    direct = go(name, tiny, tiny_masks, tmp_path / "whole", rounds=3)
    assert len(direct.records) == 3 and not any(r["missing"] for r in direct.records)
    assert all(torch.isfinite(v).all() for v in direct.state.values() if v.is_floating_point())
    bytewise = go(name, tiny, tiny_masks, tmp_path / "parts", rounds=1, through_bytes=True)
    assert bytewise.records[0] == direct.records[0]
    resumed = go(name, tiny, tiny_masks, tmp_path / "parts", rounds=3, resume=True, through_bytes=True)
    assert same_bits(resumed.state, direct.state)
    for file in ("records.jsonl", "model.safetensors", "best.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()


@pytest.mark.parametrize("name", [name for name, case in SETTINGS.items() if case.reaches is not None])
def test_it_learns(name: str, tiny: DomainDataset, tiny_masks: DomainDataset) -> None:
    case = SETTINGS[name]
    assert case.reaches is not None and case.reaches >= 0.5
    result = go(name, tiny, tiny_masks, rounds=case.rounds)
    assert result.records[-1]["source_mean"][result.records[-1]["metric"]] > case.reaches
