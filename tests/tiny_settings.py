"""The tiny settings of every method, gathered from the tests of the methods: all tests over every method are made from them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from cases import Case
from unseen.methods import METHODS


def _of(method: str) -> dict[str, Case]:
    """The table `TINY` of tests/papers/test_METHOD.py."""
    file = Path(__file__).parent / "papers" / f"test_{method}.py"
    spec = importlib.util.spec_from_file_location(f"tiny_settings_of_{method}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up here
    spec.loader.exec_module(module)
    tiny: dict[str, Case] = module.TINY
    return tiny


SETTINGS: dict[str, Case] = {name: case for method in METHODS for name, case in _of(method).items()}
