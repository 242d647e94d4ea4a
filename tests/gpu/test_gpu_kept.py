"""What runs of one process leave to each other on a GPU, and what clients keep there: the same runs as without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import unseen
from unseen.data.domain import DomainDataset
from unseen.engines.kept import Kept
from unseen.experiment import Experiment
from unseen.runs.memory import MemoryStore
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.training import train

pytestmark = pytest.mark.gpu


def go(
    data: DomainDataset, out: Path, target: str, kept: Kept | None = None, compile: Any = "off", **fields: Any
) -> dict[str, torch.Tensor]:
    torch.backends.cudnn.deterministic = True
    try:
        method = unseen.FedAvg(lr=0.01, batch=8, **fields)
        experiment = Experiment(method, data=data, target=target, rounds=5, device="cuda", compile=compile)
        return dict(train(experiment, out, watch=Silent(), kept=kept).state)
    finally:
        torch.backends.cudnn.deterministic = False


@pytest.mark.parametrize("compile", ["off", "on"])
def test_a_run_with_what_another_left_is_the_run_alone(compile: str, tiny: DomainDataset, tmp_path: Path) -> None:
    kept = Kept()
    for target in ("c", "a", "c"):
        alone = go(tiny, tmp_path / f"alone-{target}-{len([*tmp_path.iterdir()])}", target, compile=compile)
        after = go(tiny, tmp_path / f"after-{target}-{len([*tmp_path.iterdir()])}", target, kept, compile=compile)
        assert same_bits(alone, after)
    other = go(tiny, tmp_path / "other", "c", kept, optimizer="sgd")
    assert same_bits(other, go(tiny, tmp_path / "other-alone", "c", optimizer="sgd"))


def test_data_and_networks_are_left_where_they_are(tiny: DomainDataset, tmp_path: Path) -> None:
    kept = Kept()
    go(tiny, tmp_path / "a", "c", kept)
    reader, pool = kept._data[1], kept._pools["tasks"][1]
    go(tiny, tmp_path / "b", "a", kept)
    assert kept._data[1] is reader and kept._pools["tasks"][1] is pool


def test_memories_on_a_gpu_are_recalled_there_and_after_a_restart(
    tiny: DomainDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedDyn's clients keep their multipliers. A run that goes on reads from the disk what the other one had at hand."""
    recalls: list[bool] = []
    recall = MemoryStore.recall

    def watched(self: MemoryStore, client: str, kind: Any, device: Any) -> Any:
        file = self.versions.get(client, {}).get(kind.__name__)
        recalls.append(file is not None and self._near.get((client, kind.__name__), ("",))[0] == file)
        return recall(self, client, kind, device)

    monkeypatch.setattr(MemoryStore, "recall", watched)
    method = unseen.FedDyn(lr=0.01, batch=8)
    states = {}
    torch.backends.cudnn.deterministic = True
    try:
        for name, stops in {"whole": (5,), "in two": (3, 5)}.items():
            for rounds in stops:
                states[name] = dict(
                    unseen.run(method, tiny, "c", rounds=rounds, device="cuda", compile="off", out=tmp_path / name, resume=True).state
                )
    finally:
        torch.backends.cudnn.deterministic = False
    assert any(recalls) and not all(recalls)
    assert same_bits(states["whole"], states["in two"])
