"""Was this image among those that trained? From a model, and from a change of weights.

A trained model knows its own images better: their loss is lower (Yeom et al., 2018). Models that were trained without an image show how
much of that is the image's own ease (Carlini et al., "Membership inference attacks from first principles", 2022, offline). A change
of weights lowers the losses of the images behind it, and lies along their gradients.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unseen.data.domain import Domain, Pixels
from unseen.data.partition.split import Index
from unseen.state import State
from unseen.task import Task

__all__ = ["CandidateImages", "Prober", "calibrated", "candidates", "overfitted"]

_AT_ONCE = 64
_SMALLEST_SPREAD = 1e-3
_MOST_STEPS, _KNOWN = 400, 0.01  # of overfitting, and the share of the first loss that ends it

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CandidateImages:
    """Images of which an attacker wonders whether they trained: members first, then as many others as there are."""

    images: Tensor  # as the network takes them
    labels: Tensor
    members: int
    rows: NDArray[np.int64]  # in their domains, members first
    groups: list[str] | None

    def apart(self, scores: Sequence[float] | Floats) -> tuple[Floats, Floats]:
        """Scores of the members, and of the others."""
        values = np.asarray(scores, dtype=np.float64)
        return values[: self.members], values[self.members :]


def candidates(
    inside: tuple[Domain, Index], outside: tuple[Domain, Index], pixels: Pixels, most: int, rng: np.random.Generator
) -> CandidateImages:
    """Some of the images that trained and some that did not, at most so many of each."""
    images, labels, groups, kept = [], [], list[str](), list[Index]()
    for side, (domain, rows) in enumerate((inside, outside)):
        some = np.sort(rng.permutation(rows)[:most])
        images.append(torch.from_numpy(np.asarray(domain.images)[some]).float() / 255)
        labels.append(torch.from_numpy(np.asarray(domain.labels)[some]))
        groups += [f"{side}/{g}" for g in np.asarray(domain.groups)[some]] if domain.groups is not None else []
        kept.append(some)
    return CandidateImages(pixels.normalised(torch.cat(images)), torch.cat(labels), len(kept[0]), np.concatenate(kept), groups or None)


class Prober:
    """Asks a network about single images."""

    def __init__(self, net: nn.Module, task: Task, device: torch.device) -> None:
        self._net, self._task, self._device = net.to(device), task, device

    def losses(self, state: State, images: Tensor, labels: Tensor) -> Floats:
        """The loss of each image, in evaluation mode."""
        self._net.load_state_dict(state)
        self._net.eval()
        found: list[float] = []
        with torch.no_grad():
            for start in range(0, len(images), _AT_ONCE):
                part = slice(start, start + _AT_ONCE)
                logits, y = self._net(images[part].to(self._device)), labels[part].to(self._device)
                found += [float(self._task.loss(one[None], truth[None])) for one, truth in zip(logits, y, strict=True)]
        return np.nan_to_num(np.array(found, dtype=np.float64), nan=1e30, posinf=1e30).astype(np.float64)

    def alignments(
        self, state: State, downhill: State, images: Tensor, labels: Tensor, order: Iterable[int], until: float
    ) -> dict[int, float]:
        """The cosine between each image's own step downhill at these weights and the change; in this order, while there is time."""
        self._net.load_state_dict(state)
        self._net.eval()
        trained = [(name, w) for name, w in self._net.named_parameters() if w.requires_grad and name in downhill]
        change = torch.cat([downhill[name].flatten() for name, _ in trained]).to(self._device)
        found: dict[int, float] = {}
        for number in order:
            if time.monotonic() > until and len(found) >= 40:
                break
            loss = self._task.loss(self._net(images[number : number + 1].to(self._device)), labels[number : number + 1].to(self._device))
            steps = torch.autograd.grad(loss, [w for _, w in trained], allow_unused=True)
            own = torch.cat(
                [torch.zeros_like(w).flatten() if g is None else -g.flatten() for (_, w), g in zip(trained, steps, strict=True)]
            )
            found[number] = float(torch.nan_to_num(torch.nn.functional.cosine_similarity(own, change, dim=0)))
        return found


def calibrated(losses: Floats, shadows: Sequence[tuple[Floats, NDArray[np.bool_]]]) -> Floats:
    """How far below its loss in models that never saw it each image's loss lies, in their standard deviations.

    Each shadow is the losses of all images in one model, and which images that model was trained on. An image that every shadow was trained
    on cannot be judged: its score is 0.
    """
    table = np.stack([np.where(seen, np.nan, values) for values, seen in shadows])
    known = (~np.isnan(table)).sum(0)
    mean = np.where(known > 0, np.nansum(table, 0) / np.maximum(known, 1), losses)
    spread = np.sqrt(np.nansum((table - mean) ** 2, 0) / np.maximum(known, 1))
    typical = float(np.median(spread[known > 1])) if (known > 1).any() else 1.0
    scores: Floats = (mean - losses) / np.maximum(np.where(known > 1, spread, typical), max(_SMALLEST_SPREAD, 0.5 * typical))
    return scores


def overfitted(
    net: Callable[[], nn.Module], state: State, task: Task, x: Tensor, y: Tensor, device: torch.device, until: float = float("inf")
) -> State:
    """The weights after many steps on a few images alone: what every attack on membership must see through."""
    trained = net().to(device)
    trained.load_state_dict(state)
    trained.train()
    optimizer = torch.optim.Adam([w for w in trained.parameters() if w.requires_grad], lr=3e-3)
    x, y = x.to(device), y.to(device)
    first: float | None = None
    for _ in range(_MOST_STEPS):
        loss = task.loss(trained(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        now = float(loss.detach())
        first = now if first is None else first
        if now < _KNOWN * first or time.monotonic() > until:
            break
    return {name: value.detach().cpu().clone() for name, value in trained.state_dict().items()}
