"""Methods that exist only for tests: one that uses every seam of the engine, and some that misbehave."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.utils import vector_to_parameters

from unseen import BadInput, Client, Cohort, Global, Memory, Method, Nothing, Payload, State, carries, hyper, mean, on_client, state_of
from unseen.method import Fresh
from unseen.state import only


class Model(Payload):
    model: State = carries("model")


class Scored(Payload):
    model: State = carries("model")
    noise: float = carries("number")


class Others(Payload):
    models: dict[str, State] = carries("model")


class Losses(Payload):
    of: dict[str, float] = carries("score", of="models")


class Visits(Memory):
    count: int
    trace: State


@dataclass(frozen=True)
class History:
    model: State
    weights: dict[str, float]
    past: list[State]


@dataclass(frozen=True)
class Exercise(Method[History]):
    """Two exchanges a round, an exchange before round 1, client memory, dropout, drawn noise, server history."""

    lr: float = hyper(0.05, "learning rate", low=0.0)

    @on_client
    def hello(self, down: Nothing, client: Client) -> Nothing:
        client.remember(Visits(count=100, trace={}))
        return Nothing()

    @on_client
    def train(self, down: Model, client: Client) -> Scored:
        visits = client.recall(Visits)
        assert visits is not None
        net = client.build("task", down.model)
        optimizer = client.optimizer(torch.optim.Adam, net, lr=self.lr)
        for x, y in client.batches(size=8, steps=2):
            loss = F.cross_entropy(net(F.dropout(x, 0.3)), y) * (1 + visits.count / 1000)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        noise = float(torch.rand(1, generator=client.rng))
        client.remember(Visits(count=visits.count + 1, trace={"last": net.fc.bias.detach().clone()}))
        return Scored(model=state_of(net), noise=noise)

    @on_client
    def assess(self, down: Others, client: Client) -> Losses:
        losses = {}
        for name, state in down.models.items():
            net = client.build("task", state).eval()
            with torch.no_grad():
                losses[name] = sum(float(F.cross_entropy(net(x), y)) for x, y in client.validation(16))
        return Losses(of=losses)

    def start(self, fresh: Fresh, clients: Cohort) -> History:
        clients.ask(self.hello, Nothing())  # not read: drained by the engine
        return History(fresh("task"), {}, [])

    def round(self, state: History, clients: Cohort) -> History:
        ups = clients.ask(self.train, Model(model=state.model)).all()
        questions = {c: Others(models={o: u.model for o, u in ups.items() if o != c}) for c in ups}
        losses = clients.ask(self.assess, questions).all()
        weights = {c: 1 / (0.1 + sum(r.of.get(c, 0.0) for r in losses.values())) + ups[c].noise for c in ups}
        return History(mean((ups[c].model, weights[c]) for c in ups), weights, [*state.past, state.model][-2:])


@dataclass(frozen=True)
class Poisoned(Method[Global]):
    """Some clients answer with NaN from some round on, and try to remember a poisoned memory."""

    bad: str = hyper("a", "names of the clients that go bad, joined")
    from_round: int = hyper(2, "first bad round")

    @on_client
    def train(self, down: Model, client: Client) -> Model:
        seen = client.recall(Visits)
        count = 1 + (seen.count if seen else 0)
        client.remember(Visits(count=count, trace={}))
        model = {k: v.clone() for k, v in down.model.items()}
        if client.id in self.bad and count >= self.from_round:
            model["fc.bias"][0] = float("nan")
        return Model(model=model)

    def start(self, fresh: Fresh, clients: Cohort) -> Global:
        return Global(fresh("task"))

    def round(self, state: Global, clients: Cohort) -> Global:
        return Global(mean(up.model for up in clients.ask(self.train, Model(model=state.model)).values()))


@dataclass(frozen=True)
class Careless(Method[Global]):
    """Faults of a method's author, by name."""

    fault: str = hyper("live", "which")

    @on_client
    def train(self, down: Model, client: Client) -> Model:
        net = client.build("task", down.model)
        if self.fault == "live":
            return Model(model=dict(net.state_dict()))
        if self.fault.startswith("rebound"):
            vector_to_parameters(torch.cat([p.detach().flatten() for p in net.parameters()]) + 1, net.parameters())
            live = {name: p.detach() for name, p in net.named_parameters()}
            return Model(model=state_of(net) if self.fault == "rebound, copied" else {**state_of(net), **live})
        if self.fault == "crash":
            raise ZeroDivisionError("in round 1")
        if self.fault == "mistake":
            raise BadInput("a user's mistake that only the client can see")
        if self.fault == "killed":  # for worker processes alone
            os.kill(os.getpid(), signal.SIGKILL)
        return Nothing()  # type: ignore[return-value]

    def unmarked(self, down: Model, client: Client) -> Model:
        return down

    def start(self, fresh: Fresh, clients: Cohort) -> Global:
        return Global(fresh("task"))

    def round(self, state: Global, clients: Cohort) -> Global:
        down: Model | Mapping[str, Model] = Model(model=state.model)
        if self.fault == "stranger":
            down = {"nobody": Model(model=state.model)}
        task = self.unmarked if self.fault == "unmarked" else self.train
        return Global(mean(up.model for up in clients.ask(task, down).values()))


class Numbered(Payload):
    model: State = carries("model")
    round: int = carries("number")


class WithoutNorms(Payload):
    model: State = carries("model", part="without-norms")


class Norms(Memory):
    norms: State


@dataclass(frozen=True)
class Counted:
    model: State
    round: int


@dataclass(frozen=True)
class NormKeeper(Method[Counted]):
    """Batch norms stay with the client, as in FedBN; the rest is averaged. The global model keeps those it began with."""

    lr: float = hyper(0.05, "learning rate", low=0.0)
    bad: str = hyper("", "whose answer of which round is not finite, such as b1 a3")

    @on_client
    def train(self, down: Numbered, client: Client) -> WithoutNorms:
        kept = client.recall(Norms)
        net = client.build("task", {**down.model, **(kept.norms if kept else {})})
        optimizer = client.optimizer(torch.optim.SGD, net, lr=self.lr)
        for x, y in client.batches(size=8, epochs=1):
            optimizer.zero_grad()
            client.task.loss(net(x), y).backward()
            optimizer.step()
        state = state_of(net)
        client.remember(Norms(norms=only(state, client.entries("norms"))))
        if f"{client.id}{down.round}" in self.bad.split():
            state["fc.bias"][0] = float("nan")
        return WithoutNorms(model=only(state, client.entries("without-norms")))

    def local_model(self, model: State, client: Client) -> State | None:
        kept = client.recall(Norms)
        return None if kept is None else {**model, **kept.norms}

    def start(self, fresh: Fresh, clients: Cohort) -> Counted:
        return Counted(fresh("task"), 0)

    def round(self, state: Counted, clients: Cohort) -> Counted:
        number = state.round + 1
        ups = clients.ask(self.train, Numbered(model=state.model, round=number))
        return Counted({**state.model, **mean(up.model for up in ups.values())}, number)
