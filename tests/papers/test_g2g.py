"""G2G: mutual learning by hand, the way of the model from client to client, and fine-tuning in turn inside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from cases import Case
from conftest import tiny_classification
from federation_in_memory import FederationInMemory, is_work
from one_client import LinearNet, batch_of, client_of, images
from unseen import BadInput, Experiment, FedAvg
from unseen.data.domain import Domain, DomainDataset
from unseen.errors import NoReplies
from unseen.federation.server.exchange import Terms
from unseen.method import Refused, Replies
from unseen.methods.g2g import G2G, Journey, Private, Taught, Travelling
from unseen.ops.mutual import divergence_from
from unseen.parts.combining import Down
from unseen.randomness import generator
from unseen.runs.watch import Silent
from unseen.state import State, same_bits
from unseen.training import train

TINY = {
    "g2g": Case("g2g", {"lr": 0.02, "batch": 8, "epochs": 1}, leaves="train.model"),
    "g2g-masks": Case(
        "g2g",
        {"lr": 0.02, "batch": 4, "epochs": 1, "optimizer": "adam", "order": "shuffled"},
        task="segmentation",
        rounds=5,
        reaches=0.5,
        leaves="train.model",
    ),
}


def test_the_divergence_by_hand() -> None:
    p, q = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.6, 0.3, 0.1])
    wanted = sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True))
    assert divergence_from(p.log()[None] + 3, q.log()[None] - 1).item() == pytest.approx(wanted, abs=1e-6)
    masks = torch.tensor([2.0, -1.0]).reshape(1, 2, 1, 1), torch.tensor([0.5, 0.5]).reshape(1, 2, 1, 1)
    pixels = []
    for teacher, student in zip(*(m.sigmoid().flatten().tolist() for m in masks), strict=True):
        pixels.append(teacher * math.log(teacher / student) + (1 - teacher) * math.log((1 - teacher) / (1 - student)))
    assert divergence_from(*masks).item() == pytest.approx(sum(pixels) / 2, abs=1e-6)
    both = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
    (slope,) = torch.autograd.grad(divergence_from(both[0], both[1]), both)
    assert slope[0].abs().max() == 0 and slope[1].abs().max() > 0.01  # the teacher learns nothing


def linear(seed: int) -> State:
    torch.manual_seed(seed)
    return {k: v.detach().clone() for k, v in LinearNet(4, 3).state_dict().items()}


def mutual_gradient(own: State, other: State, x: Tensor, y: Tensor, labels: float) -> State:
    """a (softmax - one-hot) + (1 - a) (softmax - the other's softmax), over n, in closed form for a linear net."""
    p, q = ((x.flatten(1) @ s["fc.weight"].T + s["fc.bias"]).softmax(1) for s in (own, other))
    error = labels * (p - F.one_hot(y, 3)) + (1 - labels) * (p - q)
    return {"fc.weight": error.T @ x.flatten(1) / len(y), "fc.bias": error.mean(0)}


def test_two_visits_of_mutual_learning_by_hand() -> None:
    """Both step from the same predictions. The private model and its momentum outlive the visit; the other's momentum does not."""
    domain, a, b, lr = images(), 0.3, 0.8, 0.2
    x, y = batch_of(domain)
    method = G2G(private_labels=a, shared_labels=b, lr=lr, steps=2, batch=12, weight_decay=0.0)
    shared, private, kept = linear(0), linear(0), None
    speed_of_private = {n: torch.zeros_like(w) for n, w in private.items()}
    for visit in (1, 2):
        client = client_of(domain, lambda: LinearNet(4, 3), recall=lambda kind, kept=kept: kept)
        up = method.train(Travelling(model=shared), client)
        speed = {n: torch.zeros_like(w) for n, w in shared.items()}
        for _ in range(2):
            towards_private, towards_shared = mutual_gradient(private, shared, x, y, a), mutual_gradient(shared, private, x, y, b)
            speed_of_private = {n: 0.9 * speed_of_private[n] + g for n, g in towards_private.items()}
            speed = {n: 0.9 * speed[n] + g for n, g in towards_shared.items()}
            private = {n: w - lr * speed_of_private[n] for n, w in private.items()}
            shared = {n: w - lr * speed[n] for n, w in shared.items()}
        kept = client.remembered["Private"]
        assert isinstance(kept, Private)
        for name in shared:
            assert torch.allclose(up.model[name], shared[name], atol=1e-5), (visit, name)
            assert torch.allclose(kept.model[name], private[name], atol=1e-5), (visit, name)
        assert not torch.allclose(shared["fc.weight"], private["fc.weight"], atol=1e-3)


class Way:
    """Clients that hold domains, asked one after the other; some do not answer."""

    def __init__(self, domains: Mapping[str, Domain], silent: str = "") -> None:
        self.names = self.taking_part = sorted(domains)
        self.domains, self.silent, self.asked = domains, silent, list[str]()

    def rng(self, *where: str | int) -> torch.Generator:
        return generator(1, "server", 1, *where)

    def ask(self, task: Any, down: Mapping[str, Travelling]) -> Replies[Taught]:
        ((name, question),) = down.items()
        self.asked.append(name)
        answer = Refused("gone") if name in self.silent else task(question, client_of(self.domains[name], lambda: LinearNet(4, 3)))
        return Replies(iter([(name, answer)]))


DOMAINS = {name: images(seed=seed, name=name) for seed, name in enumerate("abc")}


def test_with_labels_alone_it_is_fine_tuning_in_turn() -> None:
    """a = b = 1: the model as FedAvg's clients would train it one after the other, to the bit; who is silent is passed over."""
    settings: dict[str, Any] = {"lr": 0.2, "batch": 5, "epochs": 2, "optimizer": "momentum", "weight_decay": 0.0}
    method = G2G(private_labels=1.0, shared_labels=1.0, **settings)
    for silent in ("", "b"):
        after = method.round(Journey(linear(0)), Way(DOMAINS, silent))
        model = linear(0)
        for name in sorted(set("abc") - set(silent)):
            model = FedAvg(**settings).train(Down(model=model), client_of(DOMAINS[name], lambda: LinearNet(4, 3))).model
        assert same_bits(after.model, model) and after.order == sorted(set("abc") - set(silent))
    with pytest.raises(NoReplies, match="travelling model"):
        method.round(Journey(linear(0)), Way(DOMAINS, "abc"))


def test_the_order_is_drawn_by_the_server() -> None:
    fixed, shuffled = Way(DOMAINS), Way(DOMAINS)
    G2G(lr=0.1, epochs=1).round(Journey(linear(0)), fixed)
    after = G2G(lr=0.1, epochs=1, order="shuffled").round(Journey(linear(0)), shuffled)
    drawn = torch.randperm(3, generator=generator(1, "server", 1, "order")).tolist()
    assert fixed.asked == ["a", "b", "c"] != shuffled.asked == ["abc"[at] for at in drawn] == after.order


def test_a_run_tells_the_order_and_draws_who_takes_part(tiny: DomainDataset) -> None:
    method = G2G(lr=0.02, batch=8, steps=1, order="shuffled")
    records = train(Experiment(method, tiny, "c", rounds=6), None, watch=Silent()).records
    assert {tuple(r["notes"]["order"]) for r in records} == {("a", "b"), ("b", "a")}
    some = train(Experiment(method, tiny, "c", rounds=2, participation=0.5), None, watch=Silent()).records
    assert all(len(r["notes"]["order"]) == 1 and not r["missing"] for r in some)


def test_what_cannot_be_kept_is_refused() -> None:
    with pytest.raises(BadInput, match="set keep_moments = false"):
        G2G(optimizer=torch.optim.RMSprop)
    G2G(optimizer=torch.optim.RMSprop, keep_moments=False)
    with pytest.raises(BadInput, match="neither model learns from a label"):
        G2G(private_labels=0.0, shared_labels=0.0)


def test_between_sites_a_silent_one_is_passed_over_and_too_few_end_the_round(tmp_path: Path) -> None:
    data, method = tiny_classification((6, 6, 6, 3)), G2G(lr=0.02, batch=4, steps=1)
    federation, experiment = FederationInMemory(tmp_path, data, "d"), Experiment(method, data.name, "d", rounds=1)
    for silent, needed in (("b", 2), ("ab", 2)):
        run = federation.federate(experiment, Terms(minimum_clients=needed))
        federation.carrier.tamper = lambda client, signed, silent=silent: "lost" if client in silent and is_work(signed) else signed
        if silent == "ab":
            with pytest.raises(NoReplies, match="1 of 3 clients gave a usable answer to train, 2 are needed"):
                train(experiment, tmp_path / f"run-{silent}", watch=Silent(), elsewhere=run)
        else:
            (record,) = train(experiment, tmp_path / f"run-{silent}", watch=Silent(), elsewhere=run).records
            assert record["notes"]["order"] == ["a", "c"] and record["missing"] == {"b": "train: lost"}
        federation.carrier.tamper = lambda client, signed: signed
