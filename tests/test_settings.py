"""Hyper-parameters are checked when a thing is built, and every mistake is told at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.errors import BadInput, nearest
from unseen.settings import Configured, build, changed, hyper, parse_text, settings_of, values_of


@dataclass(frozen=True)
class Brake(Configured):
    name: ClassVar[str] = "brake"
    force: float = hyper(1.0, "how hard", low=0.0)


@dataclass(frozen=True)
class Car(Configured):
    name: ClassVar[str] = "car"
    wheels: int = hyper(4, "how many", symbol="W", low=3, high=6)
    speed: float = hyper(1.0, "how fast")
    colour: Literal["red", "blue"] = hyper("red", "which")
    electric: bool = hyper(False, "how")
    towed: int | None = hyper(None, "how much", low=0)
    brake: Brake | None = hyper(None, "with what")


PARTS = {"brake": Brake}


def test_defaults_meanings_and_symbols_are_readable() -> None:
    wheels = settings_of(Car)[0]
    assert (wheels.name, wheels.default, wheels.meaning, wheels.symbol) == ("wheels", 4, "how many", "W")
    assert wheels.expected() == "a whole number from 3 to 6"
    settings_of(Car).clear()  # the caller's own list
    assert settings_of(Car)[0] == wheels


def test_a_class_is_read_after_its_decorator_too() -> None:
    class Van(Car):
        load: float = 2.0

    assert "load" not in {setting.name for setting in settings_of(Van)}
    assert "load" in {setting.name for setting in settings_of(dataclass(frozen=True)(Van))}


def test_an_int_becomes_the_float_that_was_declared() -> None:
    car = Car(speed=2)
    assert type(car.speed) is float


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"wheels": 7}, "from 3 to 6"),
        ({"wheels": 4.0}, "a whole number"),
        ({"wheels": True}, "a whole number"),
        ({"wheels": None}, "a whole number"),
        ({"speed": "fast"}, "a number"),
        ({"speed": float("nan")}, "a number"),
        ({"speed": float("inf")}, "a number"),
        ({"colour": "bleu"}, "did you mean 'blue'"),
        ({"electric": 1}, "true or false"),
        ({"towed": -1}, "at least 0, or none"),
        ({"brake": "break"}, "did you mean 'brake'"),
        ({"brake": {"name": "brake", "force": -1}}, "at least 0"),
        ({"brake": 3}, "a Brake"),
        ({"wheel": 4}, "did you mean 'wheels'"),
    ],
)
def test_a_bad_value_is_refused_with_what_was_expected(values: dict[str, object], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        build(Car, values, PARTS)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(BadInput) as caught:
        build(Car, {"wheels": 9, "speeed": 1, "colour": "green"}, PARTS)
    assert len(caught.value.problems) == 3


def test_parts_by_name_or_table() -> None:
    assert build(Car, {"brake": "brake"}, PARTS).brake == Brake()
    assert build(Car, {"brake": {"name": "brake", "force": 2}}, PARTS).brake == Brake(2.0)
    assert build(Car, {"brake": parse_text("brake:force=3")}, PARTS).brake == Brake(3.0)


@given(
    st.integers(3, 6), st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["red", "blue"]), st.none() | st.just(Brake(2.0))
)
def test_plain_values_build_the_same_thing_again(wheels: int, speed: float, colour: str, brake: Brake | None) -> None:
    car = Car(wheels, speed, colour, brake=brake)  # type: ignore[arg-type]
    assert build(Car, values_of(car), PARTS) == car


def test_departures_name_before_and_after() -> None:
    assert changed(Car(wheels=3), values_of(Car())) == {"wheels": (4, 3)}


@given(st.text())
def test_any_typed_text_is_read_without_an_error(text: str) -> None:
    parse_text(text)


def test_nearest_names() -> None:
    assert nearest("fedbs", ["fedsb", "fedsr"]) == "; did you mean 'fedsb'?"
