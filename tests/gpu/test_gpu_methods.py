"""Every method on a GPU: its steps are recorded, and replaying a recorded step gives what running it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import unseen
from unseen.data.domain import DomainDataset
from unseen.device.graphs import StepGraphs
from unseen.methods.dann import DANN
from unseen.parts.adjusting import GA
from unseen.parts.agreement import GMA
from unseen.parts.augmix import AugMix
from unseen.parts.jigen import JiGen
from unseen.parts.mixstyle import DSU, EFDMix, MixStyle
from unseen.parts.round_averages import EMA
from unseen.parts.rsc import RSC
from unseen.parts.sam import SAM
from unseen.parts.schedules import Cosine, Step
from unseen.parts.server_optimizers import AdamServer
from unseen.parts.views import FACT, RandConv
from unseen.state import State

pytestmark = pytest.mark.gpu

METHODS: dict[str, Any] = {
    "fedavg": lambda: unseen.FedAvg(lr=0.01, batch=8),
    "fedavg with parts": lambda: unseen.FedAvg(
        lr=0.01, batch=8, views=RandConv(copies=1), mixstyle=MixStyle(), sam=SAM(), smoothing=0.1, server=AdamServer(lr=0.1), average=EMA()
    ),
    "fedavg with a cosine": lambda: unseen.FedAvg(lr=0.01, batch=8, epochs=2, schedule=Cosine(warmup=1)),
    "fedsam with steps": lambda: unseen.FedSAM(
        lr=0.01, batch=8, optimizer="momentum", weight_decay=0.01, schedule=Step(every=1, gamma=0.5)
    ),
    "fedavg with rsc, jigen, dsu": lambda: unseen.FedAvg(lr=0.01, batch=8, rsc=RSC(), jigen=JiGen(beta=0.5), mixstyle=DSU()),
    "fedavg with fact, efdmix, ga": lambda: unseen.FedAvg(lr=0.01, batch=8, views=FACT(), mixstyle=EFDMix(), aggregation=GA()),
    "dann": lambda: DANN(lr=0.01, batch=8, width=8),
    "fedprox": lambda: unseen.FedProx(lr=0.01, batch=8),
    "fedsb": lambda: unseen.FedSB(lr=0.01, batch=8, budget=12),
    "fedsam": lambda: unseen.FedSAM(lr=0.01, batch=8, optimizer="momentum"),
    "feddyn": lambda: unseen.FedDyn(lr=0.01, batch=8, epochs=2),
    "fedadg": lambda: unseen.FedADG(lr_f=0.01, batch=8, momentum=0.5, keep_momentum=True, classification_epochs=2, alignment_epochs=2),
    "fedadg with a shared D and views": lambda: unseen.FedADG(
        lr_f=0.01, batch=8, discriminators="shared", views=RandConv(copies=1), classification_epochs=2, alignment_epochs=2
    ),
    "elcfs": lambda: unseen.ELCFS(lr=0.002, batch=8, alpha=0.2, keep_moments=True),
    "feddag": lambda: unseen.FedDAG(lr=0.01, batch=8, width=4, warmup=1, ema=0.5),
    "fedgca": lambda: unseen.FedGCA(lr=0.005, batch=8, epochs=2, copies=1),
    "fedavg with augmix": lambda: unseen.FedAvg(lr=0.01, batch=8, epochs=2, views=AugMix(copies=1)),
    "fediir": lambda: unseen.FedIIR(lr=0.01, batch=8, epochs=2, gamma=0.01),
    "fedsr": lambda: unseen.FedSR(z=8, lr=0.01, batch=8, steps=8),
    "fedccrl": lambda: unseen.FedCCRL(lr=0.01, batch=8, epochs=2),
    "ccst": lambda: unseen.CCST(lr=0.01, batch=8, epochs=2),
    "moon": lambda: unseen.MOON(lr=0.01, batch=8, epochs=2, projection=8, buffer=2),
    "fedbn": lambda: unseen.FedBN(lr=0.01, batch=8, epochs=2),
    "scaffold": lambda: unseen.SCAFFOLD(lr=0.01, batch=8, epochs=2),
    "fednova": lambda: unseen.FedNova(lr=0.01, batch=8, epochs=2),
    "fedgma": lambda: unseen.FedGMA(lr=0.01, batch=8, epochs=2, aggregation=GMA(threshold=0.0)),  # signs of rounding would be another run
    "per-fedavg": lambda: unseen.PerFedAvg(lr=0.01, batch=8, iterations=8, form="hf"),
    "g2g": lambda: unseen.G2G(lr=0.01, batch=8, epochs=2),
    "copa": lambda: unseen.COPA(lr=0.01, batch=8, heads=3),
    "best": lambda: unseen.Best(lr=0.01, batch=8),
    "epifcr": lambda: unseen.EpiFCR(lr=0.01, batch=8),
    "ddaig": lambda: unseen.DDAIG(lr=0.01, batch=8, width=4, warmup=1),
    "csac": lambda: unseen.CSAC(lr=0.01, batch=8, private_steps=8, steps=8, width=4),
    "fccl": lambda: unseen.FCCL(
        lr=0.002, batch=8, epochs=2, private_epochs=2.0, public="styled-digits", public_images=24, public_batch=6, optimizer="sgd"
    ),
}


def furthest(one: State, other: State) -> float:
    return max(float((one[name].double() - value.double()).abs().max()) for name, value in other.items())


@pytest.mark.parametrize("name", METHODS)
def test_replaying_gives_what_running_gives(name: str, tiny: DomainDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """As near as two plain runs are to each other: a GPU sums in an order of its own."""

    def go() -> State:
        method = METHODS[name]()
        partition = "pooled" if method.pooled else "per-domain"
        return dict(unseen.run(method, tiny, "c", rounds=3, device="cuda", partition=partition).state)

    recordings: list[int] = []
    replayed = StepGraphs.replayed

    def counted(self: StepGraphs, step: Callable[..., Any], autocast: Callable[[], Any]) -> Callable[..., None]:
        recordings.append(len(self._recordings))
        return replayed(self, step, autocast)

    monkeypatch.setattr(StepGraphs, "replayed", counted)
    recorded = go()
    assert recordings[-1] > 0, "no step was recorded"
    monkeypatch.setattr(StepGraphs, "replayed", lambda self, step, autocast: step)
    plain, again = go(), go()
    assert furthest(recorded, plain) <= max(1e-4, 10 * furthest(plain, again))


@pytest.mark.parametrize("optimizer", ["adam", "sgd", "momentum"])
def test_a_rate_that_changes_every_round_is_recorded_once_and_moves_the_steps(
    optimizer: Any, tiny: DomainDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[StepGraphs] = []
    began = StepGraphs.__init__

    def noted(self: StepGraphs, device: Any) -> None:
        began(self, device)
        kept.append(self)

    monkeypatch.setattr(StepGraphs, "__init__", noted)

    def go(schedule: Any) -> State:
        method = unseen.FedAvg(lr=0.01, batch=8, steps=8, optimizer=optimizer, weight_decay=0.01, schedule=schedule)
        return dict(unseen.run(method, tiny, "c", rounds=6, device="cuda").state)

    constant, scheduled = go(None), go(Cosine())
    assert [len(graphs._recordings) for graphs in kept if graphs._uses] == [1, 1]  # who scores trains nothing
    monkeypatch.setattr(StepGraphs, "replayed", lambda self, step, autocast: step)
    plain, again = go(Cosine()), go(Cosine())
    assert furthest(scheduled, plain) <= max(1e-4, 10 * furthest(plain, again)) < furthest(scheduled, constant)
