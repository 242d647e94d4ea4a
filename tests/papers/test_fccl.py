"""FCCL: both of its updates written out, FedAvg inside it, who trains alone, and what a site lets be public."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from cases import Case
from federation_in_memory import EVERYTHING, FederationInMemory
from one_client import LinearNet, client_of
from unseen import BadInput, Experiment, FedAvg
from unseen.client import Client
from unseen.data.domain import Domain, DomainDataset
from unseen.data.public import open_public
from unseen.engines.local import LocalEngine
from unseen.federation.messages import Message, sign
from unseen.federation.sums.summable import refusals
from unseen.methods.fccl import FCCL, Down, Kept
from unseen.ops.correlation import correlation_loss
from unseen.runs.watch import Silent
from unseen.state import State, same_bits, state_of
from unseen.training import train
from unseen.world import build_world

PUBLIC: dict[str, Any] = {"public": "styled-digits", "public_images": 12, "public_batch": 6}
FAST: dict[str, Any] = {**PUBLIC, "epochs": 1.0, "private_epochs": 1.0, "batch": 8, "lr": 0.01}
TINY = {"fccl": Case("fccl", FAST, leaves="prepare.model prepare.logits train.model train.logits")}


def domain() -> Domain:
    rng = np.random.default_rng(0)
    return Domain("a", rng.integers(0, 255, (12, 3, 8, 8)).astype(np.uint8), (np.arange(12) % 3).astype(np.int64))


def drawn(seed: int) -> State:
    torch.manual_seed(seed)
    return {name: 0.1 * torch.randn_like(value) for name, value in state_of(LinearNet(192, 3)).items()}


def client_with(kept: Kept | None) -> Client:
    return client_of(domain(), lambda: LinearNet(192, 3), recall=lambda kind: kept)


def test_a_local_step_is_held_by_both_teachers() -> None:
    """d KL(p_t || softmax(z)) / dz = softmax(z) - p_t: three errors of one form."""
    data, lr, model, intra, inter = domain(), 0.1, drawn(0), drawn(1), drawn(2)
    x, y = torch.tensor(data.images).flatten(1) / 255, torch.tensor(data.labels)

    def said(state: State) -> torch.Tensor:
        return (x @ state["fc.weight"].T + state["fc.bias"]).softmax(1)

    p = said(model)
    error = ((p - F.one_hot(y, 3)) + 0.7 * (p - said(intra)) + 0.4 * (p - said(inter))) / 12
    method = FCCL(public_epochs=0, intra=0.7, inter=0.4, steps=1, batch=12, optimizer="sgd", lr=lr)
    client = client_with(Kept(intra=intra, inter=inter))
    up = method.train(Down(model=model, logits=None), client)
    assert torch.allclose(up.model["fc.weight"], model["fc.weight"] - lr * error.T @ x, atol=1e-6) and up.logits is None
    kept: Any = client.remembered["Kept"]
    assert same_bits(kept.intra, intra) and same_bits(kept.inter, up.model)


def test_public_batches_pull_the_logits_to_the_mean_of_all() -> None:
    model, lr = drawn(0), 0.05
    target = torch.randn(12, 3, generator=torch.Generator().manual_seed(5))
    x = open_public("styled-digits", 3, (8, 8), 12).flatten(1) / 255
    weight, bias = (model[f"fc.{name}"].clone().requires_grad_() for name in ("weight", "bias"))
    slope, _ = torch.autograd.grad(correlation_loss(x @ weight.T + bias, target, 0.0051), (weight, bias))
    after = weight.detach() - lr * slope
    method = FCCL(**{**FAST, "public_batch": 12, "optimizer": "sgd", "lr": lr})
    client = client_with(None)
    net = client.build("task", model)
    method.agree(client, net, target)
    assert torch.allclose(net.fc.weight, after, atol=1e-5) and not torch.allclose(after, model["fc.weight"], atol=1e-3)
    logits = method.said(client, net)
    assert logits is not None and torch.allclose(logits["public"], net.fc(x), atol=1e-5)


def test_no_public_batch_is_a_single_image() -> None:
    """Of one image no column has a deviation: the loss would be no number."""
    method = FCCL(**{**FAST, "public_images": 5, "public_batch": 2})
    client = client_with(None)
    assert sorted(len(places) for places, _ in client.public("styled-digits", 5, 2)) == [2, 3]
    net = client.build("task", drawn(0))
    method.agree(client, net, torch.randn(5, 3, generator=torch.Generator().manual_seed(5)))
    assert all(bool(value.isfinite().all()) for value in state_of(net).values())


def test_without_agreement_and_teachers_it_is_fedavg_to_the_bit(tiny: DomainDataset) -> None:
    values: dict[str, Any] = {"batch": 9, "lr": 0.01}
    bare = FCCL(public_epochs=0, intra=0.0, inter=0.0, private_epochs=0.0, epochs=1.0, aggregation=FedAvg().aggregation, **values)
    one, two = (train(Experiment(method, tiny, "c", rounds=2), None, watch=Silent()).state for method in (bare, FedAvg(**values)))
    assert same_bits(one, two)


def test_a_round_begins_with_the_mean_of_what_clients_said(tiny: DomainDataset, tmp_path: Path) -> None:
    method = FCCL(**FAST)
    world = build_world(Experiment(method, tiny, "c", rounds=2))
    engine, told = LocalEngine(world, tmp_path), list[dict[str, Any]]()
    plain = engine.answers

    def noting(task: Any, downs: Any, place: Any, shared: bool) -> Any:
        told.append({})
        for name, answer in plain(task, downs, place, shared):
            told[-1][name] = answer
            yield name, answer

    engine.answers = noting  # type: ignore[method-assign]
    state = method.start(world.fresh, engine.cohort(0))
    for number in (1, 2):
        a, b = (told[-1][name] for name in ("a", "b"))
        assert a.logits["public"].shape == (12, 3) and not torch.equal(a.logits["public"], b.logits["public"])
        torch.testing.assert_close(state.also["logits"]["public"], (a.logits["public"] + b.logits["public"]) / 2)
        torch.testing.assert_close(state.model["fc.weight"], (a.model["fc.weight"] + b.model["fc.weight"]) / 2)
        state = method.round(state, engine.cohort(number))


def test_who_missed_the_beginning_trains_alone_first() -> None:
    method, model = FCCL(**FAST), drawn(0)
    early, late = client_with(None), client_with(None)
    alone = method.prepare(Down(model=model, logits=None), early)
    method.train(Down(model=model, logits=None), late)
    intra: Any = late.remembered["Kept"]
    assert same_bits(intra.intra, alone.model) and not same_bits(intra.inter, alone.model)


def test_what_does_not_fit_is_told_before_round_1(tiny: DomainDataset) -> None:
    with pytest.raises(BadInput, match="none are named; set public to a data set, or public_epochs = 0"):
        build_world(Experiment(FCCL(), tiny, "c"))
    with pytest.raises(BadInput, match="with the unseen images in it; choose another one"):
        build_world(Experiment(FCCL(public="styled-digits"), "styled-digits", "outline"))
    with pytest.raises(BadInput, match="nobody looks at it; leave public out"):
        FCCL(public="styled-digits", public_epochs=0)
    with pytest.raises(BadInput, match="the intra teacher would have learnt nothing; set intra = 0"):
        FCCL(**{**FAST, "private_epochs": 0.0})
    assert not [*refusals(FCCL(**FAST), 3)], "means are enough"


def test_between_sites_only_a_set_by_name_that_the_site_allows_is_public(tiny: DomainDataset, tmp_path: Path) -> None:
    federation = FederationInMemory(tmp_path / "federation", tiny, "c", {"b": dataclasses.replace(EVERYTHING, public_sets=("pacs",))})
    with pytest.raises(BadInput, match="'folder:/x' names files of this machine"):
        federation.federate(Experiment(FCCL(public="folder:/x"), "tiny", "c", rounds=1))
    experiment = Experiment(TINY["fccl"].build(), "tiny", "c", rounds=2)
    run = federation.federate(experiment)
    there = train(experiment, None, watch=Silent(), elsewhere=run).state
    assert same_bits(there, train(dataclasses.replace(experiment, data=tiny), None, watch=Silent()).state)

    def said(site: str, public: str) -> str:
        changed = {**run.study.experiment, "set": {**run.study.experiment["set"], "public": public}}
        study, key = dataclasses.replace(run.study, experiment=changed), federation.server.signing
        header = {"federation": federation.server.id, "to": site, "task": "begin", "study": study.digest}
        answer = federation.carrier.responders[site].answer(sign(Message(header, study.signed(key)), key, "question"))
        return str(json.loads(answer.header)["reason"])

    assert said("a", "folder:/etc") == "public_sets: 'folder:/etc' is no data set by name, and a study opens no files here"
    assert said("a", "pacs") == "public_sets: pacs lies prepared here; only what is made on the spot may be public"
    assert said("b", "pacs") == "" and "only pacs may be public" in said("b", "vlcs")
