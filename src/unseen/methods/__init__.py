"""The methods, by name. A user's own needs no place here: FILE.py:CLASS names it on the command line."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any

from unseen.errors import BadInput, nearest
from unseen.own_code import load, names_code, where_it_is

if TYPE_CHECKING:
    from unseen.method import Method

__all__ = ["CLASSES", "METHODS", "method_class", "name_of_method"]

CLASSES = {  # a method's name, which is its file's, and its class
    "best": "Best",
    "ccst": "CCST",
    "copa": "COPA",
    "csac": "CSAC",
    "dann": "DANN",
    "ddaig": "DDAIG",
    "elcfs": "ELCFS",
    "epifcr": "EpiFCR",
    "fccl": "FCCL",
    "fedadg": "FedADG",
    "fedavg": "FedAvg",
    "fedbn": "FedBN",
    "fedccrl": "FedCCRL",
    "feddag": "FedDAG",
    "feddyn": "FedDyn",
    "fedgca": "FedGCA",
    "fedgma": "FedGMA",
    "fediir": "FedIIR",
    "fednova": "FedNova",
    "fedprox": "FedProx",
    "fedsam": "FedSAM",
    "fedsb": "FedSB",
    "fedsr": "FedSR",
    "g2g": "G2G",
    "moon": "MOON",
    "perfedavg": "PerFedAvg",
    "scaffold": "SCAFFOLD",
}


class _Methods(MutableMapping[str, "type[Method[Any]]"]):
    """The classes by name. A file is imported when its class is asked for: to know the names takes no torch."""

    def __init__(self) -> None:
        self._found: dict[str, type[Method[Any]] | None] = dict.fromkeys(CLASSES)

    def __getitem__(self, name: str) -> type[Method[Any]]:
        found = self._found[name]
        if found is None:
            found = self._found[name] = getattr(importlib.import_module(f"unseen.methods.{name}"), CLASSES[name])
        return found

    def __setitem__(self, name: str, method: type[Method[Any]]) -> None:
        self._found[name] = method

    def __delitem__(self, name: str) -> None:
        del self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


METHODS = _Methods()


def __getattr__(name: str) -> Any:
    """`from unseen.methods import FedAvg`."""
    for method, cls in CLASSES.items():
        if cls == name:
            return METHODS[method]
    raise AttributeError(f"module 'unseen.methods' has no attribute {name!r}")


def method_class(name: str) -> type[Method[Any]]:
    """The class of a method: by its name, or as FILE.py:CLASS, which is imported."""
    if name in METHODS:
        return METHODS[name]
    if not names_code(name):
        raise BadInput(f"no method {name!r}{nearest(name, METHODS)}")
    spec, found, options = load(name)
    if options:
        raise BadInput(f"{name}: a method's fields are given by --set, not after its name")
    from unseen.method import Method  # takes torch

    if not (isinstance(found, type) and issubclass(found, Method)):
        raise BadInput(f"{spec} is no Method; a method derives from unseen.Method")
    return found


def name_of_method(cls: type[Method[Any]]) -> str:
    """The name from which `method_class` finds the class again, or memory:CLASS where there is none."""
    for name, known in METHODS.items():
        if known is cls:
            return name
    return where_it_is(cls)
