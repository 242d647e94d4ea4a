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
def test_same_bits_through_bytes_and_after_resume_and_it_learns(
    name: str, tiny: DomainDataset, tiny_masks: DomainDataset, tmp_path: Path
) -> None:
    """One run for all: that it learns is looked at where it goes on, since a resumed run is the same run."""
    direct = go(name, tiny, tiny_masks, tmp_path / "whole", rounds=3)
    assert len(direct.records) == 3 and not any(r["missing"] for r in direct.records)
    assert all(torch.isfinite(v).all() for v in direct.state.values() if v.is_floating_point())
    bytewise = go(name, tiny, tiny_masks, tmp_path / "parts", rounds=1, through_bytes=True)
    assert bytewise.records[0] == direct.records[0]
    resumed = go(name, tiny, tiny_masks, tmp_path / "parts", rounds=3, resume=True, through_bytes=True)
    assert same_bits(resumed.state, direct.state)
    for file in ("records.jsonl", "model.safetensors", "best.safetensors"):
        assert (tmp_path / "whole" / file).read_bytes() == (tmp_path / "parts" / file).read_bytes()
    case = SETTINGS[name]
    if case.reaches is not None:
        assert case.reaches >= 0.5
        last = go(name, tiny, tiny_masks, tmp_path / "whole", rounds=case.rounds, resume=True).records[-1]
        assert last["round"] == case.rounds and last["source_mean"][last["metric"]] > case.reaches
