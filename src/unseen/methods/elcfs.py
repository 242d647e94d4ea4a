"""FedDG / ELCFS. Liu et al., "FedDG: federated domain generalization on medical image segmentation via episodic learning in
continuous frequency space", CVPR 2021.

Before round 1 the clients exchange the low-frequency amplitudes of their images; phases stay home. Then every image is restyled
towards each other client (Eq. 1-3), one step is taken on the raw image (Eq. 4), and the weights are trained so that after that step
the restyled images are segmented well, with boundary and background features apart (Eq. 5-9). The server averages by data size.

The paper prints the bank as whole spectra: only the window that is ever used is sent, with the same result. As printed, the boundary
term does not fade once the features are apart, and slows the first hundred steps (`contrast = "batch"`, as released, does not).
The paper does not say, and here it is so:
- a network that keeps batch statistics renews them once a batch, on the raw images; the pass at the updated weights uses the
  statistics of its own batch (all restyled images together) and keeps none;
- the loss on restyled images is the mean over their styles; the boundary term is per structure, averaged over the images that have
  both regions (an empty or a full mask has no term), and summed over structures, as in the released code;
- maps are enlarged without aligned corners; Adam starts afresh every round; nothing is clipped; amplitudes are those of the network's
  input (pixels from 0 to 1, or z-scores);
- without frequency interpolation, the raw images stand in for the restyled ones; so they do at a client that the bank never reached,
  and a client that gave no spectra is in nobody's bank.
For classification, cross entropy takes Dice's place, and there is no boundary term.
The released code departs in every field of its preset; its unequal first weights and rounded averages are not offered.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from unseen.client import Client
from unseen.device.twice import DifferentiatedTwice
from unseen.method import Cohort, Fresh, Method, Surroundings, on_client
from unseen.networks.base import Outputs, TaskNet
from unseen.ops.fourier import draw_rows, restyle_amplitudes, take_rows
from unseen.optimizers import moments_of, restore_moments
from unseen.parts.aggregation import Aggregate
from unseen.parts.amplitudes import Amplitudes
from unseen.parts.boundary import Boundary
from unseen.parts.combining import Combining, Down, Up
from unseen.parts.local import Local
from unseen.payload import Memory, Nothing, Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import state_of
from unseen.task import Task

__all__ = ["ELCFS"]


class Spectra(Payload):
    low: Tensor = carries("spectrum", grows_with_data=True)  # [spectra, channels, 2b + 1, b + 1]: amplitudes, no phase


class Bank(Payload):
    low: State = carries("spectrum", grows_with_data=True, passed_on=True)  # of the other clients, by name


class Others(Memory):
    low: State


class Moments(Memory):
    of: State  # Adam's state: parameter number and entry -> tensor


@dataclass(frozen=True)
class ELCFS(Method[Aggregate]):
    """Episodic learning on images that carry the other clients' low frequencies."""

    paper = "Liu et al., CVPR 2021"
    presets = {
        "paper": {"rounds": 100, "augment": "elcfs"},
        "released": {  # two restyled images are made there, and the first is used
            "alpha": 0.0, "lam_low": 1.0, "restyled": 1, "bank_share": 0.125, "clip": True, "first_order": True, "inner_clamp": 100.0,
            "contrast": "batch", "feature_maps": 1, "features_of_x": "old", "beta2": 0.999, "keep_moments": True,
            "rounds": 100, "augment": "none",
        },
    }  # fmt: skip

    window: Amplitudes = group(Amplitudes())
    lam_low: float = hyper(0.0, "smallest ratio; one is drawn per restyled image", symbol="lambda, Eq. 2", low=0.0, high=1.0)
    lam_high: float = hyper(1.0, "largest ratio; equal to the smallest: fixed", symbol="lambda, Eq. 2", low=0.0, high=1.0)
    restyled: int | None = hyper(None, "restyled images per input, of drawn clients; none: one per other client", symbol="K - 1", low=1)
    bank_share: float = hyper(1.0, "part of each other client's spectra that a client keeps, drawn once", low=1e-6, high=1.0)
    clip: bool = hyper(False, "cut restyled images to the range of pixel values")
    episodic: bool = hyper(True, "take the inner step; without it restyled images are training images at the same weights", symbol="BEL")
    first_order: bool = hyper(False, "leave out the derivative through the inner step")
    inner_lr: float = hyper(1e-3, "learning rate of the inner step", symbol="beta, Eq. 4", low=0.0)
    inner_clamp: float | None = hyper(None, "largest entry of the inner gradient", low=0.0)
    edges: Boundary = group(Boundary())
    beta1: float = hyper(0.9, "Adam's first momentum", low=0.0, high=0.9999)
    beta2: float = hyper(0.99, "Adam's second momentum", low=0.0, high=0.99999)
    keep_moments: bool = hyper(False, "keep Adam's state over the rounds")
    local: Local = group(
        Local(batch=5, lr=1e-3),
        symbols={"epochs": "E"},
        meanings={"lr": "learning rate of Adam", "sam": "sharpness-aware steps on the whole objective"},
        without=["optimizer", "weight_decay", "smoothing", "views", "mixstyle", "rsc", "jigen"],
    )
    combining: Combining = group(Combining(), symbols={"aggregation": "N^k / N"})

    def contradictions(self) -> Iterable[str]:
        if self.lam_low > self.lam_high:
            yield f"lam_low is {self.lam_low}, lam_high {self.lam_high}; expected a range that goes up"
        if not (self.window.interpolate or self.episodic):
            yield "without interpolation and without episodic learning nothing of ELCFS is left; use fedavg"

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        if self.window.interpolate and len(around.training) < 2:
            yield "a single client has nobody whose style it could take; use at least two clients, or interpolate = false"
        for name in sorted(n for n, samples in around.training.items() if self.window.interpolate and not samples):
            yield f"client {name!r} has no training image, so no spectrum to give; leave it out"
        if self._twice and any(getattr(m, "attend", None) is F.scaled_dot_product_attention for m in around.net.modules()):
            yield "fast attention has no second derivative; use --network vit_b_16:attention=plain, or first_order"

    @property
    def _twice(self) -> bool:
        return self.episodic and not self.first_order

    @on_client
    def spectra(self, down: Nothing, client: Client) -> Spectra:
        return Spectra(low=self.window.leaving(client))

    @on_client
    def keep(self, down: Bank, client: Client) -> Nothing:
        kept = {}
        for name, low in sorted(down.low.items()):
            chosen = torch.randperm(len(low), generator=client.rng)[: max(1, int(len(low) * self.bank_share))]
            kept[name] = low[chosen.sort().values]
        client.remember(Others(low=kept))
        return Nothing()

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net: TaskNet = client.build("task", down.model)
        adam = {"lr": self.local.lr, "betas": (self.beta1, self.beta2)}
        optimizer = client.optimizer(torch.optim.Adam, net, share=self.local.share(client), **adam)
        if self.keep_moments and (moments := client.recall(Moments)):
            restore_moments(optimizer, moments.of)
        others = client.recall(Others) if self.window.interpolate else None

        @client.step
        def step(x: Tensor, t: Tensor, y: Tensor) -> None:
            self.local.descend(net, optimizer, lambda: self.objective(net, client.task, x, t, y))

        for x, y in self.local.batches(client):
            step(x, client.beside(self.restyle, x, others.low, client) if others and others.low else x[None], y)
        if self.keep_moments:
            client.remember(Moments(of=moments_of(optimizer)))
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def restyle(self, x: Tensor, bank: State, client: Client) -> Tensor:
        """Eq. 2-3: the images [n, C, H, W] in other clients' styles, as t [styles, n, C, H, W]."""
        lows = [low for _, low in sorted(bank.items())]
        rows = draw_rows([len(low) for low in lows], len(x), self.restyled, client.rng)
        lam = self.lam_low + (self.lam_high - self.lam_low) * torch.rand(rows.shape, generator=client.rng)
        t = restyle_amplitudes(x, take_rows(lows, rows).to(x, non_blocking=True), lam.to(x, non_blocking=True), self.window.alpha)
        return t.clamp(*client.pixel_range) if self.clip else t

    def objective(self, net: TaskNet, task: Task, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Eq. 9: the loss at the weights plus the meta objective at the updated weights, both to be minimised by the weights."""
        weights: State = {name: w for name, w in net.named_parameters() if w.requires_grad}
        with DifferentiatedTwice() if self._twice else nullcontext():  # the pass at the updated weights is differentiated once
            raw = net(x, full=True)
        loss = task.loss(raw.logits, y)
        return loss + self.meta(net, task, self.inner_step(loss, weights) if self.episodic else weights, raw, x, t, y)

    def inner_step(self, loss: Tensor, weights: State) -> State:  # Eq. 4
        gradients = torch.autograd.grad(loss, [*weights.values()], retain_graph=True, create_graph=self._twice)
        if self.inner_clamp is not None:
            gradients = tuple(g.clamp(-self.inner_clamp, self.inner_clamp) for g in gradients)
        return {name: w - self.inner_lr * g for (name, w), g in zip(weights.items(), gradients, strict=True)}

    def meta(self, net: TaskNet, task: Task, updated: State, raw: Outputs, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Eq. 8. Batch statistics of this pass go into copies, and are forgotten."""
        with_boundary = task.name == "segmentation" and self.edges.gamma > 0
        x_again = with_boundary and self.episodic and self.edges.features_of_x == "updated"
        versions = torch.cat([x[None], t]) if x_again else t
        buffers = {name: value.clone() for name, value in net.named_buffers()}
        seen: Outputs = functional_call(net, (updated, buffers), (versions.flatten(0, 1), True))
        logits = seen.logits.unflatten(0, versions.shape[:2])[-len(t) :]
        loss = torch.stack([task.loss(style, y) for style in logits]).mean()
        if not with_boundary:
            return loss
        return loss + self.edges.gamma * self.edges.loss([seen.maps] if x_again else [raw.maps, seen.maps], y)

    def start(self, fresh: Fresh, clients: Cohort) -> Aggregate:
        if self.window.interpolate:
            spectra = clients.ask(self.spectra, Nothing()).all()
            banks = {c: Bank(low={o: s.low for o, s in spectra.items() if o != c}) for c in clients.names}
            clients.ask(self.keep, banks).drain()
        return Aggregate(fresh("task"))

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        return self.combining.combine(clients, clients.ask(self.train, Down(model=state.model)), state)
