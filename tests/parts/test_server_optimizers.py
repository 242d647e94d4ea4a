"""The server's optimisers against numbers worked out by hand, and against FedAvg where they are the same."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen import Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.parts.aggregation import Aggregate, Uniform
from unseen.parts.round_averages import EMA
from unseen.parts.server_optimizers import AdamServer, MomentumServer, ServerOptimizer, YogiServer
from unseen.runs.watch import Silent
from unseen.state import State, same_bits
from unseen.training import Result, train


def state(w: float, statistic: float = 0.0) -> State:
    return {"w": torch.tensor([w], dtype=torch.float64), "running": torch.tensor([statistic], dtype=torch.float64)}


def steps(server: ServerOptimizer, means: list[float]) -> list[float]:
    """Where the model stands after rounds in which the clients' mean lies that far beyond it."""
    at, reached = Aggregate(state(0.0)), []
    for number, delta in enumerate(means):
        after = Aggregate(state(float(at.model["w"]) + delta, statistic=number), at.round + 1)
        at = server.step(at, after, ["w"])
        assert float(at.model["running"]) == number, "a buffer is the mean's"
        reached.append(float(at.model["w"]))
    return reached


def test_momentum_by_hand() -> None:
    """m = 1, 0.5 * 1 + 2 = 2.5, 0.5 * 2.5 - 1 = 0.25; x = 0.1 m added up."""
    assert steps(MomentumServer(lr=0.1, beta=0.5), [1.0, 2.0, -1.0]) == pytest.approx([0.1, 0.35, 0.375])


def test_adam_and_yogi_by_hand() -> None:
    """Reddi et al., Algorithm 2, with beta_1 = 0.5, beta_2 = 0.75, tau = 0.1, eta = 1: v begins at 0.01."""
    m1, v1 = 0.5, 0.75 * 0.01 + 0.25 * 1.0
    m2, v2 = 0.25 + 0.5 * 0.2, 0.75 * v1 + 0.25 * 0.04
    x1 = m1 / (math.sqrt(v1) + 0.1)
    assert steps(AdamServer(lr=1.0, beta1=0.5, beta2=0.75, tau=0.1), [1.0, 0.2]) == pytest.approx([x1, x1 + m2 / (math.sqrt(v2) + 0.1)])
    y1 = 0.01 + 0.25 * 1.0  # v < Delta^2: it grows
    y2 = y1 - 0.25 * 0.04  # v > Delta^2: it shrinks by the same measure
    x1 = m1 / (math.sqrt(y1) + 0.1)
    assert steps(YogiServer(lr=1.0, beta1=0.5, beta2=0.75, tau=0.1), [1.0, 0.2]) == pytest.approx([x1, x1 + m2 / (math.sqrt(y2) + 0.1)])


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=6), st.floats(0.01, 2), st.floats(0, 0.99))
def test_momentum_against_torchs(deltas: list[float], lr: float, beta: float) -> None:
    """SGD with momentum on a gradient of -Delta."""
    w = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer, expected = torch.optim.SGD([w], lr=lr, momentum=beta), []
    for delta in deltas:
        w.grad = torch.tensor([-delta], dtype=torch.float64)
        optimizer.step()
        expected.append(float(w.detach()))
    assert steps(MomentumServer(lr=lr, beta=beta), deltas) == pytest.approx(expected)


def go(data: DomainDataset, method: FedAvg, out: Path | None = None, rounds: int = 3, resume: bool = False) -> Result:
    return train(Experiment(method, data, "c", rounds=rounds), out, watch=Silent(), resume=resume)


def test_a_rate_of_one_without_momentum_is_the_mean(tiny: DomainDataset) -> None:
    plain, server = (go(tiny, FedAvg(lr=0.02, batch=8, server=part)) for part in (None, MomentumServer(lr=1.0, beta=0.0)))
    for name, value in plain.state.items():
        torch.testing.assert_close(server.state[name], value)


@pytest.mark.parametrize("part", [MomentumServer(), AdamServer(lr=0.1), YogiServer(lr=0.1)], ids=lambda part: part.name)
def test_it_goes_on_after_resume_and_together_with_an_average(part: ServerOptimizer, tiny: DomainDataset, tmp_path: Path) -> None:
    method = FedAvg(lr=0.02, batch=8, aggregation=Uniform(), server=part, average=EMA(0.5))
    whole = go(tiny, method, tmp_path / "whole")
    go(tiny, method, tmp_path / "parts", rounds=1)
    assert same_bits(go(tiny, method, tmp_path / "parts", resume=True).state, whole.state)
    assert (tmp_path / "whole/records.jsonl").read_bytes() == (tmp_path / "parts/records.jsonl").read_bytes()
    assert not same_bits(whole.state, go(tiny, FedAvg(lr=0.02, batch=8, aggregation=Uniform(), average=EMA(0.5))).state)


def test_every_parameter_goes_by_the_optimiser_and_no_buffer(tiny: DomainDataset) -> None:
    """A rate of zero keeps all parameters where they began; statistics are the clients' mean all the same."""
    still = go(tiny, FedAvg(lr=0.02, batch=8, server=MomentumServer(lr=0.0)), rounds=1)
    plain, world = go(tiny, FedAvg(lr=0.02, batch=8), rounds=1), still.world
    begun, entries = world.fresh("task"), world.entries("task")
    assert all(torch.equal(still.state[n], begun[n]) and not torch.equal(plain.state[n], begun[n]) for n in entries.names("parameters"))
    assert all(torch.equal(still.state[n], plain.state[n]) for n in entries.names("buffers"))
