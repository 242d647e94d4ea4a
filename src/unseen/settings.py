"""Hyper-parameters: declared once, with their meaning, the paper's symbol and their range; checked when a thing is built."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import types
import typing
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, ClassVar, Literal, Self

from unseen.errors import BadInput, nearest
from unseen.own_code import MEMORY, Own, load, names_code, of_memory, options_text, where_it_is

__all__ = [
    "Configured",
    "Setting",
    "changed",
    "default_values",
    "group",
    "hyper",
    "parse_text",
    "part",
    "parts_in",
    "settings_of",
    "values_of",
]

_SETTINGS: weakref.WeakKeyDictionary[type, tuple[Any, list[Setting]]] = weakref.WeakKeyDictionary()  # a round asks dozens of times


def hyper(default: Any, meaning: str, *, symbol: str = "", low: float | None = None, high: float | None = None, own: str = "") -> Any:
    """A hyper-parameter as a dataclass field. `symbol` is the paper's; empty means "not in the paper".

    `own` names the kind of user's code that the field accepts too: network, optimizer, augment, partition, metric or data.
    """
    return dataclasses.field(default=default, metadata={"meaning": meaning, "symbol": symbol, "low": low, "high": high, "own": own})


def group(
    fields: Configured,
    *,
    symbols: Mapping[str, str] | None = None,
    meanings: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> Any:
    """Hyper-parameters that many methods have, declared once: `local: Local = group(Local(lr=1e-3), symbols={"lr": "eta"})`.

    Each becomes a field of the method itself, with the default it has in `fields` and the symbol and meaning that are given here;
    `without` leaves some out. A field that the method declares itself overrides the group's. `self.local` is the group as an object.
    """
    strange = ({*(symbols or {}), *(meanings or {}), *without}) - {s.name for s in settings_of(type(fields))}
    if strange:
        raise TypeError(f"{type(fields).__name__} has no field {', '.join(sorted(strange))}")
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
        if "__repr__" not in vars(cls):
            cls.__repr__ = Configured.__repr__  # type: ignore[method-assign]  # before @dataclass writes one with every field
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
                setattr(cls, s.name, hyper(getattr(declared.fields, s.name), meaning, symbol=symbol, low=s.low, high=s.high, own=s.own))
            gathered = functools.cached_property(declared.gathered)
            gathered.__set_name__(cls, name)
            setattr(cls, name, gathered)
            cls.__groups__ = (*(one for one in cls.__groups__ if one != name), name)
        cls.__annotations__ = flat

    def __new__(cls, *_: Any, **named: Any) -> Self:
        """A field that there is not is a mistake like any other: one message with the nearest name."""
        _refuse_undecorated(cls)
        known = getattr(cls, "__dataclass_fields__", {})
        if any(name not in known for name in named):
            takes = inspect.signature(cls.__init__).parameters
            strange = [name for name in named if name not in takes]
            if strange and not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
                raise BadInput([f"{cls.__name__} has no field {name!r}{nearest(name, known)}" for name in strange])
        return super().__new__(cls)

    def __repr__(self) -> str:
        """What differs from the defaults; `values_of` gives everything."""
        given = [f"{s.name}={value!r}" for s in settings_of(type(self)) if (value := getattr(self, s.name)) != s.default]
        return f"{type(self).__name__}({', '.join(given)})"

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
    own: str = ""  # as what it takes a user's own code

    def read(self, value: Any) -> tuple[Any, str]:
        """The value as its declared type, and what is wrong with it ('' for nothing)."""
        hint, optional = _plain(self.type)
        expected = self.expected()
        if optional and (value is None or (value == "none" and hint is not str)):  # TOML has no null
            return None, ""
        if value in _words(self.type):
            return value, ""
        if self.own:
            try:
                value = _read_own(value, self.own)
            except BadInput as bad:
                return value, f"{self.name}: {bad}"
            if isinstance(value, Own):
                return value, ""
        if isinstance(hint, type) and issubclass(hint, Configured):
            if isinstance(value, type) and issubclass(value, hint):
                return value, f"{self.name} is the class {value.__name__}; give an object: {value.__name__}()"
            if isinstance(value, str) and (named := _kinds_of(hint)):
                if value in named:
                    return named[value](), ""
                return value, f"{self.name} is {value!r}{nearest(value, [*named, *_words(self.type)])}"
            return (value, "") if isinstance(value, hint) else (value, f"{self.name} is {value!r}; expected {expected}")
        if typing.get_origin(hint) is Literal:
            options = typing.get_args(hint)
            value = "none" if value is None and "none" in options else value  # a command line reads the word as nothing
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
        return ", ".join([text, *_words(self.type)]) + (", FILE.py:NAME" if self.own else "") + (", or none" if optional else "")


def _kinds_of(hint: type[Any]) -> dict[str, type[Any]]:
    """The parts of that type that there are now, by the names that they declare."""
    found = {} if inspect.isabstract(hint) or "name" not in vars(hint) else {str(vars(hint)["name"]): hint}
    below: list[type[Any]] = hint.__subclasses__()
    return {name: kind for one in below for name, kind in _kinds_of(one).items()} | found


def settings_of(cls: type) -> list[Setting]:
    """The hyper-parameters of a method or a part, in the order they are declared; inherited ones come last."""
    _refuse_undecorated(cls)
    if not dataclasses.is_dataclass(cls):
        return []
    if cls not in _SETTINGS or _SETTINGS[cls][0] is not cls.__dataclass_fields__:  # its parent's, until the decorator has been
        hints, own = typing.get_type_hints(cls), inspect.get_annotations(cls)
        fields = [(f, f.metadata.get) for f in sorted(dataclasses.fields(cls), key=lambda field: field.name not in own)]
        rows = [
            Setting(f.name, hints[f.name], f.default, get("meaning", ""), get("symbol", ""), get("low"), get("high"), get("own", ""))
            for f, get in fields
        ]
        _SETTINGS[cls] = cls.__dataclass_fields__, rows
    return list(_SETTINGS[cls][1])


def _refuse_undecorated(cls: type) -> None:
    fields = [name for name, value in vars(cls).items() if isinstance(value, dataclasses.Field)]  # @dataclass takes them away
    if fields:
        raise BadInput(f"{cls.__name__} has the field {fields[0]!r} but is no dataclass; write @dataclass(frozen=True) above it")


def parts_in(thing: Configured) -> list[Configured]:
    """The parts that a method or a part was given, and its groups of fields."""
    names = [*thing.__groups__, *(s.name for s in settings_of(type(thing)))]
    return [value for name in names if isinstance(value := getattr(thing, name), Configured)]


def values_of(thing: Configured, named: Callable[[Configured], str] | None = None) -> dict[str, Any]:
    """Its hyper-parameters as plain values that JSON and TOML can hold; a part as a table with its name, as `named` gives it."""
    return {s.name: _plain_value(getattr(thing, s.name), named or part) for s in settings_of(type(thing))}


def default_values(cls: type[Configured]) -> dict[str, Any]:
    """The defaults of a method or a part, as plain values."""
    return {s.name: _plain_value(s.default, part) for s in settings_of(cls) if s.default is not dataclasses.MISSING}


def changed(thing: Configured, reference: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Where it departs from these values: name -> (reference, here)."""
    now = values_of(thing)
    return {name: (reference[name], now[name]) for name in reference if reference[name] != now[name]}


def parse_text(text: str) -> Any:
    """A value typed on the command line: number, true/false, none, a part `name:key=value,...`, else text (FILE.py:NAME too).

    >>> [parse_text(t) for t in ("3", "1e-3", "true", "none", "pass")]
    [3, 0.001, True, None, 'pass']
    """
    words = {"true": True, "false": False, "none": None, "null": None, "": None}
    if (lowered := text.strip().lower()) in words:
        return words[lowered]
    for kind in (int, float):
        try:
            return kind(lowered)
        except ValueError:
            continue
    name, colon, rest = text.partition(":")
    if colon and "=" in rest and not names_code(text):
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
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing and not problems:
        problems.append(f"{cls.__name__} is not complete: it does not define {', '.join(missing)}")
    if problems:
        raise BadInput(problems)
    return cls(**ready)


def _read_part(value: Any, setting: Setting, parts: Mapping[str, type[Configured]]) -> Any:
    hint, optional = _plain(setting.type)
    if not (isinstance(hint, type) and issubclass(hint, Configured)) or (optional and value == "none") or value in _words(setting.type):
        return value
    table = {"name": value} if isinstance(value, str) else value
    if not isinstance(table, Mapping):
        return value
    fitting = {name: cls for name, cls in parts.items() if issubclass(cls, hint)}
    name = table.get("name")
    if isinstance(name, str) and names_code(name):
        own, cls, options = load(name)
        if not (isinstance(cls, type) and issubclass(cls, hint)):
            raise BadInput(f"{setting.name} is {own}, which is no class that derives from {hint.__module__}.{hint.__name__}")
        return build(cls, {**_options(options), **{k: v for k, v in table.items() if k != "name"}}, parts)
    if isinstance(name, str) and name.startswith(MEMORY):
        raise BadInput(_in_no_file(setting.name, name))
    if name not in fitting:
        raise BadInput(f"{setting.name} is {name!r}{nearest(str(name), [*fitting, *_words(setting.type)])}")
    return build(fitting[name], {k: v for k, v in table.items() if k != "name"}, parts)


def part(thing: Configured) -> str:
    """The name by which configuration calls a part."""
    where = where_it_is(type(thing))
    return str(getattr(type(thing), "name", type(thing).__name__.lower())) if where.startswith(MEMORY) else where


def _read_own(value: Any, kind: str) -> Any:
    """What a user wrote for a setting that takes code of their own, as an Own where it is that."""
    if isinstance(value, Own):
        return value
    named = isinstance(value, Mapping) and names_code(value.get("name"))
    if names_code(value) or named:
        spec, thing, text = load(value["name"] if named else value)
        options = {**_options(text), **({k: v for k, v in value.items() if k != "name"} if named else {})}
        own = Own(spec + options_text(options), thing, options)
    elif callable(value):
        own = of_memory(value)
    elif isinstance(value, str) and value.startswith(MEMORY) and kind != "data":
        raise BadInput(_in_no_file("it", value))
    else:
        return value
    own.refuse_unfit(kind)
    return own


def _in_no_file(name: str, value: str) -> str:
    return (
        f"{name} was {value.removeprefix(MEMORY)!r}, made in Python and in no file; give it in Python, or put it in a file as FILE.py:NAME"
    )


def _options(text: str) -> dict[str, Any]:
    """`key=value,key=value` as values."""
    options: dict[str, Any] = {}
    for pair in text.split(",") if text.strip() else ():
        key, equals, value = (piece.strip() for piece in pair.partition("="))
        if not key or not equals or key in options:
            raise BadInput(f"{pair!r} is no option; write each once, as in FILE.py:NAME:key=value,key=value")
        options[key] = parse_text(value)
    return options


def _plain_value(value: Any, named: Callable[[Configured], str]) -> Any:
    if isinstance(value, Own):
        return value.spec
    return {"name": named(value), **values_of(value, named)} if isinstance(value, Configured) else value


def _plain(hint: Any) -> tuple[Any, bool]:
    """The type without none, without what a user's own code is and without words beside a part, and whether none is allowed."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        kinds = typing.get_args(hint)
        rest = [h for h in kinds if h is not type(None) and h is not Own and typing.get_origin(h) is not Callable]
        rest = [h for h in rest if isinstance(h, type)] or rest
        return rest[0] if len(rest) == 1 else hint, type(None) in kinds
    return hint, False


def _words(hint: Any) -> tuple[str, ...]:
    """The words that a setting takes in place of a part: `Affine | Literal["auto"] | None` takes auto."""
    if not isinstance(_plain(hint)[0], type):
        return ()
    return tuple(word for h in typing.get_args(hint) if typing.get_origin(h) is Literal for word in typing.get_args(h))


def _part_names(hint: Any) -> str:
    return f"{'an' if hint.__name__[0] in 'AEIOU' else 'a'} {hint.__name__}" if isinstance(hint, type) else str(hint)
