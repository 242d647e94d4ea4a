"""FedDAG's server over many rounds against a simulation that keeps every model for ever, in plain numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from unseen import FedDAG
from unseen.method import Refused, Replies
from unseen.methods.feddag import Up
from unseen.parts.aggregation import SHA, Losses

ROUNDS, NAMES = 9, "abcd"
LOST = {(2, "train", "b"), (3, "assess", "c"), (5, "train", "a"), (5, "train", "d"), (6, "assess", "a")}


def teacher_of(number: int, client: str) -> float:
    return 10.0 * number + NAMES.index(client)


def generator_of(number: int, client: str) -> float:
    return 2 * teacher_of(number, client) + 1


class Table:
    """Clients whose models are numbers and whose losses are in a table; some answers get lost."""

    def __init__(self, losses: dict[int, dict[str, dict[str, float]]]) -> None:
        self.names, self.losses, self.number = list(NAMES), losses, 0
        self.rates: list[float | None] = []

    def ask(self, task: Any, down: Any) -> Replies[Any]:
        asked = sorted(down) if isinstance(down, dict) else self.names
        self.rates += [] if isinstance(down, dict) else [down.rate]
        answers = {c: self.up(c) if task.__name__ == "train" else self.judge(c, down[c].models) for c in asked}
        return Replies(iter([(c, Refused("lost") if (self.number, task.__name__, c) in LOST else a) for c, a in answers.items()]))

    def entries(self, part: str = "whole", role: str = "task") -> list[str]:
        return ["w"]

    def up(self, client: str) -> Up:
        t, g = (torch.tensor([v], dtype=torch.float64) for v in (teacher_of(self.number, client), generator_of(self.number, client)))
        return Up(teacher={"w": t}, generator={"g": g}, perturbed={"w": t + 0.1}, student=None, samples=None)

    def judge(self, evaluator: str, models: dict[str, Any]) -> Losses:
        return Losses(losses={c: self.losses[self.number][evaluator][c] for c in models})


@pytest.mark.parametrize(
    ("k", "beta", "own", "keeps"),
    [(1, 0.7, False, "own"), (2, 0.3, False, "own"), (4, 1.5, True, "own"), (0, 0.3, False, "own"), (2, 0.3, False, "averaged")],
)
def test_algorithm_2_with_lost_answers(k: int, beta: float, own: bool, keeps: Any) -> None:
    rng = np.random.default_rng(k)
    losses = {r: {e: {c: float(rng.uniform(0.05, 3)) for c in NAMES} for e in NAMES} for r in range(ROUNDS)}
    clients = Table(losses)
    method = FedDAG(warmup=0, rate_warmup=4 * k, aggregation=SHA(k=k, beta=beta, own=own, keeps=keeps))
    state = method.start(lambda role: {"w" if role == "task" else "g": torch.zeros(1, dtype=torch.float64)}, clients)
    past: dict[str, list[tuple[float, float]]] = {c: [] for c in NAMES}
    joined = 0
    for number in range(ROUNDS):
        clients.number = number
        state = method.round(state, clients)
        here = [c for c in NAMES if (number, "train", c) not in LOST]
        judges = [c for c in here if (number, "assess", c) not in LOST]
        teachers, scores = {}, {}
        for c in here:
            heard = [losses[number][e][c] for e in judges if own or e != c]
            now = (teacher_of(number, c), 1 / (4 * float(np.mean(heard)))) if heard else None
            better = [old for old in past[c] if now and old[1] > now[1]][::-1][:k]
            joined += len(better)
            teachers[c] = float(np.mean([teacher_of(number, c), *(model for model, _ in better)]))
            if now:
                scores[c] = float(np.mean([now[1], *(score for _, score in better)]))
                past[c].append(now if keeps == "own" else (teachers[c], scores[c]))
        typical = float(np.mean([*scores.values()])) if scores else 1.0
        powers = {c: scores.get(c, typical) ** beta for c in here}
        assert state.generator is not None
        for got, values in ((state.teachers.model["w"], teachers), (state.generator["g"], {c: generator_of(number, c) for c in here})):
            assert float(got) == pytest.approx(sum(powers[c] * values[c] for c in here) / sum(powers.values()), rel=1e-12)
    assert (joined > 0) == (k > 0)
    assert clients.rates == [(number + 1) / (4 * k) if number < 4 * k else None for number in range(ROUNDS)]
