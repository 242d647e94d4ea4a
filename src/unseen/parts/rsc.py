"""Representation self-challenging as a part of local training. Huang et al., ECCV 2020.

The features with the largest gradient of the true class are muted, and the network learns from the rest: the only loss is that after
muting. The muting stays with those samples whose true class lost most of its probability by it.

`vector` is the paper's form on what the head reads, as DomainBed has it; `map` is that of the released code, which mutes channels or
positions of the last maps, one or the other drawn for a batch. Departures: the released share of samples grows over the epochs, here it
is fixed; so many samples as `b` says stay muted, where the released code leaves out ties; gradient and probabilities are those of the
training pass, where the released code looks in evaluation mode.
The paper does not do segmentation. There the Dice score takes the place of the true class, `map` acts on the deepest maps of the
encoder, all samples stay muted, and the network is run a second time. What speaks is then the map times its gradient, position by
position: instance norms behind those maps make the mean gradient of a channel, by which the released code goes, exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from unseen.method import Surroundings
from unseen.networks.base import Outputs, TaskNet
from unseen.networks.headed import HeadedNet, acting_after, stages_of
from unseen.ops.challenge import kept_channels, kept_entries, kept_positions, most_changed
from unseen.settings import Configured, hyper
from unseen.task import Task

__all__ = ["RSC"]

_CHANNELS = 1 / 3.2
_SMALLEST_CHANGE = 1e-4  # of the released form: a sample that lost less is not muted


@dataclass(frozen=True)
class RSC(Configured):
    """Mutes the features that speak most for the true class, and trains on the rest. Nothing of it is left at prediction."""

    name: ClassVar[str] = "rsc"

    form: Literal["vector", "map"] = hyper("vector", "what is muted: entries of the feature vector, or channels or positions of the maps")
    f: float = hyper(1 / 3, "share of the entries, or of the positions, that is muted", symbol="f", low=0.0, high=1.0)
    channels: float = hyper(_CHANNELS, "form map: share of the channels that is muted", low=0.0, high=1.0)
    b: float | None = hyper(None, "share of the samples that stay muted; none: 1/3, in segmentation all", symbol="b", low=0.0, high=1.0)

    def contradictions(self) -> Iterable[str]:
        if self.form == "vector" and self.channels != _CHANNELS:
            yield f"rsc has channels = {self.channels:g}, but form = vector mutes no channels; set form = map, or leave channels out"

    def obstacles(self, around: Surroundings) -> Iterable[str]:
        if around.task == "segmentation":
            if self.form == "vector":
                yield "rsc has form = vector, and a segmentation network has no feature vector; set form = map"
            elif not stages_of(around.net):
                yield f"rsc mutes the deepest maps of an encoder, and {type(around.net).__name__} names no stages; use unet"
            if self.b is not None:
                yield f"rsc has b = {self.b:g}, and in segmentation all samples stay muted; leave b out"
            return
        if not _head_reads(around, pooled=self.form == "map"):
            what = "the mean of its maps over positions; set form = vector, or use" if self.form == "map" else "its features; use"
            yield f"rsc with form = {self.form} needs a network whose head reads {what} another network than {type(around.net).__name__}"

    def draw(self, rng: torch.Generator, device: torch.device) -> tuple[Tensor, ...]:
        """The seam before a step: for the form `map`, whether this batch loses channels (true) or positions."""
        return () if self.form == "vector" else ((torch.rand((), generator=rng) < 0.5).to(device, non_blocking=True),)

    def challenged(self, task: Task, net: TaskNet, look: Callable[[], Outputs], y: Tensor, by_channel: Tensor | None) -> Outputs:
        """The seam inside a step: what the network says where its strongest features are muted. `look` runs it on the batch."""
        if task.name == "segmentation":
            return self._at_the_bottleneck(task, net, look, y, by_channel)
        seen = look()
        z = seen.features if self.form == "vector" else seen.maps[-1]
        slope = _of_true_class(net, seen.logits, z, y)
        if by_channel is None:
            keep = kept_entries(slope, self.f)
        else:
            keep = self._kept(slope, z.detach() * slope.mean((2, 3), keepdim=True), by_channel)
        with torch.no_grad():
            before, after = (_true_class(logits, y) for logits in (seen.logits, _read(net, z * keep)))
            muted = most_changed(before - after, 1 / 3 if self.b is None else self.b)
            if self.form == "map":
                muted = muted & (before - after > _SMALLEST_CHANGE)
            keep = torch.where(muted.view(-1, *(1 for _ in z.shape[1:])), keep, torch.ones_like(keep))
        return seen._replace(logits=_read(net, z * keep))

    def _at_the_bottleneck(self, task: Task, net: TaskNet, look: Callable[[], Outputs], y: Tensor, by_channel: Tensor | None) -> Outputs:
        assert isinstance(net, HeadedNet) and by_channel is not None  # the obstacles saw to it
        held: list[Tensor] = []
        with acting_after(net.stages()[-1], held.append):
            score = -task.loss(look().logits, y)
        speaks = held[0].detach() * _gradient(score, held[0])
        keep = self._kept(speaks, speaks, by_channel)
        with acting_after(net.stages()[-1], lambda maps: maps * keep):
            return look()

    def _kept(self, of_channels: Tensor, of_positions: Tensor, by_channel: Tensor) -> Tensor:
        return torch.where(by_channel, kept_channels(of_channels, self.channels), kept_positions(of_positions, self.f))  # [n, c, h, w]


def _of_true_class(net: TaskNet, logits: Tensor, z: Tensor, y: Tensor) -> Tensor:
    """d logit_y / dz. Features of a fixed backbone carry no gradient: there the head is read once more."""
    if not z.requires_grad:
        z = z.detach().requires_grad_()
        logits = _read(net, z)
    return _gradient(logits.gather(1, y[:, None]).sum(), z, again=True)


def _gradient(of: Tensor, z: Tensor, again: bool = False) -> Tensor:
    (slope,) = torch.autograd.grad(of, z, retain_graph=again)
    return slope


def _read(net: TaskNet, z: Tensor) -> Tensor:
    """What the head says of features, or of maps whose mean over positions it reads."""
    logits: Tensor = net.head()(z if z.ndim == 2 else z.mean((2, 3)))
    return logits


def _true_class(logits: Tensor, y: Tensor) -> Tensor:
    return logits.float().softmax(1).gather(1, y[:, None])[:, 0]


@torch.no_grad()
def _head_reads(around: Surroundings, pooled: bool) -> bool:
    x = torch.rand(2, around.shapes.channels, *around.shapes.size, generator=torch.Generator().manual_seed(0))
    net = around.net.eval()
    seen: Outputs = net(x, full=True)
    z = seen.maps[-1] if pooled and seen.maps else seen.features
    if z.ndim != (4 if pooled else 2) or (pooled and z.shape[1] != seen.features.shape[1]):
        return False
    return torch.allclose(_read(net, z), seen.logits, rtol=1e-3, atol=1e-5)  # type: ignore[arg-type]
