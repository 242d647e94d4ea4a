"""What may travel is declared, measured and checked."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from unseen.client import Client
from unseen.errors import RefusedReply
from unseen.method import on_client
from unseen.payload import Memory, Nothing, Payload, State, carried, carries, refuse_unusable


class Up(Payload):
    model: State = carries("model")
    low: Tensor = carries("spectrum", grows_with_data=True)
    samples: int = carries("count")
    losses: list[float] = carries("score")
    scores: dict[str, float] = carries("score")
    others: dict[str, State] = carries("model")
    note: str | None = carries("text")


def an_up(**changes: object) -> Up:
    values = {
        "model": {"w": torch.ones(2, 3)},
        "low": torch.ones(4, dtype=torch.float64),
        "samples": 3,
        "losses": [1.0, 2.0],
        "scores": {"a": 1.0},
        "others": {"b": {"w": torch.ones(1)}},
        "note": None,
    }
    return Up(**{**values, **changes})  # type: ignore[arg-type]


def test_a_field_that_may_not_travel_is_refused_when_the_class_is_defined() -> None:
    for hint in (torch.utils.data.Dataset, bytes, list[Tensor], dict[str, int], complex, int | float):
        with pytest.raises(TypeError, match=r"Leak\.images"):
            type("Leak", (Payload,), {"__annotations__": {"images": hint}})


def test_a_task_must_declare_payloads() -> None:
    class Kept(Memory):
        model: State

    with pytest.raises(TypeError, match="returns"):

        @on_client
        def gives_a_dict(self: object, down: Nothing, client: Client) -> dict:  # type: ignore[type-arg, type-var]
            return {}

    with pytest.raises(TypeError, match="returns"):

        @on_client
        def gives_a_memory(self: object, down: Nothing, client: Client) -> Kept:  # type: ignore[type-var]
            return Kept(model={})

    with pytest.raises(TypeError, match="takes"):

        @on_client
        def takes_text(self: object, down: str, client: Client) -> Nothing:  # type: ignore[type-var]
            return Nothing()


def test_values_are_checked_when_a_payload_is_made() -> None:
    with pytest.raises(TypeError, match=r"Up\.samples"):
        an_up(samples=1.5)
    with pytest.raises(TypeError, match=r"Up\.model\['w'\]"):
        an_up(model={"w": [1.0]})


def test_a_payload_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        an_up().samples = 4  # type: ignore[misc]


@given(st.integers(), st.lists(st.floats(allow_nan=False)), st.text() | st.none())
def test_round_trip(samples: int, losses: list[float], note: str | None) -> None:
    up = an_up(samples=samples, losses=losses, note=note)
    back = Up.from_bytes(up.to_bytes())
    assert (back.samples, back.losses, back.note) == (samples, losses, note)
    assert torch.equal(back.model["w"], up.model["w"]) and back.low.dtype == torch.float64


def test_what_is_carried_is_measured() -> None:
    rows = {c.field: (c.kind, c.bytes, c.grows) for c in carried(an_up(note="é"))}
    assert rows == {
        "model": ("model", 24, False),
        "low": ("spectrum", 32, True),
        "samples": ("count", 8, False),
        "losses": ("score", 16, False),
        "scores": ("score", 8, False),
        "others": ("model", 4, False),
        "note": ("text", 2, False),
    }


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_and_named(bad: float) -> None:
    weights = torch.ones(3)
    weights[1] = bad
    cases = {
        "model.w": an_up(model={"v": torch.ones(1), "w": weights}),
        "others.b.w": an_up(others={"b": {"w": weights}}),
        "low": an_up(low=weights),
        "losses": an_up(losses=[0.0, bad]),
        "scores": an_up(scores={"a": bad}),
    }
    for place, up in cases.items():
        with pytest.raises(RefusedReply, match=f"^{place} is not finite"):
            refuse_unusable(up, Up)
    refuse_unusable(an_up(), Up)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_large_numbers_are_finite_though_their_sum_is_not(dtype: torch.dtype) -> None:
    large = torch.full((9,), torch.finfo(dtype).max, dtype=dtype)
    refuse_unusable(an_up(model={"w": large, "empty": torch.zeros(0), "n": torch.tensor(3)}), Up)
    large[4] = math.nan
    with pytest.raises(RefusedReply, match=r"^model\.w is not finite"):
        refuse_unusable(an_up(model={"v": -torch.ones(1, dtype=dtype), "w": large}), Up)


def test_another_payload_than_the_declared_one_is_refused() -> None:
    with pytest.raises(RefusedReply, match="Nothing"):
        refuse_unusable(Nothing(), Up)
