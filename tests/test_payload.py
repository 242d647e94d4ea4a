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
from unseen.payload import Memory, Nothing, Payload, State, bases, carried, carries, declarations, refuse_unusable


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


def test_a_field_that_does_not_say_what_it_carries_is_refused_when_the_class_is_defined() -> None:
    with pytest.raises(TypeError, match=r'Mute\.model does not say what it carries; write = carries\("model"\)'):

        class Mute(Payload):
            model: State

    with pytest.raises(TypeError, match=r"Odd\.steps carries a model; of its type there may be count, number"):

        class Odd(Payload):
            steps: int = carries("model")

    for wrong in ({"kind": "weights"}, {"kind": "model", "part": "tail"}, {"kind": "score", "role": "generator"}):
        with pytest.raises(TypeError, match="payload field"):
            carries(**wrong)  # type: ignore[arg-type]


class Asked(Payload):
    model: State = carries("model")
    head: State = carries("model", part="head")
    generator: State = carries("model", role="generator")
    candidates: dict[str, State] = carries("model", role="critic")


def test_what_a_field_is_of_follows_from_the_declarations_alone() -> None:
    class Told(Payload):
        first: State = carries("model", of="model")
        made: State = carries("model", role="generator")  # the only one of its role
        change: State = carries("update", of="model", part="head")
        losses: dict[str, float] = carries("score", of="candidates")
        mine: State = carries("model", role="local")  # nothing like it was asked
        steps: int = carries("number")

    assert bases(Asked, Told) == {"first": "model", "made": "generator", "change": "model", "losses": "candidates"}
    assert declarations(Told)["change"].part == "head" and declarations(Told)["made"].role == "generator"


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (("State", {"kind": "model", "of": "weights"}), "is of 'weights'; Asked has model, head, generator, candidates"),
        (("State", {"kind": "model", "of": "generator"}), r"\(task, whole\) is of 'generator', a model \(generator, whole\)"),
        (("State", {"kind": "model", "of": "head"}), r"\(task, whole\) is of 'head', a model \(task, head\)"),
        (("State", {"kind": "model", "part": "head"}), "say which of model, head it was trained from"),
        (("State", {"kind": "update"}), "say what it is a change of"),
    ],
)
def test_a_declaration_that_does_not_fit_the_question_is_refused_when_the_task_is_defined(field: tuple, message: str) -> None:
    hint, told = field
    answer = type("Answer", (Payload,), {"__annotations__": {"value": {"State": State}[hint]}, "value": carries(**told)})
    with pytest.raises(TypeError, match=message):

        def task(self: object, down: Asked, client: Client): ...

        task.__annotations__ = {"down": Asked, "client": Client, "return": answer}
        on_client(task)


def test_a_payload_may_extend_another_and_its_own_fields_come_first() -> None:
    class More(Up):
        extra: float = carries("number")

    assert [*declarations(More)] == ["extra", *declarations(Up)]


def test_of_several_models_by_name_one_cannot_be_a_version() -> None:
    class Several(Payload):
        models: dict[str, State] = carries("model")
        head: State = carries("model", part="head")

    one = type("One", (Payload,), {"__annotations__": {"model": State}, "model": carries("model", of="models")})
    with pytest.raises(TypeError, match="one model, and 'models' several by name"):
        bases(Several, one)

    class Free(Payload):
        model: State = carries("model")  # neither of several, nor of a part

    class Each(Payload):
        models: dict[str, State] = carries("model")

    assert bases(Several, Free) == {} and bases(Several, Each) == {"models": "models"}
    wrong = type("Wrong", (Payload,), {"__annotations__": {"losses": dict[str, float]}, "losses": carries("score", of="head")})
    with pytest.raises(TypeError, match="not several by name"):
        bases(Several, wrong)
