"""CCST. Chen et al., "Federated domain generalization for image recognition via cross-client style transfer", WACV 2023.

Before round 1 every client tells its style: mean and deviation of each channel, over all its images ("overall") or of each one
("single"). Then it trains on its images in the other clients' styles, by FedAvg. With `space = "adain"`, the paper's, channels are those
of VGG's relu4_1, and AdaIN's decoder makes the image; two published weight files are needed. With `space = "pixels"`, the default, they
are the image's own colours, and nothing is needed: a departure, of which FedCCRL made a method of its own.

The paper draws K' of the clients' styles for each image, its own among the candidates, and makes these images once. Here they are drawn
anew for each batch: an epoch has as many steps as FedAvg's, each on K' times the batch. Restyled images are cut to the range of pixel
values. Styles are those of the network's input size; the release transfers at 512 pixels and trains at 222.
A client that gave no style is in nobody's bank; one whom the bank did not reach trains on its images as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from unseen.client import Client
from unseen.method import Cohort, Fresh, Method, Shapes, Surroundings, on_client
from unseen.networks.adain import SMALLEST_SIDE, pretrained_adain
from unseen.ops.fourier import take_rows
from unseen.ops.style import RunningMoments, adain, channel_moments
from unseen.parts.aggregation import Aggregate, Uniform
from unseen.parts.combining import Combining, Down, Up
from unseen.parts.local import Local
from unseen.payload import Memory, Nothing, Payload, State, carries
from unseen.settings import group, hyper
from unseen.state import state_of

__all__ = ["CCST"]


class ClientStyle(Payload):
    overall: Tensor | None = carries("statistic")  # [1, 2, channels]: mean and deviation over all positions of all images
    single: Tensor | None = carries("statistic", grows_with_data=True)  # [images, 2, channels]: of each image


class StyleBank(Payload):
    styles: State = carries("statistic", grows_with_data=True, passed_on=True)  # by client


class OthersStyles(Memory):
    styles: State


@dataclass(frozen=True)
class CCST(Method[Aggregate]):
    """FedAvg on images that also come in the other clients' styles."""

    paper = "Chen et al., WACV 2023"
    compiles = True
    presets = {
        "paper": {"space": "adain", "styles": 3, "rounds": 500, "validation": 0.1},
        "camelyon17": {"space": "adain", "styles": 4, "rounds": 200, "validation": 0.1},
    }

    space: Literal["pixels", "adain"] = hyper("pixels", "adain: VGG's relu4_1, as in the paper, from two weight files", symbol="Phi")
    style: Literal["overall", "single"] = hyper("overall", "a client's style: of all its images, or one of each", symbol="S")
    styles: int | None = hyper(
        None, "versions of each image, of drawn clients, itself for its own; none: one of every client", symbol="K'", low=1
    )
    alpha: float = hyper(1.0, "how far to go towards the style", symbol="alpha", low=0.0, high=1.0)
    local: Local = group(
        Local(batch=64, optimizer="sgd", lr=1e-3),
        symbols={"epochs": "E"},
        meanings={"batch": "images in a batch, before they are restyled"},
        without=["views"],
    )
    combining: Combining = group(Combining(Uniform()), symbols={"aggregation": "1 / K"})

    def contradictions(self) -> Iterable[str]:
        if self.alpha == 0:
            yield "alpha is 0, so styles would leave and no image change; give a larger one, or use fedavg"

    def networks(self, shapes: Shapes) -> Mapping[str, Callable[[], nn.Module]]:
        return {**super().networks(shapes), **(pretrained_adain() if self.space == "adain" else {})}

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        yield from super().obstacles(around)
        clients, shapes = around.training, around.shapes
        if len(clients) < 2:
            yield "a single client has nobody whose style it could take; use at least two clients, or fedavg"
        elif self.styles and self.styles > len(clients):
            yield f"styles is {self.styles}, and there are {len(clients)} clients; set styles = none for one of every client"
        for name in sorted(n for n, samples in clients.items() if not samples):
            yield f"client {name!r} has no training image, so no style to give; leave it out"
        if self.space == "adain" and (shapes.channels not in (1, 3) or min(shapes.size) < SMALLEST_SIDE):
            got = f"{shapes.channels} channels of {shapes.size[0]} x {shapes.size[1]} pixels"
            yield f'space "adain" takes 1 or 3 channels and {SMALLEST_SIDE} pixels a side, not {got}; use space = "pixels"'

    @on_client
    def tell(self, down: Nothing, client: Client) -> ClientStyle:
        """Of the training images, not augmented."""
        moments, single = RunningMoments(), []
        with torch.no_grad():
            for x in client.images(client.batch_of(numbers=4_000_000)):
                maps = self.seen(x, client)
                if self.style == "overall":
                    moments.add(maps)
                else:
                    single.append(channel_moments(maps).cpu())
        if self.style == "overall":
            return ClientStyle(overall=moments.result()[None].cpu(), single=None)
        return ClientStyle(overall=None, single=torch.cat(single))

    @on_client
    def keep(self, down: StyleBank, client: Client) -> Nothing:
        client.remember(OthersStyles(styles={name: style for name, style in down.styles.items() if name != client.id}))
        return Nothing()

    @on_client
    def train(self, down: Down, client: Client) -> Up:
        net, optimizer = self.local.begin(client, down.model)
        bank = client.recall(OthersStyles)
        others = [style for _, style in sorted(bank.styles.items())] if bank else []

        @client.step
        def step(x: Tensor, y: Tensor, *mixing: Tensor) -> None:
            self.local.descend(net, optimizer, lambda: self.local.loss(client.task, net, x, y, mixing))

        for batch in self.local.batches(client, lambda x, rng: self.restyled(x, others, client, rng)):
            step(*batch)
        return Up(model=state_of(net), **self.combining.upload(client, net))

    @torch.no_grad()
    def restyled(self, x: Tensor, others: list[Tensor], client: Client, rng: torch.Generator) -> Tensor:
        """K' versions of each image, [K' n, c, h, w]. Each has K' clients drawn without replacement; number 0 is its own."""
        everyone = len(others) + 1
        chosen = torch.rand(everyone, len(x), generator=rng).argsort(0)[: self.styles or everyone]
        versions = torch.cat([x] * len(chosen))
        where = chosen.flatten().nonzero()[:, 0]
        if len(where):
            sizes = torch.tensor([len(style) for style in others])
            client_of = chosen.flatten()[where] - 1
            within = (torch.rand(len(where), generator=rng, dtype=torch.float64) * sizes[client_of]).long()
            styles = take_rows(others, within + (sizes.cumsum(0) - sizes)[client_of]).to(x.device, non_blocking=True)
            there = where.to(x.device, non_blocking=True)
            versions[there] = self.transferred(versions[there], styles, client)
        return versions

    def transferred(self, x: Tensor, styles: Tensor, client: Client) -> Tensor:
        """The images [n, c, h, w] in the styles [n, 2, channels], as the network takes them."""
        made = adain(self.seen(x, client), styles, torch.full((len(x),), 1 - self.alpha, device=x.device))
        low, high = client.pixel_range
        if self.space == "adain":
            image = client.frozen("decoder")(made)[..., : x.shape[2], : x.shape[3]]  # sides had been rounded up to eights
            made = low + (high - low) * (image if x.shape[1] == 3 else image.mean(1, keepdim=True))
        return torch.minimum(torch.maximum(made, low), high)

    def seen(self, x: Tensor, client: Client) -> Tensor:
        """The maps whose moments are the style: the encoder's of the pixels from 0 to 1, or the images themselves."""
        if self.space == "pixels":
            return x
        low, high = client.pixel_range
        maps: Tensor = client.frozen("encoder")(((x - low) / (high - low)).expand(-1, 3, -1, -1))
        return maps

    def start(self, fresh: Fresh, clients: Cohort) -> Aggregate:
        told = clients.ask(self.tell, Nothing()).items()
        styles = {name: style for name, up in told if (style := up.overall if up.single is None else up.single) is not None}
        clients.ask(self.keep, StyleBank(styles=styles)).drain()
        return Aggregate(fresh("task"))

    def round(self, state: Aggregate, clients: Cohort) -> Aggregate:
        return self.combining.combine(clients, clients.ask(self.train, Down(model=state.model)), state)
