"""All sources at one client: who holds what, what is validated and recorded, and batches that know their domains."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from unseen import Experiment, FedAvg
from unseen.client import Client
from unseen.data.checks.check import check
from unseen.data.domain import DomainDataset
from unseen.engines.tasks import Place, TaskRunner
from unseen.federation.site.bounds import BoundedClient, TimeLimit
from unseen.federation.site.policy import Policy, Rejected
from unseen.payload import Nothing
from unseen.runs.memory import MemoryStore
from unseen.runs.watch import Silent
from unseen.training import train
from unseen.world import World, build_world


def world_of(data: DomainDataset, partition: str, **more: object) -> World:
    return build_world(Experiment(FedAvg(batch=8), data, "c", partition=partition, **more))  # type: ignore[arg-type]


def client_in(world: World, name: str, kind: type[Client] = Client, **more: object) -> Client:
    caught: list[Client] = []

    def catch(down: Nothing, client: Client) -> Nothing:
        caught.append(client)
        return down

    runner = TaskRunner(world)
    if more:
        runner.client = lambda holding, **rest: kind(**more, holding=holding, **rest)  # type: ignore[arg-type]
    runner.run(catch, Nothing(), name, Place(1, 1), MemoryStore(Path("unused")))
    return caught[0]


def test_the_pooled_client_holds_what_the_clients_hold_and_the_unseen_domain_stays_unseen(tiny: DomainDataset) -> None:
    apart, pooled = world_of(tiny, "per-domain"), world_of(tiny, "pooled")
    assert pooled.clients == ["pooled"] and pooled.holdings["pooled"].domain == "a+b"
    for side in ("train", "validation"):
        parts = getattr(pooled.holdings["pooled"], side).parts
        assert [d.name for d, _ in parts] == ["a", "b"]  # the same samples on the same side, whoever holds them
        assert all(np.array_equal(index, getattr(apart.holdings[d.name], side).parts[0][1]) for d, index in parts)
    assert pooled.validated == ["a", "b"] and apart.validated == [] and set(apart.evaluators) == {"c"}
    assert all(not len(pooled.evaluators[name].train) for name in pooled.evaluators)
    assert check(tiny, list(pooled.holdings.values())).ok


def test_records_validate_domain_by_domain_and_the_mean_is_over_domains(tiny: DomainDataset) -> None:
    result = train(Experiment(FedAvg(batch=8, lr=0.02), tiny, "c", rounds=1, partition="pooled"), None, watch=Silent())
    (record,) = result.records
    assert set(record["source"]) == {"pooled", "a", "b"} and set(record["target"]) == {"c"} and not record["held_out"]
    a, b, both = (record["source"][name] for name in ("a", "b", "pooled"))
    assert record["source_mean"]["accuracy"] == pytest.approx((a["accuracy"] + b["accuracy"]) / 2)
    assert both["samples"] == a["samples"] + b["samples"] == 7
    assert both["loss"] == pytest.approx((a["loss"] * a["samples"] + b["loss"] * b["samples"]) / 7, rel=1e-5)
    assert {tuple(row["clients"]) for row in record["travelled"]} == {("pooled",)}


def test_a_batch_has_equally_many_of_every_domain_and_says_whose(tiny: DomainDataset) -> None:
    world = build_world(Experiment(FedAvg(), tiny, "b", partition="pooled"))  # sources a and c: 36 and 18 training images
    client, by_brightness = client_in(world, "pooled"), {0: 0.0, 1: 0.0}
    seen: dict[int, list[bytes]] = {0: [], 1: []}
    batches = [*client.domain_batches(size=9, epochs=1)]
    assert len(batches) == round(54 / 8)
    for x, y, domain in batches:
        assert x.shape[0] == len(y) == 8 and domain.tolist().count(0) == domain.tolist().count(1) == 4
        for image, number in zip(x, domain.tolist(), strict=True):
            seen[number].append(image.numpy().tobytes())
            by_brightness[number] += float(image.amin())
    assert by_brightness[1] > by_brightness[0]  # domain c is the brighter one: numbers are by name
    held = {n: {(i / 255).numpy().tobytes() for i in torch.tensor(tiny[d].images).float()} for n, d in ((0, "a"), (1, "c"))}
    assert all(set(seen[n]) <= held[n] for n in (0, 1))
    assert len(set(seen[0])) == 28 and len(set(seen[1][:16])) == 16  # without replacement, until a domain is through
    assert [len(x) for x, _, _ in client.domain_batches(size=6, steps=2)] == [6, 6]
    with pytest.raises(TypeError, match="either epochs or steps"):
        next(client.domain_batches(size=6))


def test_clients_of_a_mixed_partition_number_domains_alike(tiny: DomainDataset) -> None:
    world = world_of(tiny, "dial:0.5", clients=2)
    for name in world.clients:
        (_, _, domain), *_ = client_in(world, name).domain_batches(size=4, steps=1)
        held = sorted({d.name for d, _ in world.holdings[name].train.parts})
        assert sorted(set(domain.tolist())) == ["ab".index(n) for n in held]


def test_a_sites_policy_bounds_these_batches_too(tiny: DomainDataset) -> None:
    world = world_of(tiny, "pooled")
    client = client_in(world, "pooled", BoundedClient, policy=Policy(most_passes=2.0), clock=TimeLimit())
    assert len([*client.domain_batches(size=8, epochs=1)]) == 8
    with pytest.raises(Rejected, match="most_passes"):
        client.domain_batches(size=8, epochs=2)
