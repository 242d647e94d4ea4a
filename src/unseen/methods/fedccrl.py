"""FedCCRL. Wang et al., "FedCCRL: federated domain generalization with cross-client representation learning", 2024 (arXiv 2410.11267).

Each round the clients tell mean and deviation of each colour channel of some images. Every client then makes copies of its batches:
each image takes on the colours of an image elsewhere, partly (MixStyle on pixels), and is changed by AugMix. The network shall classify
all copies, give features of one class alike (supervised contrast), and the same prediction for all copies (Jensen-Shannon).

Statistics are those of the network's input. The server sends all of them to everybody; a client leaves out its own. One that gets none
of others restyles nothing and goes on with AugMix. A client that gave none is in nobody's pool. An image of one class alone in its batch
still has its own copies to be alike. Copies are drawn anew for each batch: first a client, then one of its images.
The paper's side (lambda_2 = 1) is from a transcript, the rest as released; optimiser, rate, batch and epochs are ours.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unseen.client import Client
from unseen.method import Cohort, Method, Surroundings, on_client
from unseen.ops.consistency import by_view, jensen_shannon
from unseen.ops.contrast import supervised_contrast
from unseen.ops.fourier import draw_rows, take_rows
from unseen.ops.mixstyle import draw_keeping
from unseen.ops.style import adain, channel_moments, possible_moments
from unseen.parts.aggregation import Aggregate
from unseen.parts.augmix import MixingChains
from unseen.parts.combining import Combining, Up
from unseen.parts.local import Local
from unseen.parts.views import predictions, repeat_labels
from unseen.payload import Nothing, Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import state_of

__all__ = ["FedCCRL"]


class ColourStatistics(Payload):
    moments: Tensor = carries("statistic", grows_with_data=True)  # [images, 2, channels]: mean and deviation


class Down(Payload):
    model: State = carries("model")
    colours: State = carries("statistic", grows_with_data=True, passed_on=True)  # moments by client


@dataclass(frozen=True)
class FedCCRL(Method[Aggregate]):
    """Copies in the other clients' colours, with features alike by class and predictions alike by image."""

    tasks = ("classification",)
    paper = "Wang et al., 2024"
    presets = {"paper": {}, "released": {"lambda2": 0.1}}

    share: float = hyper(0.1, "part of the images whose statistics leave, drawn anew each round", symbol="r", low=1e-6, high=1.0)
    copies: int = hyper(2, "copies of each image", low=1, high=32)
    restyle: bool = hyper(True, "copies take on other clients' colours; without it no statistics leave", symbol="CCDT")
    style_alpha: float = hyper(0.1, "of Beta(alpha, alpha), from which the part of its own colours comes", symbol="alpha", low=1e-3)
    augmix: bool = hyper(True, "copies are changed by AugMix", symbol="DIFP")
    chains: MixingChains = group(MixingChains(), without=["operations"])
    lambda1: float = hyper(0.1, "weight of the supervised contrast of features", symbol="lambda_1", low=0.0)
    lambda2: float = hyper(1.0, "weight of the Jensen-Shannon consistency; released 0.1", symbol="lambda_2", low=0.0)
    tau: float = hyper(0.1, "temperature of the contrast", symbol="tau", low=1e-3)
    local: Local = group(Local(batch=32, optimizer="momentum", lr=1e-3), without=["views", "rsc", "jigen"])
    combining: Combining = group(Combining())

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        if self.restyle and len(around.training) < 2:
            yield "a single client has nobody whose colours it could take; use at least two clients, or restyle = false"
        for name in sorted(n for n, samples in around.training.items() if self.restyle and not samples):
            yield f"client {name!r} has no training image, so no colours to tell; leave it out"

    @on_client
    def statistics(self, down: Nothing, client: Client) -> ColourStatistics:
        """Of a drawn part of the training images, not augmented; at least one."""
        number = max(1, round(self.share * client.samples))
        drawn = client.drawn(number, client.batch_of(numbers=4_000_000))
        return ColourStatistics(moments=torch.cat([channel_moments(x).cpu() for x, _ in drawn]))

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)
        told = [moments for name, moments in sorted(down.colours.items()) if name != client.id]
        others = [possible_moments(moments, *client.pixel_range) for moments in told]  # whoever sent them

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            def loss() -> Tensor:
                seen, labels = self.local.look(net, x, mixing), repeat_labels(y, len(x))
                total = client.task.loss(seen.logits, labels, self.local.smoothing)
                if self.lambda1:
                    total = total + self.lambda1 * supervised_contrast(seen.features, labels, self.tau)
                if self.lambda2:
                    total = total + self.lambda2 * jensen_shannon(by_view(predictions(client.task, seen.logits), len(y)))
                return total

            self.local.descend(net, optimizer, loss)

        for batch in self.local.batches(client, lambda x, rng: self.copied(x, others, rng)):
            step(*batch)
        return Up(model=state_of(net), **self.combining.upload(client, net))

    def copied(self, x: Tensor, others: list[Tensor], rng: torch.Generator) -> Tensor:
        """The images and their copies: in others' colours, then through AugMix."""
        copies = torch.cat([x] * self.copies)
        if others:
            rows = draw_rows([len(moments) for moments in others], len(x), self.copies, rng)
            keep = draw_keeping(self.style_alpha, len(copies), rng)
            copies = adain(copies, take_rows(others, rows).flatten(0, 1).to(x.device, non_blocking=True), keep)
        return torch.cat([x, self.chains.mixture(copies, rng) if self.augmix else copies])

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        told = clients.ask(self.statistics, Nothing()).items() if self.restyle else ()
        colours = {name: up.moments for name, up in told}
        after = self.combining.combine(clients, clients.ask(self.train, Down(model=state.model, colours=colours)), state)
        return replace(after, numbers={**after.numbers, "colours": {name: float(len(moments)) for name, moments in colours.items()}})

    def notes(self, state: Aggregate) -> dict[str, Any]:
        alone = self.restyle and len(state.numbers.get("colours", {})) < 2
        warning = "fewer than two clients told their colours in this round, so nobody took on another's; have more take part"
        return {**super().notes(state), **({"warning": warning} if alone else {})}
