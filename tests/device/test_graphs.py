"""Steps recorded on a GPU: what a recording belongs to, and, where there is a GPU, that replaying gives what running gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from unseen import FedAvg, FedSB
from unseen.data.domain import DomainDataset
from unseen.device.graphs import StepGraphs, _identity

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")


def a_step(*things: Any) -> Callable[..., None]:
    def step(x: torch.Tensor) -> None:
        assert x is not None and things

    return step


def test_a_recording_belongs_to_the_same_code_over_the_same_things() -> None:
    net, weights, method = nn.Linear(2, 2), torch.zeros(3), FedSB()
    things = (net, weights, method, [weights], {"a": weights}, 0.5, None, "text")
    assert _identity(a_step(*things)) == _identity(a_step(*things))
    assert _identity(a_step(method)) == _identity(a_step(FedSB()))  # equal settings are the same


@pytest.mark.parametrize(
    "change",
    [
        lambda: (nn.Linear(2, 2), torch.zeros(3), 0.5),
        lambda: (FedSB(lr=0.5),),
        lambda: ([torch.zeros(3)],),
        lambda: ({"a": torch.zeros(3)},),
    ],
)
def test_other_things_are_another_recording(change: Callable[[], tuple[Any, ...]]) -> None:
    one, two = change(), (*change()[:-1], FedAvg())
    kept = (one, two)  # both alive, or the second could get the first one's address
    assert _identity(a_step(*one)) != _identity(a_step(*two)) and kept


def test_fresh_tensors_are_another_recording() -> None:
    one, two = torch.zeros(3), torch.zeros(3)
    assert _identity(a_step(one)) != _identity(a_step(two))
    assert _identity(a_step([one])) != _identity(a_step([two]))


def test_what_cannot_be_judged_is_not_recorded() -> None:
    assert _identity(a_step(object())) is None
    assert _identity(a_step([object()])) is None


def test_a_helper_counts_by_what_it_holds() -> None:
    def around(weights: torch.Tensor) -> Callable[..., None]:
        def helper() -> torch.Tensor:
            return weights

        def step(x: torch.Tensor) -> None:
            assert helper() is not x

        return step

    one, two = torch.zeros(3), torch.zeros(3)
    assert _identity(around(one)) == _identity(around(one)) != _identity(around(two))


@needs_gpu
@pytest.mark.parametrize("method", [FedAvg(lr=0.01, batch=8), FedSB(lr=0.01, batch=8, budget=12)])
def test_replaying_gives_what_running_gives(tiny: DomainDataset, method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import unseen

    def as_it_is(self: StepGraphs, step: Callable[..., Any], autocast: Callable[[], Any]) -> Callable[..., None]:
        return step

    replayed = unseen.run(method, tiny, "c", rounds=3, device="cuda")
    monkeypatch.setattr(StepGraphs, "replayed", as_it_is)
    run = unseen.run(method, tiny, "c", rounds=3, device="cuda")
    for name, value in run.state.items():
        assert torch.allclose(replayed.state[name].float(), value.float(), atol=1e-4), name
