"""A row's free choices, and every combination of them as a try.

A row of a plan is a row of `unseen bench` that leaves something open:
  rates = [1e-3, 3e-3]                tried as its lr; `rate_fields = { lr_f = 1.0, lr_g = 0.7 }`: those multiples of a rate instead
  try = { smoothing = [0.0, 0.1] }    values of any fields of the method, or keys of the experiment
  ingredients = { sb = { smoothing = 0.1 }, rc = { views = "randconv" } }   every subset of them
  variants = { mild = { ... }, strong = { ... } }                           one of them; "declared": those that the method declares
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unseen.errors import BadInput
from unseen.experiment_options import options
from unseen.methods import method_class
from unseen.settings import settings_of

__all__ = ["FREE", "Row", "Try", "read_row"]

FREE = ("rates", "try", "ingredients", "variants")  # what a row may leave open
_FOLLOWS = ("rate_of", "choice_of")  # what it may take from another row
OF_THE_PLAN = (*FREE, *_FOLLOWS, "rate_fields")
_MOST = 1000  # combinations of one row that are listed at all


@dataclass(frozen=True)
class Try:
    """One combination of what a row leaves open."""

    name: str
    fields: Mapping[str, Any]  # of the method, or keys of the experiment
    numbers: Mapping[str, float] = field(default_factory=dict)  # the ordered choices among them, to tell which lie at an edge
    rate: float | None = None


@dataclass(frozen=True)
class Row:
    """A row of the table, and what is tried for it."""

    label: str
    given: Mapping[str, Any]  # as `unseen bench` reads it, without what the plan leaves open
    tries: tuple[Try, ...] = ()
    ranges: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # of ordered choices, ascending
    rate_fields: Mapping[str, float] = field(default_factory=dict)
    rate_of: str | None = None
    choice_of: str | None = None

    @property
    def method(self) -> str:
        return str(self.given["method"])

    def with_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The row as `unseen bench` reads it, with these fields: the method's own in `set`, keys of the experiment beside it."""
        around = {key: value for key, value in fields.items() if key in around_the(self.method)}
        return {**self.given, **around, "set": {**self.given.get("set", {}), **{k: v for k, v in fields.items() if k not in around}}}


def around_the(method: str) -> set[str]:
    """Keys of the experiment that are no fields of the method."""
    return {s.name for s in options()} - {s.name for s in settings_of(method_class(method))}


def read_row(value: Any, most: int | None = None) -> Row:
    """One entry of `methods`. Every mistake in it is told at once; `most` draws so many of its combinations."""
    given: dict[str, Any] = {"method": value} if isinstance(value, str) else dict(value) if isinstance(value, Mapping) else {}
    name = given.get("method")
    if not isinstance(name, str):
        raise BadInput(f'methods holds {value!r}; expected a name, or a table such as {{ method = "fedsb", rates = [1e-3, 1e-2] }}')
    label = given.get("label", name)
    problems = [] if isinstance(label, str) else [f"label is {label!r}; expected text"]
    problems += [f"{label}: {text}" for text in _misplaced(given)]
    if problems:
        raise BadInput(problems)
    rate_fields = given.get("rate_fields", {"lr": 1.0})
    kept = {key: part for key, part in given.items() if key not in OF_THE_PLAN}
    try:
        method_class(name)
        axes = _axes(given, rate_fields)
        tries = tuple(_combinations(axes, most)) if axes else ()
        _refuse_overlap(axes, kept)
        _refuse_vain_set(axes, kept.get("set", {}), of_the_method=given.get("variants") == "declared")
    except BadInput as bad:
        raise BadInput([f"{label}: {problem}" for problem in bad.problems]) from None
    ranges = {axis.name: tuple(sorted(axis.numbers)) for axis in axes if axis.numbers}
    return Row(label, kept, tries, ranges, rate_fields, given.get("rate_of"), given.get("choice_of"))


@dataclass(frozen=True)
class _Axis:
    """One thing that is open: a name and fields for each of its values."""

    name: str
    values: tuple[tuple[str, Mapping[str, Any]], ...]
    numbers: tuple[float, ...] = ()  # in the order of the values, where these are numbers

    @property
    def fields(self) -> set[str]:
        return {key for _, fields in self.values for key in fields}

    @property
    def fields_of_every_value(self) -> set[str]:
        return set.intersection(*(set(fields) for _, fields in self.values))


def _misplaced(given: Mapping[str, Any]) -> Iterator[str]:
    rates = given.get("rates", [1.0])
    if not isinstance(rates, list) or not rates or not all(_is_number(rate) and rate > 0 for rate in rates):
        yield f"rates is {rates!r}; expected a list of numbers above 0"
    factors = given.get("rate_fields", {"lr": 1.0})
    if not isinstance(factors, Mapping) or not factors or not all(_is_number(factor) for factor in factors.values()):
        yield f"rate_fields is {factors!r}; expected a table of multiples, such as {{ lr_f = 1.0, lr_g = 0.7 }}"
    if "rate_fields" in given and not {"rates", "rate_of"} & set(given):
        yield "rate_fields are multiples of a rate; give rates or rate_of too"
    tried = given.get("try", {"field": [1]})
    if not isinstance(tried, Mapping) or not tried or not all(isinstance(values, list) and values for values in tried.values()):
        yield f"try is {tried!r}; expected a table of lists, such as {{ smoothing = [0.0, 0.1] }}"
    for key in ("ingredients", "variants"):
        table = given.get(key, {"one": {}})
        if key == "variants" and table == "declared":
            continue
        if not isinstance(table, Mapping) or not table or not all(isinstance(fields, Mapping) for fields in table.values()):
            yield f"{key} is {table!r}; expected a table of fields by name, such as {{ strong = {{ smoothing = 0.2 }} }}"
    for key in _FOLLOWS:
        if key in given and not isinstance(given[key], str):
            yield f"{key} is {given[key]!r}; expected the label of another row"
    open_too = sorted(set(given) & set(FREE))
    if set(given) & set(_FOLLOWS) and open_too:
        yield f"it takes another row's choice and leaves {', '.join(open_too)} open; keep one of the two"
    if set(_FOLLOWS) <= set(given):
        yield "it has both rate_of and choice_of; keep one of the two"
    for key in ("set", "by_target"):
        if not isinstance(given.get(key, {}), Mapping):
            yield f"{key} is {given[key]!r}; expected a table"
    by_target = given.get("by_target", {})
    if isinstance(by_target, Mapping) and not all(isinstance(fields, Mapping) for fields in by_target.values()):
        yield f"by_target is {by_target!r}; expected a table of fields by unseen domain"


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _axes(given: Mapping[str, Any], rate_fields: Mapping[str, float]) -> list[_Axis]:
    axes = []
    if "variants" in given:
        table = _declared(given["method"]) if given["variants"] == "declared" else given["variants"]
        axes.append(_Axis("variant", tuple((str(name), _plain(fields)) for name, fields in table.items())))
    if "ingredients" in given:
        axes.append(_Axis("ingredients", tuple(_subsets(given["ingredients"]))))
    for name, values in given.get("try", {}).items():
        if len({_text(value) for value in values}) < len(values):
            raise BadInput(f"try has a value of {name} twice: {values!r}")
        numbers = tuple(map(float, values)) if all(map(_is_number, values)) else ()
        axes.append(_Axis(name, tuple((f"{name}={_text(value)}", {name: value}) for value in values), numbers))
    if "rates" in given:
        rates = given["rates"]
        if len(set(rates)) < len(rates):
            raise BadInput(f"rates has a value twice: {rates!r}")
        values = tuple((f"{rate:g}", at_rate(rate_fields, rate)) for rate in rates)
        axes.append(_Axis("rate", values, tuple(map(float, rates))))
    return axes


def at_rate(rate_fields: Mapping[str, float], rate: float) -> dict[str, float]:
    """The fields that a rate decides."""
    return {name: float(f"{factor * rate:.6g}") for name, factor in rate_fields.items()}


def _declared(method: str) -> Mapping[str, Mapping[str, Any]]:
    cls = method_class(method)
    if not cls.variants:
        raise BadInput(f"{method} declares no variants; name some in the plan: variants = {{ mild = {{ ... }}, strong = {{ ... }} }}")
    return cls.variants


def _plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """As a TOML file has them: it knows no null."""
    return {key: "none" if value is None else value for key, value in fields.items()}


def _subsets(ingredients: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    owner: dict[str, str] = {}
    for name, fields in ingredients.items():
        for key in fields:
            if key in owner:
                raise BadInput(f"ingredients {owner[key]} and {name} both set {key}; make them variants of one another")
            owner[key] = name
    if len(ingredients) > 10:
        raise BadInput(f"{len(ingredients)} ingredients have {2 ** len(ingredients)} subsets; expected at most 10")
    for size in range(len(ingredients) + 1):
        for chosen in itertools.combinations(ingredients, size):
            yield "+".join(chosen) or "plain", {key: value for name in chosen for key, value in ingredients[name].items()}


def _combinations(axes: Sequence[_Axis], most: int | None) -> Iterator[Try]:
    """All of them, or `most` that are drawn alike whenever the plan is read."""
    sizes = [len(axis.values) for axis in axes]
    number = math.prod(sizes)
    if number > _MOST and (most is None or most > _MOST):
        raise BadInput(f"{number} combinations; say how many of them are drawn: [tune] most = 30 (at most {_MOST})")
    drawn = range(number) if most is None or most >= number else sorted(random.Random(0).sample(range(number), most))  # noqa: S311
    for index in drawn:
        places: list[int] = []
        for size in reversed(sizes):
            index, place = divmod(index, size)
            places.insert(0, place)
        picked = [axis.values[place] for axis, place in zip(axes, places, strict=True)]
        numbers = {axis.name: axis.numbers[place] for axis, place in zip(axes, places, strict=True) if axis.numbers}
        fields = {key: value for _, part in picked for key, value in part.items()}
        yield Try(", ".join(name for name, _ in picked), fields, numbers, numbers.get("rate"))


def _refuse_overlap(axes: Sequence[_Axis], kept: Mapping[str, Any]) -> None:
    """A field that two things decide would be tried in vain."""
    for first, second in itertools.combinations(axes, 2):
        for key in sorted(first.fields & second.fields):
            raise BadInput(f"{first.name} and {second.name} both decide {key}; leave it to one of them")
    tried = {key for axis in axes for key in axis.fields}
    for key in sorted(tried & {key for fields in kept.get("by_target", {}).values() for key in fields}):
        raise BadInput(f"{key} is tried, and by_target sets it as well; leave it out of one of them")
    for key in sorted(tried & kept.keys()):
        raise BadInput(f"{key} is tried, and the row sets it as well; leave it out of one of them")


def _refuse_vain_set(axes: Sequence[_Axis], given: Mapping[str, Any], of_the_method: bool) -> None:
    """What `set` gives is for the tries that leave it alone. None does, or it goes against variants that are `of_the_method`."""
    for axis in axes:
        vain = axis.fields if of_the_method and axis.name == "variant" else axis.fields_of_every_value
        for key in sorted(vain & given.keys()):
            raise BadInput(
                f"set has {key} = {json.dumps(given[key], default=str)}, and the tries decide {key}; expected fields that they leave "
                "alone. Leave it out of set, or out of the tries (a plan names its own)"
            )


def _text(value: Any) -> str:
    """A value as a part of a try's name."""
    if isinstance(value, Mapping):
        rest = ",".join(f"{key}={_text(part)}" for key, part in value.items() if key != "name")
        return f"{value.get('name', '')}:{rest}" if rest else str(value.get("name", ""))
    return value if isinstance(value, str) else json.dumps(value, default=str)
