"""The methods, by name. A user's own needs no place here: FILE.py:CLASS names it on the command line."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
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
    """The class of a method: by its name, or as FILE.py:CLASS."""
    if name in METHODS:
        return METHODS[name]
    file, colon, cls = name.rpartition(":")
    if not (colon and file.endswith(".py")):
        raise BadInput(f"no method {name!r}{nearest(name, METHODS)}")
    return _from_file(Path(file), cls)


def name_of_method(cls: type[Method[Any]]) -> str:
    """The name from which `method_class` finds the class again, or memory:CLASS where there is none."""
    for name, known in METHODS.items():
        if known is cls:
            return name
    file = getattr(sys.modules.get(cls.__module__), "__unseen_file__", None)
    return f"{file}:{cls.__name__}" if file else f"memory:{cls.__name__}"


def _from_file(path: Path, cls: str) -> type[Method[Any]]:
    path = path.resolve()
    if not path.is_file():
        raise BadInput(f"no file {path}; a method of your own is named FILE.py:CLASS")
    module_name = f"unseen_user_{path.stem}_{abs(hash(str(path)))}"
    module = sys.modules.get(module_name)
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, path)
        if spec is None or spec.loader is None:
            raise BadInput(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        module.__unseen_file__ = str(path)  # type: ignore[attr-defined]
        sys.modules[module_name] = module  # dataclasses look their module up here
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise BadInput(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, cls, None)
    if not (isinstance(found, type) and issubclass(found, Method)):
        methods = [n for n, v in vars(module).items() if isinstance(v, type) and issubclass(v, Method) and v is not Method]
        raise BadInput(f"{path.name} has no method {cls!r}{nearest(cls, methods)}" if methods else f"{path.name} holds no Method")
    return found
