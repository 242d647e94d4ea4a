"""Steps recorded on a GPU: what a recording belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tiny_settings import SETTINGS
from unseen import Classification, Client, Experiment, FedSB
from unseen.data.domain import DomainDataset
from unseen.device.graphs import _identity
from unseen.methods import CLASSES
from unseen.runs.watch import Silent
from unseen.training import train


def a_step(*things: Any) -> Callable[..., None]:
    def step(x: torch.Tensor) -> None:
        assert x is not None and things

    return step


def test_a_recording_belongs_to_the_same_code_over_the_same_things() -> None:
    net, weights, method = nn.Linear(2, 2), torch.zeros(3), FedSB()
    things = (net, weights, method, [weights], {"a": weights}, 0.5, None, "text")
    assert _identity(a_step(*things)) == _identity(a_step(*things))
    assert _identity(a_step(method)) == _identity(a_step(FedSB()))  # equal settings are the same


class OfAKind:
    """Stands for a client: new in every task, and recorded as what it is of."""

    def __init__(self, kind: str) -> None:
        self.recorded_as = kind


NET, OTHER_NET, WEIGHTS, OTHER_WEIGHTS = nn.Linear(2, 2), nn.Linear(2, 2), torch.zeros(4), torch.zeros(4)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (NET, OTHER_NET),
        (torch.optim.SGD(NET.parameters(), lr=0.1), torch.optim.SGD(NET.parameters(), lr=0.1)),
        (WEIGHTS, OTHER_WEIGHTS),
        (WEIGHTS, WEIGHTS.view(2, 2)),
        (WEIGHTS, WEIGHTS.view(torch.int32)),
        (FedSB(), FedSB(lr=0.5)),
        (Classification(("a", "b")), Classification(("a", "c"))),
        (OfAKind("a"), OfAKind("b")),
        (0.5, 0.25),
        (1, True),
        ("text", "other"),
        (None, 0),
        ([WEIGHTS], [OTHER_WEIGHTS]),
        ((WEIGHTS, NET), (WEIGHTS, OTHER_NET)),
        ([[WEIGHTS]], [[OTHER_WEIGHTS]]),
        ({"a": WEIGHTS}, {"a": OTHER_WEIGHTS}),
        ({"a": WEIGHTS}, {"b": WEIGHTS}),
        (a_step(WEIGHTS), a_step(OTHER_WEIGHTS)),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_one_other_thing_is_another_recording(one: Any, other: Any) -> None:
    """Of the same type, between things that stay: the value alone tells the two apart."""
    assert _identity(a_step(NET, one, "last")) == _identity(a_step(NET, one, "last"))
    assert _identity(a_step(NET, one, "last")) != _identity(a_step(NET, other, "last"))


def test_other_code_is_another_recording() -> None:
    def another(*things: Any) -> Callable[..., None]:
        def step(x: torch.Tensor) -> None:
            assert things and x is None

        return step

    assert _identity(a_step(NET)) != _identity(another(NET))


def test_what_cannot_be_judged_is_not_recorded() -> None:
    assert _identity(a_step(object())) is None
    assert _identity(a_step([object()])) is None


def test_what_lies_in_a_default_is_not_judged() -> None:
    """A loop often binds so: `def step(x, w=w)` has the same code over other tensors in the next task."""

    def by_position(weights: torch.Tensor) -> Callable[..., None]:
        def step(x: torch.Tensor, w: torch.Tensor = weights) -> None:
            assert w is not x

        return step

    def by_name(weights: torch.Tensor) -> Callable[..., None]:
        def step(x: torch.Tensor, *, w: torch.Tensor = weights) -> None:
            assert w is not x

        return step

    for around in (by_position, by_name):
        assert _identity(around(torch.zeros(3))) is None
        assert _identity(a_step(around(torch.zeros(3)))) is None, "nor in that of a helper"


def test_a_helper_counts_by_what_it_holds() -> None:
    def around(weights: torch.Tensor) -> Callable[..., None]:
        def helper() -> torch.Tensor:
            return weights

        def step(x: torch.Tensor) -> None:
            assert helper() is not x

        return step

    one, two = torch.zeros(3), torch.zeros(3)
    assert _identity(around(one)) == _identity(around(one)) != _identity(around(two))


@pytest.mark.parametrize(
    "name", [*CLASSES, "elcfs-masks", "fedavg+rc+mixstyle+sam", "fedavg+rsc+jigen", "feddag-global-student", "fedadg-released"]
)
def test_every_methods_steps_can_be_recorded(
    name: str, tiny: DomainDataset, tiny_masks: DomainDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that holds something whose identity cannot be judged would run unrecorded on a GPU, several times as slow."""
    identities: dict[str, list[Any]] = {}
    plain = Client.step

    def judged(self: Client, fn: Any) -> Any:
        identities.setdefault(f"{self.id} {fn.__qualname__}", []).append(_identity(fn))
        return plain(self, fn)

    monkeypatch.setattr(Client, "step", judged)
    case = SETTINGS[name]
    data = tiny if case.task == "classification" else tiny_masks
    train(Experiment(case.build(), data, "c", rounds=3, partition=case.partition), None, watch=Silent())
    assert identities and not any(one is None for found in identities.values() for one in found)
    for found in identities.values():
        assert len(set(found)) < max(2, len(found)), "the same step in the next round is a recording's"
