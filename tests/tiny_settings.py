"""One table of tiny settings, from which all tests over every method are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from unseen.method import Method
from unseen.methods import METHODS
from unseen.parts.aggregation import CEA, SHA, Mean, Uniform
from unseen.parts.mixstyle import MixStyle
from unseen.parts.sam import SAM
from unseen.parts.views import RandConv
from unseen.settings import settings_of


@dataclass(frozen=True)
class Case:
    """Enough training to learn three stripes or a square in seconds.

    `reaches` is far above chance (1/3) and an empty mask (0). It is None for an ablation that is not meant to learn.
    """

    method: str
    values: dict[str, Any] = field(default_factory=dict)
    task: str = "classification"
    rounds: int = 6
    reaches: float | None = 0.7

    def build(self) -> Method[Any]:
        return METHODS[self.method](**self.values)


def own(method: str, preset: str) -> dict[str, Any]:
    """What a preset says about the method itself, not about the experiment around it."""
    fields = {s.name for s in settings_of(METHODS[method])}
    return {key: value for key, value in METHODS[method].presets[preset].items() if key in fields}


FEDADG = {"lr_f": 0.05, "lr_g": 0.01, "lr_d": 0.01, "classification_epochs": 1, "alignment_epochs": 2, "batch": 8}
FEDDAG: dict[str, Any] = {"lr": 0.05, "batch": 8, "width": 4, "warmup": 1, "ema": 0.5}

SETTINGS: dict[str, Case] = {
    "elcfs": Case("elcfs", {"lr": 0.02, "batch": 8, "alpha": 0.2}),
    "elcfs-masks": Case("elcfs", {"lr": 0.02, "batch": 4, "alpha": 0.1}, task="segmentation", rounds=8, reaches=0.6),
    "elcfs-released": Case("elcfs", {**own("elcfs", "released"), "lr": 0.02, "batch": 4}, task="segmentation", rounds=8, reaches=0.6),
    "elcfs-sha": Case("elcfs", {"lr": 0.02, "batch": 8, "alpha": 0.2, "aggregation": SHA(rho=1e-3)}),
    "elcfs+sam": Case("elcfs", {"lr": 0.02, "batch": 4, "alpha": 0.1, "sam": SAM()}, task="segmentation", rounds=8, reaches=0.5),
    "elcfs-no-interpolation": Case("elcfs", {"lr": 0.02, "batch": 8, "interpolate": False}),
    "elcfs-no-episodes": Case(
        "elcfs", {"lr": 0.02, "batch": 4, "episodic": False, "gamma": 0.0}, task="segmentation", rounds=8, reaches=0.6
    ),
    "fedadg": Case("fedadg", FEDADG, rounds=4),
    "fedadg-released": Case(
        "fedadg", {**own("fedadg", "released"), **FEDADG, "noise": 8, "discriminator_width": 8, "lr_f": 0.02, "warm_up": 4}, rounds=4
    ),
    "fedadg-laplace": Case("fedadg", {**FEDADG, "reference": "laplace"}, rounds=4),
    "fedadg-bare": Case("fedadg", {**FEDADG, "class_wise": False, "projection": "none"}, rounds=4),
    "fedadg-no-gd": Case("fedadg", {**FEDADG, "adversary": False}, rounds=4),
    "fedadg-mini-batches": Case("fedadg", {**FEDADG, "classification_epochs": 3, "alignment_epochs": 7, "epoch": "batch"}, rounds=5),
    "fedavg": Case("fedavg", {"lr": 0.02, "batch": 8}),
    "fedavg-masks": Case("fedavg", {"lr": 0.02, "batch": 4}, task="segmentation", rounds=8, reaches=0.6),
    "fedavg-cea": Case("fedavg", {"lr": 0.02, "batch": 8, "aggregation": CEA()}),
    "fedavg-sha": Case("fedavg", {"lr": 0.02, "batch": 8, "aggregation": SHA(rho=0.01, k=1)}),
    "fedavg-sha-masks": Case(
        "fedavg", {"lr": 0.02, "batch": 4, "aggregation": SHA(float64=True)}, task="segmentation", rounds=8, reaches=0.6
    ),
    "feddag": Case("feddag", {**FEDDAG, "aggregation": SHA(float64=True, k=2)}),
    "feddag-no-ndag": Case("feddag", {**FEDDAG, "ndag": False, "aggregation": SHA(eps="sign", rho=1e-3)}),
    "feddag-no-sha": Case("feddag", {**FEDDAG, "aggregation": Mean()}),
    "feddag-global-student": Case("feddag", {**FEDDAG, "distribution": "global_student", "feature": "logits", "statistics": "copy"}),
    "feddag-sam": Case("feddag", {**FEDDAG, "distribution": "copy", "sam": SAM(0.01), "aggregation": CEA(evaluators=1, own=True)}),
    "feddag-perturbations": Case("feddag", {**FEDDAG, "warmup": 1, "train_on": "perturbations", "aggregation": Uniform()}, reaches=None),
    "feddag+rc+mixstyle+sam": Case(
        "feddag", {**FEDDAG, "views": RandConv(copies=1), "mixstyle": MixStyle(), "sam": SAM(0.01), "smoothing": 0.1, "aggregation": Mean()}
    ),
    "fedprox": Case("fedprox", {"lr": 0.02, "batch": 8}),
    "feddyn": Case("feddyn", {"lr": 0.05, "batch": 8, "alpha": 0.1, "epochs": 2, "optimizer": "momentum"}),
    "feddyn-masks": Case(
        "feddyn", {"lr": 0.02, "batch": 4, "alpha": 0.1, "epochs": 1, "optimizer": "adam"}, task="segmentation", rounds=8, reaches=0.5
    ),
    "feddyn+rc": Case("feddyn", {"lr": 0.05, "batch": 8, "alpha": 0.1, "epochs": 2, "optimizer": "momentum", "views": RandConv(copies=2)}),
    "fedgca": Case("fedgca", {"lr": 0.05, "batch": 8, "epochs": 2, "copies": 2}),
    "fedgca-kl": Case(
        "fedgca", {"lr": 0.02, "batch": 8, "epochs": 2, "copies": 1, "consistency": "kl", "stop_mean": True, "alpha": 1.0, "beta": 1.0}
    ),
    "fedgca-local": Case("fedgca", {"lr": 0.05, "batch": 8, "epochs": 2, "copies": 1, "global_predictions": False, "global_maps": False}),
    "fedgca+mixstyle+sam": Case(
        "fedgca", {"lr": 0.05, "batch": 8, "epochs": 2, "copies": 1, "mixstyle": MixStyle(), "sam": SAM(), "smoothing": 0.1}
    ),
    "fedsam": Case("fedsam", {"lr": 0.05, "batch": 8, "optimizer": "momentum"}),
    "fedsam-masks": Case("fedsam", {"lr": 0.02, "batch": 4, "optimizer": "adam"}, task="segmentation", rounds=8, reaches=0.5),
    "fedavg+rc+mixstyle+sam": Case(
        "fedavg", {"lr": 0.02, "batch": 8, "views": RandConv(copies=1), "mixstyle": MixStyle(), "sam": SAM(), "smoothing": 0.1}
    ),
    "fedavg+rc+mixstyle+sam-masks": Case(
        "fedavg",
        {"lr": 0.02, "batch": 4, "views": RandConv(copies=1), "mixstyle": MixStyle(), "sam": SAM()},
        task="segmentation",
        rounds=8,
        reaches=0.5,
    ),
    "fedprox+rc": Case("fedprox", {"lr": 0.02, "batch": 8, "views": RandConv(copies=1), "sam": SAM()}),
    "fedsb": Case("fedsb", {"lr": 0.02, "batch": 8, "budget": 5}),
    "fedsb-released": Case("fedsb", {"smoothing": 0.01, "lr": 0.02, "batch": 8, "budget": 5, "resample": False, "mixstyle": MixStyle()}),
}
