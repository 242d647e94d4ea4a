"""What one run leaves to the next in its process."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

import unseen
from unseen.data.domain import DomainDataset
from unseen.engines import kept as kept_by_runs
from unseen.engines.kept import Kept, _made_for
from unseen.experiment import Experiment
from unseen.world import World, build_world


def world(data: DomainDataset | str, target: str = "c", **fields: object) -> World:
    around = {key: fields.pop(key) for key in ("precision",) if key in fields}
    return build_world(Experiment(unseen.FedAvg(**fields), data=data, target=target, **around))  # type: ignore[arg-type]


def test_data_stay_while_the_data_set_is_the_same(tiny: DomainDataset) -> None:
    kept = Kept()
    first = kept.reader(world(tiny))
    assert kept.reader(world(tiny, "a")) is first
    other = DomainDataset(tiny.name, tiny.task, tiny.domains[:3])
    assert kept.reader(world(other)) is first, "the same domains"
    assert kept.reader(world("styled-digits", "outline")) is not first
    kept.clear()
    assert kept.reader(world(tiny)) is not first


def test_networks_on_a_cpu_are_each_runs_own(tiny: DomainDataset) -> None:
    kept, here = Kept(), world(tiny)
    assert kept.pool("tasks", here) is not kept.pool("tasks", here)


def on_a_gpu(world: World) -> World:
    object.__setattr__(world, "device", torch.device("cuda"))
    return world


@pytest.mark.parametrize(
    ("change", "same"),
    [({"target": "a"}, True), ({"lr": 0.5}, False), ({"batch": 4}, False), ({"precision": "bf16"}, False)],
)
def test_networks_serve_runs_that_differ_in_nothing_that_a_recorded_step_holds(
    tiny: DomainDataset, change: dict[str, object], same: bool
) -> None:
    assert (_made_for(on_a_gpu(world(tiny))) == _made_for(on_a_gpu(world(tiny, **change)))) is same  # type: ignore[arg-type]


def test_the_last_runs_data_are_gone_before_others_are_loaded(tiny: DomainDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU may have room for either, not for both."""
    made: list[weakref.ref[Any]] = []

    class Reader:
        def __init__(self, domains: object, device: object) -> None:
            assert not any(before() is not None for before in made)
            made.append(weakref.ref(self))

    monkeypatch.setattr(kept_by_runs, "SampleReader", Reader)
    kept = Kept()
    kept.reader(world(tiny))
    kept.reader(world("styled-digits", "outline"))
    assert len(made) == 2
