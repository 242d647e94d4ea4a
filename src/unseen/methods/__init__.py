"""The methods, by name. A user's own needs no place here: FILE.py:CLASS names it on the command line."""

from __future__ import annotations

from typing import Any

from unseen.errors import BadInput, nearest
from unseen.method import Method
from unseen.methods.elcfs import ELCFS
from unseen.methods.fedadg import FedADG
from unseen.methods.fedavg import FedAvg
from unseen.methods.feddag import FedDAG
from unseen.methods.feddyn import FedDyn
from unseen.methods.fedgca import FedGCA
from unseen.methods.fedprox import FedProx
from unseen.methods.fedsam import FedSAM
from unseen.methods.fedsb import FedSB
from unseen.own_code import load, names_code, where_it_is

__all__ = [
    "ELCFS",
    "METHODS",
    "FedADG",
    "FedAvg",
    "FedDAG",
    "FedDyn",
    "FedGCA",
    "FedProx",
    "FedSAM",
    "FedSB",
    "method_class",
    "name_of_method",
]

METHODS: dict[str, type[Method[Any]]] = {
    "elcfs": ELCFS,
    "fedadg": FedADG,
    "fedavg": FedAvg,
    "feddag": FedDAG,
    "feddyn": FedDyn,
    "fedgca": FedGCA,
    "fedprox": FedProx,
    "fedsam": FedSAM,
    "fedsb": FedSB,
}


def method_class(name: str) -> type[Method[Any]]:
    """The class of a method: by its name, or as FILE.py:CLASS, which is imported."""
    if name in METHODS:
        return METHODS[name]
    if not names_code(name):
        raise BadInput(f"no method {name!r}{nearest(name, METHODS)}")
    spec, found, options = load(name)
    if options:
        raise BadInput(f"{name}: a method's fields are given by --set, not after its name")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise BadInput(f"{spec} is no Method; a method derives from unseen.Method")
    return found


def name_of_method(cls: type[Method[Any]]) -> str:
    """The name from which `method_class` finds the class again, or memory:CLASS where there is none."""
    for name, known in METHODS.items():
        if known is cls:
            return name
    return where_it_is(cls)
