"""Unseen: federated domain generalisation. Train across sites that may not share their data, for a site nobody has seen."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from unseen.methods import CLASSES
from unseen.version import __version__ as __version__

if TYPE_CHECKING:
    from unseen.client import Client as Client
    from unseen.data.domain import Domain as Domain
    from unseen.data.domain import DomainDataset as DomainDataset
    from unseen.errors import BadInput as BadInput
    from unseen.experiment import Experiment as Experiment
    from unseen.front import load as load
    from unseen.front import run as run
    from unseen.method import Cohort as Cohort
    from unseen.method import Global as Global
    from unseen.method import Method as Method
    from unseen.method import on_client as on_client
    from unseen.ops.averaging import mean as mean
    from unseen.payload import Memory as Memory
    from unseen.payload import Nothing as Nothing
    from unseen.payload import Payload as Payload
    from unseen.payload import State as State
    from unseen.payload import carries as carries
    from unseen.report.result import Result as Result
    from unseen.settings import group as group
    from unseen.settings import hyper as hyper
    from unseen.state import state_of as state_of
    from unseen.task import Classification as Classification
    from unseen.task import Segmentation as Segmentation

# Where each public name lives. Loaded on first use, so that `unseen --help` does not wait for torch.
_HOMES = {
    "unseen.client": ("Client",),
    "unseen.data.domain": ("Domain", "DomainDataset"),
    "unseen.errors": ("BadInput",),
    "unseen.experiment": ("Experiment",),
    "unseen.front": ("load", "run"),
    "unseen.method": ("Cohort", "Global", "Method", "on_client"),
    "unseen.methods": tuple(CLASSES.values()),
    "unseen.ops.averaging": ("mean",),
    "unseen.payload": ("Memory", "Nothing", "Payload", "State", "carries"),
    "unseen.report.result": ("Result",),
    "unseen.settings": ("group", "hyper"),
    "unseen.state": ("state_of",),
    "unseen.task": ("Classification", "Segmentation"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}
__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'unseen' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
