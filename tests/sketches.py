"""Nine further methods, short, to see that the seams carry them: no file of the package knows them. Not the papers' last word."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unseen import Client, Cohort, Global, Memory, Method, Nothing, Payload, State, carries, group, hyper, mean, on_client, state_of
from unseen.networks import with_option
from unseen.networks.pretrained import Official, Pretrained
from unseen.ops.averaging import means
from unseen.ops.descent import own_step
from unseen.parts.aggregation import Aggregate, Aggregation, Assessed, Candidates, Uniform
from unseen.parts.combining import Combining, Down, Up
from unseen.parts.local import Local
from unseen.state import only


def zeros(state):
    return {name: torch.zeros_like(value) for name, value in state.items()}


SMALL = Local(optimizer="sgd", lr=0.05, batch=8)


class Before(Memory):
    model: State


@dataclass(frozen=True)
class MOON(Method[Aggregate]):
    mu: float = hyper(1.0, "weight", low=0.0)
    tau: float = hyper(0.5, "temperature", low=0.01)
    local: Local = group(SMALL)
    combining: Combining = group(Combining())

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)
        kept = client.recall(Before)
        others = [client.frozen("task", s) for s in (down.model, kept.model if kept else down.model)]

        @client.step
        def step(x, y):
            seen = net(x, full=True)
            alike = torch.stack([F.cosine_similarity(seen.features, n(x, full=True).features) for n in others], 1) / self.tau
            own_step(optimizer, client.task.loss(seen.logits, y) + self.mu * F.cross_entropy(alike, torch.zeros_like(y)))

        for batch in self.local.batches(client):
            step(*batch)
        client.remember(Before(model=state_of(net)))
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def round(self, state, clients):
        return self.combining.combine(clients, clients.ask(self.train, Down(model=state.model)), state)


class Controlled(Payload):
    model: State = carries("model")
    control: State = carries("control", part="parameters")


class Control(Memory):
    control: State


@dataclass(frozen=True)
class Controls:
    model: State
    control: State


@dataclass(frozen=True)
class SCAFFOLD(Method[Controls]):
    local: Local = group(SMALL, without=["optimizer"])

    @on_client
    def train(self, down: Controlled, client: Client) -> Controlled:
        net, optimizer = self.local.begin(client, down.model)
        kept, c = client.recall(Control), down.control
        own = kept.control if kept else zeros(c)
        push = client.frozen("task", {**down.model, **{n: c[n] - own[n] for n in c}})

        @client.step
        def step(x, y):
            steered = sum((w * p).sum() for w, p in zip(net.parameters(), push.parameters(), strict=True))  # its gradient is c - c_i
            own_step(optimizer, client.task.loss(net(x), y) + steered)

        for k, batch in enumerate(self.local.batches(client), 1):  # noqa: B007
            step(*batch)
        after = state_of(net)
        new = {n: own[n] - c[n] + (down.model[n] - after[n]) / (k * self.local.lr) for n in c}
        client.remember(Control(control=new))
        return Controlled(model=after, control={n: new[n] - own[n] for n in c})

    def start(self, fresh, clients):
        return Controls(fresh("task"), zeros(only(fresh("task"), clients.entries("parameters"))))

    def round(self, state, clients):
        ups = clients.ask(self.train, Controlled(**vars(state)))
        model, moved = means(((up.model, up.control), 1) for up in ups.values())  # one reply in memory at a time
        return Controls(model, {n: c + ups.replied / len(clients.names) * moved[n] for n, c in state.control.items()})


class Progress(Payload):
    change: State = carries("update", of="model", part="parameters")  # (w_t - w_i) / tau_i
    buffers: State = carries("model", part="buffers")
    steps: int = carries("number")  # tau_i
    samples: int = carries("count")


@dataclass(frozen=True)
class FedNova(Method[Global]):
    local: Local = group(SMALL, without=["optimizer"])

    @on_client
    def train(self, down: Down, client: Client) -> Progress:
        net, optimizer = self.local.begin(client, down.model)
        tau = 0
        for x, y in self.local.batches(client):
            own_step(optimizer, self.local.loss(client.task, net, x, y))
            tau += 1
        reached = state_of(net)
        change = {n: (down.model[n] - reached[n]) / tau for n in client.entries("parameters")}
        return Progress(change=change, buffers=only(reached, client.entries("buffers")), steps=tau, samples=client.samples)

    def round(self, state: Global, clients: Cohort) -> Global:
        told: list[tuple[int, int]] = []

        def weighed(up: Progress) -> tuple[tuple[State, State], float]:
            told.append((up.steps, up.samples))
            return (up.change, up.buffers), up.samples

        change, buffers = means(weighed(up) for up in clients.ask(self.train, Down(model=state.model)).values())
        tau = sum(steps * samples for steps, samples in told) / sum(samples for _, samples in told)  # tau_eff
        return Global({**state.model, **buffers, **{n: state.model[n] - tau * d for n, d in change.items()}})


class Norms(Memory):
    norms: State


class Shared(Payload):
    model: State = carries("model", part="without-norms")


@dataclass(frozen=True)
class FedBN(Method[Global]):
    local: Local = group(SMALL)

    @on_client
    def train(self, down: Down, client: Client) -> Shared:
        net, optimizer = self.local.begin(client, self.local_model(down.model, client))
        for x, y in self.local.batches(client):
            own_step(optimizer, client.task.loss(net(x), y))
        after = state_of(net)
        client.remember(Norms(norms=only(after, client.entries("norms"))))
        return Shared(model=only(after, client.entries("without-norms")))

    def local_model(self, model, client):
        kept = client.recall(Norms)
        return {**model, **kept.norms} if kept else model

    def round(self, state, clients):
        ups = clients.ask(self.train, Down(model=state.model))
        return Global({**state.model, **mean(up.model for up in ups.values())})


@dataclass(frozen=True)
class GA(Assessed):
    name = "ga"
    step: float = hyper(0.2, "reach", low=0.0)

    def combine(self, clients, updates, before):
        models = {c: up.model for c, up in updates}
        weights = {c: before.numbers.get("next", {}).get(c, 1 / len(models)) for c in models}
        model = mean((models[c], weights[c]) for c in models)
        asked = {c: Candidates(models={"all": model, "own": m}) for c, m in models.items()}
        gaps = {c: r.losses["all"] - r.losses["own"] for c, r in clients.ask(self.assess, asked).items()}
        off = {c: gap - sum(gaps.values()) / len(gaps) for c, gap in gaps.items()}
        after = {c: max(0, w + self.step * off.get(c, 0) / (max(map(abs, off.values())) or 1)) for c, w in weights.items()}
        return Aggregate(model, before.round + 1, weights, numbers={"next": {c: w / sum(after.values()) for c, w in after.items()}})


@dataclass(frozen=True)
class GMA(Aggregation):
    name = "gma"
    tau: float = hyper(0.4, "agreement", low=0.0, high=1.0)

    def combine(self, clients, updates, before):
        trained = clients.entries("parameters")

        def signed(up):
            return up.model, {n: torch.sign(up.model[n] - before.model[n].to(up.model[n].device)) for n in trained}

        average, signs = means((signed(up), 1) for _, up in updates)
        agreed = {n: torch.where(s.abs() >= self.tau, torch.ones_like(s), s.abs()) for n, s in signs.items()}
        model = {**average, **{n: before.model[n] + agreed[n] * (average[n] - before.model[n]) for n in trained}}
        return Aggregate(model, before.round + 1)


def head_of(net):
    return [*net.head().parameters()]


class Slope(Payload):
    slope: State = carries("gradient", part="head")


class Aligned(Payload):
    model: State = carries("model")
    slope: State = carries("gradient", part="head")


@dataclass(frozen=True)
class Slopes:
    task: Aggregate
    slope: State


@dataclass(frozen=True)
class FedIIR(Method[Slopes]):
    gamma: float = hyper(1e-2, "weight of the penalty", low=0.0)
    ema: float = hyper(0.95, "memory", low=0.0, high=1.0)
    local: Local = group(SMALL)
    combining: Combining = group(Combining(Uniform()))

    @on_client
    def slopes(self, down: Down, client: Client) -> Slope:
        net = client.build("task", down.model)
        grads = (torch.autograd.grad(client.task.loss(net(x), y), head_of(net)) for x, y in self.local.batches(client))
        return Slope(slope=mean(dict(zip(client.entries("head"), g, strict=True)) for g in grads))

    @on_client
    def train(self, down: Aligned, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)
        goal = [down.slope[n].to(client.device) for n in client.entries("head")]

        @client.step
        def step(x, y):
            loss = client.task.loss(net(x), y)
            g = torch.autograd.grad(loss, head_of(net), create_graph=True)
            own_step(optimizer, loss + self.gamma * sum((a - b).square().sum() for a, b in zip(g, goal, strict=True)))

        for batch in self.local.batches(client):
            step(*batch)
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def start(self, fresh, clients):
        return Slopes(Aggregate(fresh("task")), zeros(only(fresh("task"), clients.entries("head"))))

    def round(self, state, clients):
        now = mean(up.slope for up in clients.ask(self.slopes, Down(model=state.task.model)).values())
        slope = {n: torch.lerp(g, state.slope[n], self.ema) for n, g in now.items()}
        ups = clients.ask(self.train, Aligned(model=state.task.model, slope=slope))
        return Slopes(self.combining.combine(clients, ups, state.task), slope)


class Reference(nn.Module):
    def __init__(self, classes: int, z: int) -> None:
        super().__init__()
        self.mu, self.rho = nn.Parameter(torch.zeros(classes, z)), nn.Parameter(torch.ones(classes, z))


class Representation(Payload):
    model: State = carries("model")
    spread: State = carries("model", role="spread")
    reference: State = carries("model", role="reference")


@dataclass(frozen=True)
class Representations:
    model: State
    spread: State
    reference: State


@dataclass(frozen=True)
class FedSR(Method[Representations]):
    z: int = hyper(8, "dimensions", low=1)
    l2: float = hyper(0.01, "weight of the length", low=0.0)
    cmi: float = hyper(0.001, "weight of what is told beyond the label", low=0.0)
    local: Local = group(SMALL)

    def network(self, name):
        return with_option(name, "hidden", self.z)  # the head's inner layer gives mu

    def networks(self, shapes):
        return {"spread": partial(nn.Linear, shapes.features, self.z), "reference": partial(Reference, shapes.outputs, self.z)}

    @on_client
    def train(self, down: Representation, client: Client) -> Representation:
        net, spread, ref = nets = [client.build(r, s) for r, s in zip(("task", "spread", "reference"), vars(down).values(), strict=True)]
        optimizer = self.local.optimizer_of(client, *nets)

        @client.step
        def step(x, y, noise):
            f = net(x, full=True).features
            mu, sigma = net.head().inner(f), F.softplus(spread(f)) + 1e-3
            z, rmu, rsigma = mu + sigma * noise, ref.mu[y], F.softplus(ref.rho[y]) + 1e-3
            kl = (rsigma.log() - sigma.log() + (sigma**2 + (mu - rmu) ** 2) / (2 * rsigma**2) - 0.5).sum(1).mean()
            own_step(optimizer, client.task.loss(net.head().output(z), y) + self.l2 * z.norm(dim=1).mean() + self.cmi * kl)

        for x, y in self.local.batches(client):
            step(x, y, torch.randn(len(x), self.z, generator=client.rng).to(x.device))
        return Representation(**dict(zip(vars(down), map(state_of, nets), strict=True)))

    def start(self, fresh, clients):
        return Representations(fresh("task"), fresh("spread"), fresh("reference"))

    def round(self, state, clients):
        ups = clients.ask(self.train, Representation(**vars(state)))
        return Representations(*means((tuple(vars(up).values()), 1) for up in ups.values()))


class Style(Payload):
    style: Tensor = carries("statistic")  # mean and deviation of each channel of the encoder's maps


class Styles(Payload):
    styles: State = carries("statistic")


class StyleBank(Memory):
    styles: State


def moments(maps: Tensor) -> Tensor:
    return torch.stack([maps.mean((0, 2, 3)), maps.std((0, 2, 3)) + 1e-5])


@dataclass(frozen=True)
class CCST(Method[Aggregate]):
    local: Local = group(SMALL, without=["views"])
    combining: Combining = group(Combining(Uniform()))

    def networks(self, shapes):
        made = {"encoder": partial(nn.Conv2d, shapes.channels, 4, 1), "decoder": partial(nn.Conv2d, 4, shapes.channels, 1)}
        return {role: Pretrained(make, Official(f"style-{role}.safetensors", "made by the test")) for role, make in made.items()}

    @on_client
    def style(self, down: Nothing, client: Client) -> Style:
        encoder = client.frozen("encoder")
        with torch.no_grad():
            return Style(style=torch.stack([moments(encoder(x)) for x in client.images(32)]).mean(0).cpu())

    @on_client
    def keep(self, down: Styles, client: Client) -> Nothing:
        client.remember(StyleBank(styles=down.styles))
        return Nothing()

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)
        encoder, decoder, bank = client.frozen("encoder"), client.frozen("decoder"), client.recall(StyleBank)
        styles = [style.to(client.device) for _, style in sorted(bank.styles.items())] if bank else []

        def restyled(x: Tensor, rng: torch.Generator) -> Tensor:
            with torch.no_grad():
                maps = encoder(x)
                mu, sigma = moments(maps)[:, None, :, None, None]
                copies = [decoder((maps - mu) / sigma * s[None, :, None, None] + m[None, :, None, None]) for m, s in styles]
            return torch.cat([x, *copies])

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            self.local.descend(net, optimizer, lambda: self.local.loss(client.task, net, x, y, mixing))

        for batch in self.local.batches(client, restyled):
            step(*batch)
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def start(self, fresh, clients: Cohort) -> Aggregate:
        styles = {c: up.style for c, up in clients.ask(self.style, Nothing()).items()}
        clients.ask(self.keep, {c: Styles(styles={o: s for o, s in styles.items() if o != c}) for c in clients.names}).drain()
        return Aggregate(fresh("task"))

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        return self.combining.combine(clients, clients.ask(self.train, Down(model=state.model)), state)
