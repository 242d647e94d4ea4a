"""Replaying a recorded step gives what running it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import unseen
from unseen import FedAvg, FedSB
from unseen.data.domain import DomainDataset
from unseen.device.graphs import StepGraphs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("method", [FedAvg(lr=0.01, batch=8), FedSB(lr=0.01, batch=8, budget=12)])
def test_replaying_gives_what_running_gives(tiny: DomainDataset, method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def as_it_is(self: StepGraphs, step: Callable[..., Any], autocast: Callable[[], Any]) -> Callable[..., None]:
        return step

    replayed = unseen.run(method, tiny, "c", rounds=3, device="cuda")
    monkeypatch.setattr(StepGraphs, "replayed", as_it_is)
    run = unseen.run(method, tiny, "c", rounds=3, device="cuda")
    for name, value in run.state.items():
        assert torch.allclose(replayed.state[name].float(), value.float(), atol=1e-4), name
