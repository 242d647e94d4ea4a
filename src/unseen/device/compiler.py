"""PyTorch's compiler is imported when something is compiled, and not before.

PyTorch's optimisers import it when the first one is made, only to tell it to stay away from them: three to five seconds before every first
step, also where nothing is ever compiled. So a module stands in its place that knows the two functions they call, and turns into the
compiler itself as soon as anybody asks it for anything else. This is `importlib.util.LazyLoader` but for these two names.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

__all__ = ["import_the_compiler_later"]

_NAME = "torch._dynamo"
_OF_ANY_MODULE = {"__class__", "__dict__", "__file__", "__loader__", "__name__", "__package__", "__spec__"}  # looked at in passing


class _Later(types.ModuleType):
    def __getattribute__(self, name: str) -> Any:
        if name in _WITHOUT:
            return _WITHOUT[name]
        if name not in _OF_ANY_MODULE:
            _become_the_compiler(self)
        return types.ModuleType.__getattribute__(self, name)


def _become_the_compiler(module: types.ModuleType) -> None:
    """Run the compiler's own code in this module, which others hold already."""
    module.__class__ = types.ModuleType
    spec = module.__spec__
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module)


def import_the_compiler_later() -> None:
    """Put the module there, unless the compiler is there."""
    if _NAME in sys.modules:
        return
    spec = importlib.util.find_spec(_NAME)
    if spec is not None:
        sys.modules[_NAME] = importlib.util.module_from_spec(spec)
        sys.modules[_NAME].__class__ = _Later


def _waits() -> bool:
    return type(sys.modules.get(_NAME)) is _Later


def _disable(fn: Callable[..., Any], *given: Any, **further: Any) -> Callable[..., Any]:
    """`torch._dynamo.disable`: until there is a compiler there is nothing that it must be told to leave alone."""
    told: list[Callable[..., Any]] = []

    @functools.wraps(fn)
    def call(*args: Any, **named: Any) -> Any:
        if _waits():
            return fn(*args, **named)
        if not told:
            told.append(sys.modules[_NAME].disable(fn, *given, **further))
        return told[0](*args, **named)

    return call


_WITHOUT: dict[str, Callable[..., Any]] = {"graph_break": lambda msg="": None, "disable": _disable}
