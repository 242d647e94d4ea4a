"""Two finished runs on tiny data, and their models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import unseen
from unseen.data.domain import DomainDataset
from unseen.deploy import Deployed, export, load_model
from unseen.methods.fedavg import FedAvg


@pytest.fixture(scope="session")
def classes_run(tiny: DomainDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("classes") / "run"
    unseen.run(FedAvg(lr=0.02, batch=8), tiny, "c", rounds=4, out=out, device="cpu")
    return out


@pytest.fixture(scope="session")
def masks_run(tiny_masks: DomainDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("masks") / "run"
    unseen.run(FedAvg(lr=0.02, batch=4), tiny_masks, "c", rounds=8, out=out, device="cpu")
    return out


@pytest.fixture(scope="session")
def classifier(classes_run: Path, tiny: DomainDataset) -> Deployed:
    return load_model(export(classes_run, "safetensors", styles=True, data=tiny))


@pytest.fixture(scope="session")
def segmenter(masks_run: Path, tiny_masks: DomainDataset) -> Deployed:
    return load_model(export(masks_run, "safetensors", data=tiny_masks))
