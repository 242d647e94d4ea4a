"""Answers in fixed point: by hand, against plain means, out of range, and of other forms."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sums_in_memory import KEYS, context_of
from unseen.errors import NoReplies, RefusedReply
from unseen.federation.sums.context import SumContext
from unseen.federation.sums.encoding import NARROW_LIMIT, WIDE_LIMIT, decode_mean, encode_answer, rounding
from unseen.federation.sums.words import Words
from unseen.parts.combining import Down, Up
from unseen.payload import Payload, State, carries
from unseen.state import Entries

ENTRIES = Entries({}, frozenset({"w"}), frozenset(), frozenset())
NAMES = ["00", "01", "02"]


def entries(role: str) -> Entries:
    return ENTRIES


def context(*counts: int) -> SumContext:
    return replace(context_of(len(counts)), counts=dict(zip(KEYS, counts, strict=False)))


def summed(ups: Sequence[Payload], down: Payload, agreed: SumContext, survivors: Sequence[int] | None = None) -> Any:
    """The mean by way of words; masks left out, since they cancel to the last bit."""
    words = [encode_answer(up, down, agreed, name, entries) for up, name in zip(ups, KEYS, strict=False)]
    kept = [words[at] for at in (range(len(words)) if survivors is None else survivors)]
    assert len({one.layout for one in kept}) == 1
    total = kept[0].copy()
    for one in kept[1:]:
        total.add(one)
    return decode_mean(total, type(ups[0]), down, agreed, len(kept))


def up_of(weight: float, samples: int | None, **more: Tensor) -> Up:
    return Up(model={"w": torch.tensor([weight]), **more}, samples=samples, perturbed=None)


def test_two_weights_by_hand() -> None:
    down = Down(model={"w": torch.tensor([1.0])})
    ups = [up_of(1.5, 1), up_of(1.0, 2), up_of(0.5, 1)]
    agreed = context(1, 2, 1)
    words = [encode_answer(up, down, agreed, name, entries) for up, name in zip(ups, NAMES, strict=True)]
    assert [int(one.narrow.view(np.int32)[0]) for one in words] == [2**24, 0, -(2**24)]  # +-0.5 * 1/4 * 2^27
    assert [one.wide.tolist() for one in words] == [[1], [2], [1]]  # the weights
    mean = summed(ups, down, agreed)
    assert mean.model["w"].tolist() == [1.0] and mean.samples == 1 and mean.perturbed is None  # 4 / 3 samples, rounded
    two = summed(ups, down, agreed, survivors=[0, 1])
    assert two.model["w"].tolist() == [pytest.approx(1 + 0.5 / 3, abs=2e-7)] and two.samples == 2  # 3 / 2


def test_buffers_are_wide_counters_whole_and_types_those_of_the_question() -> None:
    down = Down(
        model={
            "w": torch.ones(1, dtype=torch.float64),
            "m": torch.zeros(2),
            "n": torch.tensor(7),
            "h": torch.zeros(1, dtype=torch.bfloat16),
        }
    )

    def up(mean: float, batches: int) -> Up:
        model = {"w": torch.tensor([2.0]), "m": torch.tensor([mean, -mean]), "n": torch.tensor(batches)}
        return Up(model={**model, "h": torch.tensor([mean], dtype=torch.bfloat16)}, samples=None, perturbed=None)

    mean = summed([up(1000.0, 7), up(1e6, 17), up(-4000.0, 10_007)], down, context(1, 1, 1))
    assert torch.allclose(mean.model["m"], torch.tensor([332333.333, -332333.333]))
    assert mean.model["n"] == 7 + round(10_010 / 3) and mean.model["n"].dtype == torch.int64 and mean.model["n"].shape == ()
    assert mean.model["w"].dtype == torch.float64 and mean.model["h"].dtype == torch.bfloat16 and mean.samples is None


weights = st.lists(st.tuples(st.integers(1, 10**6), st.lists(st.floats(-14, 14, width=32), min_size=4, max_size=4)), min_size=3, max_size=6)


@given(weights, st.lists(st.floats(-1, 1, width=32), min_size=4, max_size=4), st.booleans(), st.integers(0, 2))
def test_sums_are_plain_means_within_the_stated_rounding(
    sites: list[tuple[int, list[float]]], start: list[float], weighed: bool, lost: int
) -> None:
    down = Down(model={"w": torch.tensor(start), "m": torch.tensor(start)})
    ups = [Up(model={"w": torch.tensor(v), "m": torch.tensor(v) * 1000}, samples=n if weighed else None, perturbed=None) for n, v in sites]
    agreed = context(*(n for n, _ in sites))
    kept = [*range(len(sites) - lost)] if lost < len(sites) - 1 else [0]
    mean = summed(ups, down, agreed, kept)
    shares = [sites[at][0] if weighed else 1 for at in kept]
    for name, narrow in (("w", True), ("m", False)):
        plain = sum(ups[at].model[name].double() * share for at, share in zip(kept, shares, strict=True)) / sum(shares)
        error = rounding(len(kept), agreed.total(weighed), sum(shares), narrow)
        last_bit = plain.abs() * 2**-24 + 1e-30  # of float32
        assert bool(((mean.model[name].double() - plain).abs() <= error + 2 * last_bit + 1e-12).all())
    assert mean.samples == (max(1, round(sum(shares) / len(shares))) if weighed else None)


def test_a_round_of_equal_sites_is_within_two_units_of_float32() -> None:
    assert rounding(3, 3, 3) < 2**-26 and rounding(1000, 1000, 1000) < 4e-6


@pytest.mark.parametrize("wrong", [15.5, -15.5, 1e30, float("inf"), float("-inf"), float("nan")])
def test_a_parameter_that_changed_too_much_is_refused(wrong: float) -> None:
    down = Down(model={"w": torch.zeros(2)})
    for weight in (1, 1000):
        with pytest.raises(RefusedReply, match=r"model\.w changed by more than 15, or is not finite"):
            encode_answer(
                Up(model={"w": torch.tensor([0.0, wrong])}, samples=weight, perturbed=None), down, context(1000, 1, 1), "00", entries
            )


@pytest.mark.parametrize("wrong", [2e9, float("nan")])
def test_a_buffer_that_changed_too_much_is_refused(wrong: float) -> None:
    down = Down(model={"m": torch.zeros(2)})
    with pytest.raises(RefusedReply, match=r"model\.m changed by more than 1.07374e\+09"):
        encode_answer(Up(model={"m": torch.tensor([wrong, 0.0])}, samples=1, perturbed=None), down, context(1, 1, 1), "00", entries)


def test_at_the_limit_no_sum_runs_over() -> None:
    for sites in (3, 7):
        names = [*KEYS][:sites]
        for sign in (1, -1):
            down = Down(model={"w": torch.zeros(1), "m": torch.zeros(1)})
            up = Up(model={"w": torch.tensor([sign * NARROW_LIMIT]), "m": torch.tensor([sign * WIDE_LIMIT])}, samples=None, perturbed=None)
            mean = summed([up] * len(names), down, context(*[1] * sites))
            assert mean.model["w"].item() == pytest.approx(sign * NARROW_LIMIT) and mean.model["m"].item() == pytest.approx(
                sign * WIDE_LIMIT
            )


def test_an_answer_that_weighs_more_than_was_announced_is_refused() -> None:
    down = Down(model={"w": torch.zeros(1)})
    with pytest.raises(RefusedReply, match="rests on 11 samples, where the site announced 10"):
        encode_answer(up_of(0.0, 11), down, context(10, 10, 10), "00", entries)


def test_a_field_that_is_no_mean_must_stay_empty() -> None:
    down = Down(model={"w": torch.zeros(1)})
    with pytest.raises(RefusedReply, match="perturbed is filled, but not declared as one of which the mean is enough"):
        encode_answer(replace(up_of(0.0, 1), perturbed={"w": torch.zeros(1)}), down, context(1, 1, 1), "00", entries)  # type: ignore[type-var]


def test_a_field_that_is_empty_at_one_site_alone_makes_another_layout() -> None:
    down = Down(model={"w": torch.zeros(1)})
    layouts = {encode_answer(up_of(0.0, samples), down, context(1, 1, 1), "00", entries).layout for samples in (1, None)}
    assert len(layouts) == 2


def test_sites_of_no_weight_give_nothing() -> None:
    down = Down(model={"w": torch.zeros(1)})
    with pytest.raises(NoReplies, match="weigh 0 together"):
        summed([up_of(1.0, 0)] * 3, down, context(0, 0, 0))
    assert summed([up_of(1.0, 0), up_of(2.0, 5), up_of(3.0, 0)], down, context(5, 5, 5)).model["w"].item() == pytest.approx(2.0)


class Asked(Payload):
    start: State = carries("model")


class Everything(Payload):
    update: State = carries("update", of="start", mean=True)
    gradient: State = carries("gradient", mean=True)
    prototype: Tensor = carries("statistic", mean=True)
    absent: State | None = carries("model", role="others", mean=True)


def test_updates_gradients_and_statistics() -> None:
    down = Asked(start={"w": torch.full((2,), 100.0)})

    def up(number: float) -> Everything:
        return Everything(
            update={"w": torch.tensor([number, -number])},
            gradient={"w": torch.tensor([100 * number, 0.0])},
            prototype=torch.tensor([[1000 * number]]),
            absent=None,
        )

    mean = summed([up(1.0), up(2.0), up(6.0)], down, context(1, 1, 1))
    assert mean.update["w"].tolist() == pytest.approx([3.0, -3.0]) and mean.gradient["w"].tolist() == pytest.approx([300.0, 0.0])
    assert mean.prototype.tolist() == [[pytest.approx(3000.0)]] and mean.absent is None


class Numbers(Payload):
    loss: float = carries("statistic", mean=True)
    losses: list[float] = carries("statistic", mean=True)
    by_class: dict[str, float] = carries("statistic", mean=True)
    steps: int = carries("number", mean=True)


def test_numbers_of_python_too() -> None:
    ups = [Numbers(loss=x, losses=[x, 2 * x], by_class={"cat": -x}, steps=int(x)) for x in (1.5, 2.5, 1e6)]
    mean = summed(ups, Down(model={}), context(1, 1, 1))
    third = (1.5 + 2.5 + 1e6) / 3
    assert mean.loss == pytest.approx(third, abs=1e-9) and mean.losses == pytest.approx([third, 2 * third], abs=1e-9)
    assert mean.by_class == {"cat": pytest.approx(-third, abs=1e-9)} and mean.steps == round((1 + 2 + 1e6) / 3)


def honest() -> tuple[Words, Mapping[str, Any]]:
    words = encode_answer(up_of(1.0, 1), Down(model={"w": torch.zeros(1)}), context(1, 1, 1), "00", entries)
    return words, json.loads(words.layout)


@pytest.mark.parametrize(
    "lie",
    [
        "", "[]", "{", '"x"', "[" * 100_000,
        {"weighed": True}, {"pieces": 3}, {"pieces": [[]]}, {"pieces": []}, {"absent": ["model"]},
        {"pieces": [["model", ["w"], "float32", [2], True]]}, {"pieces": [["model", ["w"], "float32", [1], False]]},
        {"pieces": [["model", ["w"], "float8", [1], True]]}, {"pieces": [["perturbed", ["w"], "float32", [1], True]]},
        {"pieces": [["modell", ["w"], "float32", [1], True]]}, {"pieces": [["model", [1], "float32", [1], True]]},
        {"pieces": [["model", ["w"], "float32", [-1], True], ["model", ["v"], "float32", [2], True]]},
        {"pieces": [["model", ["w"], "float32", [1], 1]]}, {"pieces": [["model", [], "float32", [1], True]]},
        {"pieces": [["model", ["w"], "float", [], True]]}, {"pieces": [["model", ["w", "w"], "list", [1], True]]},
        {"pieces": [["model", ["w"], "float32", [1, 1], True]]},
    ],
)  # fmt: skip
def test_layouts_that_no_honest_site_writes_are_refused(lie: Any) -> None:
    words, layout = honest()
    told = lie if isinstance(lie, str) else json.dumps({**layout, **lie} if "weighed" not in lie else lie)
    with pytest.raises(RefusedReply):
        decode_mean(replace(words, layout=told), Up, Down(model={"w": torch.zeros(1)}), context(1, 1, 1), 1)
