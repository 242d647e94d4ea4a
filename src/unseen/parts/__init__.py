"""Parts that several methods can take, by the name configuration gives them."""

from __future__ import annotations

import typing
from typing import Any

from unseen.parts.adjusting import GA, OMG
from unseen.parts.affine import Affine
from unseen.parts.aggregation import CEA, SHA, Mean, Uniform
from unseen.parts.agreement import GMA
from unseen.parts.augmix import AugMix
from unseen.parts.jigen import JiGen
from unseen.parts.mixstyle import DSU, EFDMix, MixStyle
from unseen.parts.robust import Median, NormBound, Trimmed
from unseen.parts.round_averages import EMA, Polynomial, Tail
from unseen.parts.rsc import RSC
from unseen.parts.sam import SAM
from unseen.parts.schedules import Cosine, Step, WarmUp
from unseen.parts.server_optimizers import AdamServer, MomentumServer, YogiServer
from unseen.parts.views import FACT, RandConv, Restyled
from unseen.settings import Configured, settings_of

__all__ = ["PARTS", "parts_of"]

PARTS: dict[str, type[Configured]] = {
    "mean": Mean,
    "uniform": Uniform,
    "cea": CEA,
    "sha": SHA,
    "median": Median,
    "trimmed": Trimmed,
    "ga": GA,
    "omg": OMG,
    "gma": GMA,
    "norm": NormBound,
    "momentum": MomentumServer,
    "adam": AdamServer,
    "yogi": YogiServer,
    "ema": EMA,
    "tail": Tail,
    "polynomial": Polynomial,
    "affine": Affine,
    "randconv": RandConv,
    "restyled": Restyled,
    "fact": FACT,
    "augmix": AugMix,
    "mixstyle": MixStyle,
    "efdmix": EFDMix,
    "dsu": DSU,
    "rsc": RSC,
    "jigen": JiGen,
    "sam": SAM,
    "cosine": Cosine,
    "step": Step,
    "warmup": WarmUp,
}


def parts_of(cls: type[Configured]) -> dict[str, list[str]]:
    """Which of the parts each field of a method takes, by the fields' declared types.

    >>> from unseen.methods import FedAvg
    >>> parts_of(FedAvg)["sam"]
    ['sam']
    """
    takes = {s.name: _kinds(s.type) for s in settings_of(cls)}
    return {field: [name for name, part in PARTS.items() if issubclass(part, kinds)] for field, kinds in takes.items() if kinds}


def _kinds(hint: Any) -> tuple[type[Configured], ...]:
    options = typing.get_args(hint) or (hint,)
    return tuple(kind for kind in options if isinstance(kind, type) and issubclass(kind, Configured))
