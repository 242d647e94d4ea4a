"""Finished runs of a few methods on tiny data."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

import unseen
from unseen.data.domain import DomainDataset
from unseen.deploy.finished import FinishedRun
from unseen.figures import finished_run
from unseen.methods.elcfs import ELCFS
from unseen.methods.fedadg import FedADG
from unseen.methods.fedavg import FedAvg
from unseen.methods.feddag import FedDAG

Finished = Callable[[str], FinishedRun]


@pytest.fixture(scope="session")
def folders(tiny: DomainDataset, tiny_masks: DomainDataset, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("figures")
    methods = {
        "fedavg": FedAvg(lr=0.02, batch=8),
        "masks": FedAvg(lr=0.02, batch=4),
        "elcfs": ELCFS(lr=0.02, batch=8, alpha=0.2),
        "fedadg": FedADG(lr_f=0.02, classification_epochs=1, alignment_epochs=1, batch=8),
        "feddag": FedDAG(lr=0.02, batch=8, width=4, warmup=0),
    }

    @cache
    def trained(name: str) -> Path:
        torch.set_num_threads(1)
        data = tiny_masks if name == "masks" else tiny
        unseen.run(methods[name], data, "c", rounds=2, out=root / name, device="cpu")
        return root / name

    return trained


@pytest.fixture(scope="session")
def finished(folders: Callable[[str], Path], tiny: DomainDataset, tiny_masks: DomainDataset) -> Finished:
    @cache
    def read(name: str) -> FinishedRun:
        return finished_run(folders(name), "source", tiny_masks if name == "masks" else tiny)

    return read
