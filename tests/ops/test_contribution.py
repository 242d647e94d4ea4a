"""FedDAG's scores, weights and history, against loops and a slow simulation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from unseen.ops.contribution import (
    Scored,
    balanced_weights,
    changed_share,
    direction,
    generalisation_scores,
    left_gradient,
    perturbed,
    retained,
    within_client,
)

positive = st.floats(0.01, 100)


@given(st.dictionaries(st.sampled_from("abcdef"), positive, min_size=1), st.floats(0, 3))
def test_equation_6(scores: dict[str, float], beta: float) -> None:
    weights = balanced_weights(scores, beta)
    assert sum(weights.values()) == pytest.approx(1, abs=1e-12)
    for a in scores:
        for b in scores:
            ratio = math.exp(beta * (math.log(scores[a]) - math.log(scores[b])))
            assert weights[a] / weights[b] == pytest.approx(ratio, rel=1e-9)


@given(positive, st.floats(0, 3), st.integers(1, 7))
def test_equal_scores_and_beta_zero_give_the_plain_mean(score: float, beta: float, clients: int) -> None:
    names = [str(i) for i in range(clients)]
    assert balanced_weights(dict.fromkeys(names, score), beta) == pytest.approx(dict.fromkeys(names, 1 / clients))
    assert balanced_weights({n: score + i for i, n in enumerate(names)}, 0.0) == dict.fromkeys(names, 1 / clients)


def test_no_score_and_no_beta_is_too_large() -> None:
    """Of models that lose 1e-12 and 1e9 everywhere, and of models that all lose 1e9."""
    assert balanced_weights({"a": 1e12, "b": 1e-9}, 40.0) == {"a": 1.0, "b": 0.0}
    assert balanced_weights({"a": 1e-9, "b": 1e-9}, 40.0) == {"a": 0.5, "b": 0.5}


def test_equation_5_by_hand_and_scaled_to_the_number_of_clients() -> None:
    everybody = {"a": {"a": 0.1, "b": 0.5, "c": 0.3}, "b": {"a": 0.2, "b": 0.4, "c": 0.5}, "c": {"a": 0.7, "b": 0.9, "c": 0.2}}
    assert generalisation_scores(everybody, 3) == pytest.approx({"a": 1 / 1.0, "b": 1 / 1.8, "c": 1 / 1.0})
    others = {e: {m: v for m, v in row.items() if m != e} for e, row in everybody.items()}
    assert generalisation_scores(others, 3) == pytest.approx({"a": 1 / (0.9 * 3 / 2), "b": 1 / (1.4 * 3 / 2), "c": 1 / (0.8 * 3 / 2)})
    only_b = generalisation_scores({"b": others["b"]}, 3)
    assert only_b == pytest.approx({"a": 1 / (0.2 * 3), "c": 1 / (0.5 * 3)})
    assert generalisation_scores({"a": {"b": 0.0}}, 2)["b"] == pytest.approx(1e12)


def net(grads: list[list[float] | None]) -> nn.Module:
    module = nn.ParameterList([nn.Parameter(torch.tensor([1.0, -2.0])) for _ in grads])
    for p, g in zip(module, grads, strict=True):
        p.grad = None if g is None else torch.tensor(g)
    return module


def test_the_perturbation_by_hand() -> None:
    teacher, student = net([None, None, None]), net([[2.0, -1.0], [0.0, 2.0], None])  # |g| = 3
    state = perturbed(teacher, left_gradient(student), rho=0.3, eps="l2")
    assert [v.tolist() for v in state.values()] == [
        pytest.approx([1.2, -2.1]), pytest.approx([1.0, -1.8]), pytest.approx([1.0, -2.0]),
    ]  # fmt: skip
    state = perturbed(teacher, left_gradient(student), rho=0.3, eps="sign")
    assert [v.tolist() for v in state.values()] == [
        pytest.approx([1.3, -2.3]), pytest.approx([1.0, -1.7]), pytest.approx([1.0, -2.0]),
    ]  # fmt: skip
    assert all(torch.equal(p.detach(), torch.tensor([1.0, -2.0])) for p in teacher.parameters())
    flat = perturbed(teacher, left_gradient(net([[0.0, 0.0], None, None])), rho=0.3, eps="l2")
    assert all(torch.equal(v, torch.tensor([1.0, -2.0])) for v in flat.values())


@pytest.mark.parametrize("eps", ["l2", "sign"])
def test_the_direction_raises_a_linear_loss_by_the_dual_norm(eps: str) -> None:
    """Foret et al.: <g, eps> is |g|_2 in the L2 ball, |g|_1 in the maximum-norm ball; no other point of the ball does better."""
    g = [torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    move = direction(g, eps)  # type: ignore[arg-type]
    flat, flat_move = torch.cat(g), torch.cat(move)
    order = 2 if eps == "l2" else float("inf")
    assert float(torch.linalg.vector_norm(flat_move, order)) == pytest.approx(1)
    assert float(flat @ flat_move) == pytest.approx(float(torch.linalg.vector_norm(flat, 2 if eps == "l2" else 1)))


def test_float32_swallows_the_papers_step_and_float64_does_not() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300))
    nn.init.normal_(layer[0].weight, 0, 0.02)
    for p in layer.parameters():
        p.grad = torch.randn_like(p)
    model = {k: v.clone() for k, v in layer.state_dict().items()}
    trained = [name for name, _ in layer.named_parameters()]
    assert changed_share(model, perturbed(layer, left_gradient(layer), 1e-7, "l2"), trained) < 0.5
    exact = perturbed(layer, left_gradient(layer), 1e-7, "l2", float64=True)
    assert changed_share(model, exact, trained) == 1.0  # running statistics are no weights
    assert exact["0.weight"].dtype is torch.float64 and exact["1.num_batches_tracked"].dtype is torch.int64
    moved = torch.cat([(exact[n] - model[n].double()).flatten() for n, _ in layer.named_parameters()])
    assert float(moved.norm()) == pytest.approx(1e-7, rel=1e-6)


def model(number: int) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([float(2**number)], dtype=torch.float64)}  # a mean of powers of two tells which were averaged


rounds = st.lists(st.integers(0, 6).map(float), min_size=1, max_size=25)  # few values, so that ties are common


@given(rounds, st.integers(0, 5))
def test_retention_loses_nothing_that_a_full_history_would_use(scores: list[float], k: int) -> None:
    """A slow simulation keeps every model for ever and looks for the latest k that exceed the current score."""
    history: list[Scored] = []
    for now, score in enumerate(scores):
        got = within_client(Scored(model(now), score), history, k)
        chosen, candidate = [now], now - 1
        while candidate >= 0 and len(chosen) < 1 + k:
            if scores[candidate] > score:
                chosen.append(candidate)
            candidate -= 1
        assert float(got.model["w"]) == pytest.approx(sum(2.0**c for c in chosen) / len(chosen), rel=1e-12)
        assert got.score == pytest.approx(sum(scores[c] for c in chosen) / len(chosen))
        history = retained([*history, Scored(model(now), score)], k, cap=1000)


@given(rounds, st.integers(0, 4), st.integers(0, 6))
def test_what_is_kept_by_the_rule_told_slowly(scores: list[float], k: int, cap: int) -> None:
    history: list[Scored] = []
    alive: list[int] = []
    for now, score in enumerate(scores):
        history = retained([*history, Scored(model(now), score)], k, cap)
        alive.append(now)
        for earlier in list(alive):
            later_at_least_as_high = len([j for j in range(earlier + 1, now + 1) if scores[j] >= scores[earlier]])
            if later_at_least_as_high >= k:
                alive.remove(earlier)
        while len(alive) > cap:
            alive.pop(0)
        assert [float(h.model["w"]) for h in history] == [2.0**a for a in alive]
        assert [h.score for h in history] == [scores[a] for a in alive]
