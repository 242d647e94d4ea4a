"""FedGMA: the mask by hand, weight by weight, and FedAvg where all clients agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from cases import Case
from one_client import Fixed
from unseen import Experiment, FedAvg
from unseen.data.domain import DomainDataset
from unseen.methods.fedgma import FedGMA
from unseen.parts.aggregation import Aggregate, Mean
from unseen.parts.agreement import GMA
from unseen.parts.combining import Up
from unseen.parts.server_optimizers import MomentumServer
from unseen.runs.watch import Silent
from unseen.state import same_bits
from unseen.training import train

TINY = {
    "fedgma": Case("fedgma", {"lr": 0.05, "batch": 8, "optimizer": "momentum"}, leaves="train.model train.samples"),
    "fedgma-masks": Case(
        "fedgma",
        {"lr": 0.02, "batch": 4, "optimizer": "adam"},
        task="segmentation",
        rounds=10,
        reaches=0.5,
        leaves="train.model train.samples",
    ),
}


def up(change: list[float], samples: int = 1, seen: float = 0.0) -> Up:
    return Up(model={"w": torch.tensor(change), "running": torch.tensor([seen])}, samples=samples, perturbed=None)


def after(threshold: float, ups: dict[str, Any], start: float = 0.0, **settings: Any) -> Aggregate:
    width = next(len(one.model["w"]) for one in ups.values() if isinstance(one, Up))
    before = Aggregate({"w": torch.full((width,), start), "running": torch.tensor([9.0])})
    return FedGMA(aggregation=GMA(threshold=threshold), **settings).round(before, Fixed(ups))


def test_three_clients_by_hand() -> None:
    """D = (1, 1, -1): A = 1/3, the step 1/3 * 1/3; D = (1, 2, 3): A = 1, the step 2; D = (1, -1, 0): A = 0. Buffers are averaged."""
    columns = [[1.0, 1.0, -1.0], [1.0, 2.0, 3.0], [1.0, -1.0, 0.0]]
    ups = {name: up([5 + column[k] for column in columns], seen=float(k)) for k, name in enumerate("abc")}
    found = after(0.5, ups, start=5.0)
    assert found.model["w"].tolist() == pytest.approx([5 + 1 / 9, 7.0, 5.0]) and found.model["running"].item() == 1.0
    assert found.numbers["agreement"]["share"] == pytest.approx(1 / 3)
    low = after(1 / 3, ups, start=5.0)  # from here on two against one is agreement enough
    assert low.model["w"].tolist() == pytest.approx([5 + 1 / 3, 7.0, 5.0])


def test_weights_go_by_samples_and_agreement_by_heads() -> None:
    """D = (1, -1, -1) with n = (8, 1, 1): the mean is 0.6, A is 1/3. A missing client counts in neither; nor does one without images."""
    ups = {"a": up([1.0], 8), "b": up([-1.0]), "c": up([-1.0])}
    assert after(0.5, ups).model["w"].item() == pytest.approx(0.2)
    assert after(0.5, {**ups, "c": "gone"}).model["w"].item() == 0.0  # one against one
    assert after(0.5, {"a": up([1.0], 8), "b": up([4.0], 2), "c": up([0.0], 0)}).model["w"].item() == pytest.approx(1.6)


def test_the_servers_rate_scales_the_masked_step() -> None:
    ups = {"a": up([1.0]), "b": up([1.0]), "c": up([-1.0])}
    found = after(0.5, ups, server=MomentumServer(lr=0.5, beta=0.0))
    assert found.model["w"].item() == pytest.approx(0.5 / 9)


def final(method: Any, data: DomainDataset, **around: Any) -> Any:
    return train(Experiment(method, data, "c", rounds=2, **around), None, watch=Silent())


def test_where_all_agree_it_is_fedavg_to_the_bit(tiny: DomainDataset) -> None:
    settings: dict[str, Any] = {"lr": 0.02, "batch": 9, "optimizer": "momentum"}
    one = final(FedGMA(**settings), tiny, sources="a")
    assert same_bits(one.state, final(FedAvg(**settings), tiny, sources="a").state)  # a single client
    plain = final(FedAvg(**settings), tiny).state
    assert same_bits(final(FedGMA(**settings, aggregation=GMA(threshold=0.0)), tiny).state, plain)
    assert same_bits(final(FedGMA(**settings, aggregation=Mean()), tiny).state, plain)
    masked = final(FedGMA(**settings), tiny)
    assert not same_bits(masked.state, plain) and 0 < masked.records[-1]["notes"]["agreement"] < 1
    assert "warning" not in masked.records[-1]["notes"]  # of two clients


def test_a_threshold_that_holds_nothing_back_is_told() -> None:
    ups = {"a": up([1.0]), "b": up([1.0]), "c": up([-1.0])}
    told = GMA(threshold=0.3).notes(after(0.3, ups))
    assert told["warning"] == "threshold = 0.3 of 3 clients holds no weight back, so this is the mean; raise it"
    assert "warning" not in GMA(threshold=0.4).notes(after(0.4, ups))
    alone = GMA(threshold=1.0).notes(after(1.0, {"a": up([1.0]), "b": "gone"}))  # no threshold could be raised further
    assert alone["warning"] == "one client gave a model, and agrees with itself, so this is the mean; have more take part"
