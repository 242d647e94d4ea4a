"""Hyper-parameters: declared once, with their meaning, the paper's symbol and their range; checked when a thing is built."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, Literal

from unseen.errors import BadInput, nearest

__all__ = ["Configured", "Setting", "changed", "group", "hyper", "parse_text", "part", "parts_in", "settings_of", "values_of"]


def hyper(default: Any, meaning: str, *, symbol: str = "", low: float | None = None, high: float | None = None) -> Any:
    """A hyper-parameter as a dataclass field. `symbol` is the paper's; empty means "not in the paper"."""
    return dataclasses.field(default=default, metadata={"meaning": meaning, "symbol": symbol, "low": low, "high": high})


def group(
    fields: Configured,
    *,
    symbols: Mapping[str, str] | None = None,
    meanings: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> Any:
    """Hyper-parameters that many methods have, declared once: `local: Local = group(Local(lr=1e-3), symbols={"lr": "eta"})`.

    Each becomes a field of the method itself, with the default it has in `fields` and the symbol and meaning that are given here;
    `without` leaves some out, and a field that the method declares itself stays the method's. The object is there too: `self.local`.
    """
    return _Group(fields, symbols or {}, meanings or {}, frozenset(without))


@dataclasses.dataclass(frozen=True)
class _Group:
    fields: Configured
    symbols: Mapping[str, str]
    meanings: Mapping[str, str]
    without: frozenset[str]

    def settings(self) -> list[Setting]:
        return [s for s in settings_of(type(self.fields)) if s.name not in self.without]

    def gathered(self, owner: Any) -> Configured:
        """The object as the owner's fields have it."""
        return dataclasses.replace(self.fields, **{s.name: getattr(owner, s.name) for s in self.settings()})  # type: ignore[type-var]


class Configured:
    """A frozen dataclass of hyper-parameters (a method, a part of one): its values are checked when it is made."""

    __groups__: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = inspect.get_annotations(cls)
        if not any(isinstance(cls.__dict__.get(name), _Group) for name in own):
            return
        flat: dict[str, Any] = {}
        for name, hint in own.items():
            declared = cls.__dict__.get(name)
            if not isinstance(declared, _Group):
                flat[name] = hint
                continue
            for s in declared.settings():
                if s.name in own:
                    continue
                flat[s.name] = s.type
                meaning, symbol = declared.meanings.get(s.name, s.meaning), declared.symbols.get(s.name, s.symbol)
                setattr(cls, s.name, hyper(getattr(declared.fields, s.name), meaning, symbol=symbol, low=s.low, high=s.high))
            gathered = functools.cached_property(declared.gathered)
            gathered.__set_name__(cls, name)
            setattr(cls, name, gathered)
            cls.__groups__ = (*cls.__groups__, name)
        cls.__annotations__ = flat

    def __post_init__(self) -> None:
        problems = []
        for setting in settings_of(type(self)):
            value, problem = setting.read(getattr(self, setting.name))
            if problem:
                problems.append(problem)
            else:
                object.__setattr__(self, setting.name, value)
        if not problems:
            problems += self.contradictions()
            for name in self.__groups__:
                try:
                    getattr(self, name)
                except BadInput as bad:
                    problems += bad.problems
        if problems:
            raise BadInput(problems)

    def contradictions(self) -> Iterable[str]:
        """Settings that are each valid but do not go together, one sentence each."""
        return ()


@dataclasses.dataclass(frozen=True)
class Setting:
    """One hyper-parameter as people see it."""

    name: str
    type: Any
    default: Any
    meaning: str
    symbol: str
    low: float | None
    high: float | None

    def read(self, value: Any) -> tuple[Any, str]:
        """The value as its declared type, and what is wrong with it ('' for nothing)."""
        hint, optional = _plain(self.type)
        expected = self.expected()
        if optional and (value is None or (value == "none" and hint is not str)):  # TOML has no null
            return None, ""
        if isinstance(hint, type) and issubclass(hint, Configured):
            return (value, "") if isinstance(value, hint) else (value, f"{self.name} is {value!r}; expected {expected}")
        if typing.get_origin(hint) is Literal:
            options = typing.get_args(hint)
            if value in options and type(value) in {type(o) for o in options}:
                return value, ""
            return value, f"{self.name} is {value!r}{nearest(str(value), map(str, options))}"
        if hint is float and type(value) is int:
            value = float(value)
        if type(value) is not hint:
            return value, f"{self.name} is {value!r} ({type(value).__name__}); expected {expected}"
        if isinstance(value, int | float) and not isinstance(value, bool):
            below, above = self.low is not None and value < self.low, self.high is not None and value > self.high
            if below or above or not math.isfinite(value):
                return value, f"{self.name} is {value!r}; expected {expected}"
        return value, ""

    def expected(self) -> str:
        """The type and range in words.

        >>> Setting("lr", float, 1e-4, "", "", 0.0, None).expected()
        'a number, at least 0'
        """
        hint, optional = _plain(self.type)
        words = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        text = words.get(hint) or (" | ".join(map(str, typing.get_args(hint))) if typing.get_origin(hint) is Literal else _part_names(hint))
        if self.low is not None and self.high is not None:
            text += f" from {self.low:g} to {self.high:g}"
        elif self.low is not None:
            text += f", at least {self.low:g}"
        elif self.high is not None:
            text += f", at most {self.high:g}"
        return text + (", or none" if optional else "")


def settings_of(cls: type) -> list[Setting]:
    """The hyper-parameters of a method or a part, in the order they are declared; inherited ones come last."""
    hints = typing.get_type_hints(cls)
    own = inspect.get_annotations(cls)
    rows = []
    for field in sorted(dataclasses.fields(cls), key=lambda field: field.name not in own):
        get = field.metadata.get
        rows.append(Setting(field.name, hints[field.name], field.default, get("meaning", ""), get("symbol", ""), get("low"), get("high")))
    return rows


def parts_in(thing: Configured) -> list[Configured]:
    """The parts that a method or a part was given, and its groups of fields."""
    names = [*thing.__groups__, *(s.name for s in settings_of(type(thing)))]
    return [value for name in names if isinstance(value := getattr(thing, name), Configured)]


def values_of(thing: Configured) -> dict[str, Any]:
    """Its hyper-parameters as plain values that JSON and TOML can hold; a part as a table with its name."""
    return {s.name: _plain_value(getattr(thing, s.name)) for s in settings_of(type(thing))}


def changed(thing: Configured, reference: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Where it departs from these values: name -> (reference, here)."""
    now = values_of(thing)
    return {name: (reference[name], now[name]) for name in reference if reference[name] != now[name]}


def parse_text(text: str) -> Any:
    """A value typed on the command line: number, true/false, none, a part `name:key=value,...`, else text.

    >>> [parse_text(t) for t in ("3", "1e-3", "true", "none", "pass")]
    [3, 0.001, True, None, 'pass']
    """
    lowered = text.strip().lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("none", "null", ""):
        return None
    for kind in (int, float):
        try:
            return kind(lowered)
        except ValueError:
            continue
    name, colon, rest = text.partition(":")
    if colon and "=" in rest:
        pairs = (pair.partition("=") for pair in rest.split(","))
        return {"name": name.strip(), **{key.strip(): parse_text(value) for key, _, value in pairs}}
    return text


def build(cls: type[Any], values: Mapping[str, Any], parts: Mapping[str, type[Configured]] | None = None) -> Any:
    """Make a method or part from plain values, reporting every mistake at once."""
    known = {s.name: s for s in settings_of(cls)}
    label = getattr(cls, "name", cls.__name__.lower())
    problems, ready = [], {}
    for name, value in values.items():
        if name not in known:
            problems.append(f"{label} has no field {name!r}{nearest(name, known)}")
            continue
        try:
            ready[name] = _read_part(value, known[name], parts or {})
        except BadInput as bad:
            problems += [f"{label}: {problem}" for problem in bad.problems]
            continue
        _, problem = known[name].read(ready[name])
        if problem:
            problems.append(f"{label}: {problem}")
    if problems:
        raise BadInput(problems)
    return cls(**ready)


def _read_part(value: Any, setting: Setting, parts: Mapping[str, type[Configured]]) -> Any:
    hint, _ = _plain(setting.type)
    if not (isinstance(hint, type) and issubclass(hint, Configured)):
        return value
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        return value
    fitting = {name: cls for name, cls in parts.items() if issubclass(cls, hint)}
    name = table.get("name")
    if name not in fitting:
        raise BadInput(f"{setting.name} is {name!r}{nearest(str(name), fitting)}")
    return build(fitting[name], {k: v for k, v in table.items() if k != "name"}, parts)


def part(thing: Configured) -> str:
    """The name by which configuration calls a part."""
    return str(getattr(type(thing), "name", type(thing).__name__.lower()))


def _plain_value(value: Any) -> Any:
    return {"name": part(value), **values_of(value)} if isinstance(value, Configured) else value


def _plain(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [h for h in typing.get_args(hint) if h is not type(None)]
        return (rest[0], True) if len(rest) == 1 else (hint, True)
    return hint, False


def _part_names(hint: Any) -> str:
    return f"a {hint.__name__}" if isinstance(hint, type) else str(hint)
