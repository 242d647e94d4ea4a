"""The views of a batch: restyled copies that train along with it, and a loss that asks for one answer to all of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unseen.errors import nearest
from unseen.ops.consistency import Consistency, OverClasses, by_view, mean_of_views, prediction_consistency
from unseen.ops.fourier import mix_amplitudes
from unseen.ops.randconv import STYLES, restyled, restyled_views
from unseen.settings import Configured, hyper
from unseen.task import Task

__all__ = [
    "FACT",
    "RandConv",
    "Restyled",
    "Views",
    "chosen_styles",
    "predictions",
    "repeat_labels",
    "strange_styles",
    "task_loss",
    "unread_sum",
    "views_of",
]


class Views(Configured, ABC):
    """A part that turns a batch into views of it, [views * n, ...], and adds to the loss what binds them together."""

    @abstractmethod
    def views(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """The views. Called outside the step, since it draws."""

    @abstractmethod
    def bond(self, task: Task, logits: Tensor, samples: int) -> Tensor:
        """The loss between the views' predictions; `samples` says how many images one view has."""


@dataclass(frozen=True)
class RandConv(Views):
    """`+RC` in FedGCA's tables: its style-complement module with the local consistency loss.

    FedDyn with this part is FedGCA with P alone; `weight` is FedGCA's beta.
    """

    name: ClassVar[str] = "randconv"

    copies: int = hyper(3, "restyled copies of each image", symbol="J", low=1, high=32)
    weight: float = hyper(0.1, "of the consistency loss", symbol="beta", low=0.0)
    styles: str = hyper("randconv, repeated, mixing, texture", "what a copy may be, one drawn for each")
    consistency: Consistency = hyper("bce", "bce: Eq. 2 as printed; kl: as its text says")
    over_classes: OverClasses = hyper("mean", "how bce becomes one number")
    stop_mean: bool = hyper(False, "no gradient through the mean prediction")

    def contradictions(self) -> Iterable[str]:
        return [*unread_sum(self.consistency, self.over_classes), *strange_styles(self.styles)]

    def views(self, x: Tensor, rng: torch.Generator) -> Tensor:
        return restyled_views(x, self.copies, chosen_styles(self.styles), rng)

    def bond(self, task: Task, logits: Tensor, samples: int) -> Tensor:
        local = by_view(predictions(task, logits), samples)
        average = mean_of_views(local, stop=self.stop_mean)
        return self.weight * prediction_consistency(local, average, self.consistency, self.over_classes)


@dataclass(frozen=True)
class Restyled(Views):
    """FedGCA's styles as an augmentation: some images of a batch take on another style, in place of themselves. No copies, no bond.

    >>> Restyled().views(torch.zeros(4, 3, 8, 8), torch.Generator()).shape
    torch.Size([4, 3, 8, 8])
    """

    name: ClassVar[str] = "restyled"

    share: float = hyper(0.5, "part of the images that are restyled, drawn for each; the others stay as they are", low=0.0, high=1.0)
    kinds: int = hyper(3, "styles drawn for a batch; a restyled image has one of them", low=1, high=32)
    styles: str = hyper("randconv, repeated, mixing, texture", "what a style may be")

    def contradictions(self) -> Iterable[str]:
        return strange_styles(self.styles)

    @torch.no_grad()
    def views(self, x: Tensor, rng: torch.Generator) -> Tensor:
        kind = torch.randint(1, self.kinds + 1, (len(x),), generator=rng)
        return restyled(x, kind * (torch.rand(len(x), generator=rng) < self.share), chosen_styles(self.styles), rng)

    def bond(self, task: Task, logits: Tensor, samples: int) -> Tensor:
        return logits.new_zeros(())


@dataclass(frozen=True)
class FACT(Views):
    """Amplitude mixing of FACT (Xu et al., "A Fourier-based framework for domain generalization", CVPR 2021).

    A copy has its image's phases, and amplitudes mixed with those of another image of the batch, over the whole spectrum. FACT's teacher
    and its consistency losses are left out, and a copy is not clipped to the range of pixels. A batch of one is its own partner.
    """

    name: ClassVar[str] = "fact"

    copies: int = hyper(1, "restyled copies of each image", low=1, high=32)
    eta: float = hyper(1.0, "the ratios come from U(0, eta)", symbol="eta", low=0.0, high=1.0)

    @torch.no_grad()
    def views(self, x: Tensor, rng: torch.Generator) -> Tensor:
        made = [x]
        for _ in range(self.copies):
            partner, lam = torch.randperm(len(x), generator=rng), self.eta * torch.rand(len(x), generator=rng)
            made.append(mix_amplitudes(x, partner.to(x.device, non_blocking=True), lam.to(x.device, non_blocking=True)))
        return torch.cat(made)

    def bond(self, task: Task, logits: Tensor, samples: int) -> Tensor:
        return logits.new_zeros(())


def views_of(part: Views | None, x: Tensor, rng: torch.Generator) -> Tensor:
    """The seam before a step: the batch, or its views."""
    return x if part is None else part.views(x, rng)


def task_loss(task: Task, logits: Tensor, y: Tensor, part: Views | None = None, smoothing: float = 0.0) -> Tensor:
    """The seam inside a step: the task's loss over every view, and what binds the views together."""
    loss = task.loss(logits, repeat_labels(y, len(logits)), smoothing)
    return loss if part is None else loss + part.bond(task, logits, len(y))


def repeat_labels(y: Tensor, rows: int) -> Tensor:
    """Y+: the labels once for each view."""
    return y if len(y) == rows else y.repeat(rows // len(y), *(1 for _ in y.shape[1:]))


def predictions(task: Task, logits: Tensor) -> Tensor:
    """Probabilities along the last dimension: of the classes; in segmentation of structure and background, at every pixel."""
    if task.name == "segmentation":
        structure = logits.float().sigmoid()
        return torch.stack([structure, 1 - structure], -1)
    return logits.float().softmax(1)


def chosen_styles(text: str) -> list[str]:
    """The styles in a list separated by commas."""
    return [name.strip() for name in text.split(",")]


def strange_styles(text: str) -> Iterable[str]:
    """What is wrong with a list of styles."""
    return [f"styles holds {name!r}{nearest(name, STYLES)}" for name in chosen_styles(text) if name not in STYLES]


def unread_sum(consistency: Consistency, over_classes: OverClasses) -> Iterable[str]:
    """A sum over classes that nothing reads: a divergence is one number as it is."""
    if consistency == "kl" and over_classes != "mean":
        yield f"over_classes is {over_classes}, but of consistency = kl there is one number; leave it out, or set consistency = bce"
