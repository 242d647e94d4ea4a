"""A user's own code, named FILE.py:NAME or FILE.py:NAME:key=value,...: imported here and nowhere else.

What a file holds runs with the rights of whoever started the program. So a name is followed only for the user who typed it: on the
command line, in Python, and in the processes that those start. A name in a message is refused before it is followed; so is one in a run's
folder, which anybody may have sent, unless the user says that they trust it.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from unseen.errors import BadInput, nearest

__all__ = [
    "MEMORY",
    "Own",
    "load",
    "names_code",
    "of_memory",
    "options_text",
    "refuse_own_code",
    "telling_where",
    "texts_in",
    "where_it_is",
]

MEMORY = "memory:"  # before the name of a thing that no file holds
_NAMED = re.compile(r"(.+?\.py):([^:]*)(?::(.*))?", re.DOTALL)
_PACKAGE = str(Path(__file__).parent)
_CALLED_WITH = {  # by kind; none: whoever calls it looks at its signature
    "network": None,
    "optimizer": None,
    "augment": ("x", "y", "rng"),
    "partition": ("sources", "seed"),
    "metric": ("probabilities", "labels"),
    "data": None,
}


@dataclass(frozen=True, eq=False)
class Own:
    """A class, a function or an object of the user's own. `spec` is the text from which another process finds it again."""

    spec: str
    thing: Any = field(repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def name(self) -> str:
        return _name(self.thing)

    def __call__(self, *given: Any, **named: Any) -> Any:
        return self.thing(*given, **{**self.options, **named})

    def __str__(self) -> str:
        return self.spec

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own) and (self.spec, id(self.thing)) == (other.spec, id(other.thing))

    def __hash__(self) -> int:
        return hash(self.spec)

    def refuse_unfit(self, kind: str) -> None:
        """BadInput unless it can be called as the setting that it was given for calls it."""
        takes = _CALLED_WITH[kind]
        if not callable(self.thing) and kind != "data":
            raise BadInput(f"{self.spec} is a {type(self.thing).__name__}; expected a class or a function")
        if takes is None:
            return
        try:
            signature = inspect.signature(self.thing)
        except ValueError:  # written in C
            return
        try:
            signature.bind(*takes, **self.options)
        except TypeError as error:
            raise BadInput(f"{self.spec} is called with ({', '.join(takes)}) and takes {signature}: {error}") from None


def names_code(value: Any) -> bool:
    """Whether a value names code in a file. Nothing that is False here is ever imported.

    >>> [names_code(text) for text in ("nets.py:Net", "nets.py:Net:width=8", "unet:width=8", "nets.py")]
    [True, True, False, False]
    """
    return isinstance(value, str) and ".py:" in value


def refuse_own_code(values: Any) -> None:
    """BadInput if any text in these values, however deep, names code in a file."""
    for text in texts_in(values):
        if names_code(text):
            raise BadInput(f"{text!r} names code in a file: only what is installed here runs here")


def texts_in(values: Any) -> Iterator[str]:
    """Every text in nested tables and lists, keys too."""
    waiting = [values]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set | frozenset):
            waiting += value


def load(text: str) -> tuple[str, Any, str]:
    """FILE.py:NAME with its whole path, what it names, and the text of its options. A path is relative to the working folder."""
    match = _NAMED.fullmatch(text)
    assert match is not None, text
    file, name, options = match[1], match[2].strip(), match[3] or ""
    path = Path(file).expanduser().resolve()
    module = _module(path)
    if name not in vars(module):
        public = [n for n, value in vars(module).items() if not n.startswith("_") and getattr(value, "__module__", "") == module.__name__]
        raise BadInput(f"{path.name} has no {name!r}{nearest(name, public)}" if public else f"{path.name} defines nothing")
    return f"{path}:{name}", vars(module)[name], options


def _module(path: Path) -> ModuleType:
    """The file as a module. A file is imported once, whoever names it and however often."""
    module_name = f"unseen_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    if not path.is_file():
        raise BadInput(f"no file {path}; code of your own is named FILE.py:NAME")
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__unseen_file__ = str(path)  # type: ignore[attr-defined]
    sys.modules[module_name] = module  # dataclasses look their module up here
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise BadInput(f"{path} cannot be imported{_line(error)}: {_said(error)}") from error
    return module


def where_it_is(thing: Any) -> str:
    """FILE.py:NAME of a class or function that came from a file by its name, else memory:NAME."""
    name = _name(thing)
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    file = getattr(module, "__unseen_file__", None)
    return f"{file}:{name}" if file and vars(module).get(name) is thing else MEMORY + name


def of_memory(thing: Any) -> Own:
    """A thing that was handed over in Python. What a partial was given by name are its options."""
    if isinstance(thing, functools.partial) and not thing.args:
        inner = of_memory(thing.func)
        options = {**inner.options, **thing.keywords}
        return Own(f"{where_it_is(inner.thing)}{options_text(options)}", inner.thing, options)
    return Own(where_it_is(thing), thing)


def options_text(options: Mapping[str, Any]) -> str:
    """Options as they are written after a name."""
    return ":" + ",".join(f"{key}={value}" for key, value in options.items()) if options else ""


@contextmanager
def telling_where(what: str) -> Iterator[None]:
    """An error in a user's code as one message with the line where it happened."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{what}{_line(error)}: {_said(error)}") from error


def _said(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"SyntaxError: {error.msg}"
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _line(error: BaseException) -> str:
    """Of the innermost line that is neither ours nor a library's."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" (line {error.lineno} of {error.filename})"
    frames: Sequence[traceback.FrameSummary] = traceback.extract_tb(error.__traceback__)
    theirs = [f for f in frames if not f.filename.startswith((_PACKAGE, "<")) and "site-packages" not in f.filename]
    return f" (line {theirs[-1].lineno} of {theirs[-1].filename})" if theirs else ""


def _name(thing: Any) -> str:
    return str(getattr(thing, "__name__", type(thing).__name__))
