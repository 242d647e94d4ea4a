"""The mean of models, against numbers worked out by hand."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unseen.errors import NoReplies
from unseen.ops.averaging import RunningMean, mean
from unseen.state import State


def test_weighted_by_hand() -> None:
    states = [({"w": torch.tensor([1.0, 10.0])}, 1.0), ({"w": torch.tensor([4.0, 40.0])}, 3.0)]
    assert torch.equal(mean(states)["w"], torch.tensor([3.25, 32.5]))


def test_plain_by_hand_with_counters() -> None:
    a = {"w": torch.tensor([1.0]), "n": torch.tensor(7)}
    b = {"w": torch.tensor([2.0]), "n": torch.tensor(5)}
    for result in (mean([a, b]), mean([b, a])):
        assert result["w"].item() == 1.5 and result["n"].item() == 7 and result["n"].dtype == torch.int64


def test_what_clients_gave_stays_as_it_was() -> None:
    given = [{"w": torch.tensor([1.0, 2.0], dtype=torch.float64), "h": torch.tensor([3.0]), "n": torch.tensor(4)} for _ in range(2)]
    result = mean([(given[0], 2.0), (given[1], 3.0)])
    for state in given:
        assert state["w"].tolist() == [1.0, 2.0] and state["h"].item() == 3.0 and state["n"].item() == 4
        assert not {v.data_ptr() for v in result.values()} & {v.data_ptr() for v in state.values()}


def test_counters_alone() -> None:
    assert mean([{"n": torch.tensor(2)}, {"n": torch.tensor(9)}])["n"].item() == 9


@given(st.integers(1, 50), st.integers(0, 100))
def test_equal_models_give_that_model_to_the_bit(copies: int, seed: int) -> None:
    state = {"w": torch.randn(17, generator=torch.Generator().manual_seed(seed))}
    assert torch.equal(mean([(state, 0.1 + i) for i in range(copies)])["w"], state["w"])


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=6))
def test_against_a_loop_in_exact_fractions(weights: list[float]) -> None:
    from fractions import Fraction

    values = [float(torch.randn(1, generator=torch.Generator().manual_seed(i))) for i in range(len(weights))]
    exact = sum(Fraction(v) * Fraction(w) for v, w in zip(values, weights, strict=True)) / sum(map(Fraction, weights))
    got = mean([({"w": torch.tensor([v], dtype=torch.float64)}, w) for v, w in zip(values, weights, strict=True)])["w"].item()
    assert got == pytest.approx(float(exact), rel=1e-12, abs=1e-14)


def test_inputs_are_left_alone() -> None:
    a, b = {"w": torch.tensor([1.0]), "n": torch.tensor(1)}, {"w": torch.tensor([3.0]), "n": torch.tensor(2)}
    mean([a, b])
    assert a["w"].item() == 1.0 and a["n"].item() == 1


def test_streams_one_model_at_a_time() -> None:
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def states() -> Iterator[State]:
        nonlocal most
        for i in range(20):
            tensor = torch.full((1000,), float(i))
            alive.append(weakref.ref(tensor))
            yield {"w": tensor}
            del tensor
            most = max(most, sum(ref() is not None for ref in alive))

    mean(states())
    assert most <= 3  # the first, for its types, the last and the next


def test_nobody_answered() -> None:
    with pytest.raises(NoReplies):
        mean([])


def test_models_of_different_networks_do_not_mix() -> None:
    with pytest.raises(ValueError, match="differ"):
        mean([{"a": torch.ones(1)}, {"b": torch.ones(1)}])


def test_one_model_in_memory_at_a_time() -> None:
    running, first = RunningMean(), {"w": torch.ones(2), "n": torch.tensor(3)}
    kept = [weakref.ref(tensor) for tensor in first.values()]
    running.add(first)
    del first
    assert [one() for one in kept] == [None, None]
    running.add({"w": torch.zeros(2), "n": torch.tensor(1)})
    result = running.result()
    assert torch.equal(result["w"], torch.full((2,), 0.5)) and int(result["n"]) == 3
