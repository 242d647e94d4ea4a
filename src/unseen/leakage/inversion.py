"""Images from a change of weights.

Where the first layer is linear in the whole image, the change of its weights over that of its bias is an image. Elsewhere images are
searched whose gradient points where the change points (Geiping et al., "Inverting gradients", NeurIPS 2020: cosine distance, total
variation, signs of the gradient, Adam).
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from unseen.data.domain import Pixels
from unseen.leakage.attempts import Attempt, Outcome
from unseen.leakage.intervals import CHANCE, LEVEL, alike_by_chance
from unseen.report.statistics import interval
from unseen.state import State
from unseen.task import Task

__all__ = ["Inverter", "Likeness", "correlation_interval", "correlations", "images_attempt", "likeness"]

MOST_IMAGES = 8  # searched for at once
_FEW_OTHERS = 16
_ALIKE = 0.9  # correlation from which an image counts as found
_TV = 1.0  # natural images are smooth; 0.1 to 1 brought most back in trials


@dataclass(frozen=True)
class Likeness:
    """How alike the found images are to those that trained and to others that did not: correlations, one for each found image."""

    inside: list[float]
    outside: list[float]
    hits: int  # found images whose likest image, of all, is one that trained
    share: float  # of the images that trained among all: how often a hit is chance
    by_chance: float  # how likely that is if what was found has nothing to do with the images that trained

    @property
    def found(self) -> int:
        """Images that came back: alike, and twice as near as to any image that did not train."""
        return sum(a >= _ALIKE and 1 - a <= 0.5 * (1 - b) for a, b in zip(self.inside, self.outside, strict=True))


def correlations(found: Tensor, true: Tensor) -> Tensor:
    """Pearson's correlation of every found image with every true one: [found, true]."""

    def centred(images: Tensor) -> Tensor:
        flat = images.flatten(1).double()
        return F.normalize(flat - flat.mean(1, keepdim=True), dim=1)

    return centred(found) @ centred(true).T


def likeness(found: Tensor, inside: Tensor, outside: Tensor) -> Likeness:
    """Each found image with one true image, chosen so that all are as alike as can be; the same with images that did not train.

    `outside` are at least as many; the first of them are compared with, as many as trained but no fewer than 16. Hits are among all.
    """

    def assigned(true: Tensor) -> list[float]:
        table = correlations(found, true).nan_to_num().cpu().numpy()
        rows, columns = linear_sum_assignment(table, maximize=True)
        return [float(table[r, c]) for r, c in zip(rows, columns, strict=True)]

    table = correlations(found, torch.cat([inside, outside])).nan_to_num().cpu().numpy()
    equal = outside[: max(len(inside), _FEW_OTHERS)]
    hits, chance = int((table.argmax(1) < len(inside)).sum()), alike_by_chance(table, len(inside))
    return Likeness(assigned(inside), assigned(equal), hits, len(inside) / (len(inside) + len(outside)), chance)


def correlation_interval(values: list[float]) -> tuple[float | None, float | None]:
    """Student's t interval of the mean correlation, cut to what a correlation can be; nothing for a single one."""
    found = interval(values, LEVEL)
    return (max(-1.0, found[0]), min(1.0, found[1])) if found else (None, None)


class Inverter:
    """Searches images behind a change of weights of one network."""

    def __init__(self, net: nn.Module, task: Task, pixels: Pixels, shape: tuple[int, ...], device: torch.device) -> None:
        self._net, self._task, self._shape, self._device = net.to(device), task, shape, device
        self.cut_short = False  # whether a search ended because the time was over
        dark, bright = torch.zeros(1, shape[0], 1, 1), torch.ones(1, shape[0], 1, 1)
        self._dark, self._bright = (pixels.normalised(one).to(device) for one in (dark, bright))

    def gradient(self, state: State, x: Tensor, y: Tensor) -> State:
        """What one step on these images changes, for a control: downhill."""
        self._load(state)
        names, weights = zip(*self._trained(), strict=True)
        loss = self._task.loss(self._net(x.to(self._device)), y.to(self._device))
        steps = torch.autograd.grad(loss, weights, allow_unused=True)
        return {n: torch.zeros_like(w).cpu() if g is None else -g.cpu() for n, w, g in zip(names, weights, steps, strict=True)}

    def images(self, state: State, downhill: State, number: int, labels: Tensor | None, steps: int, seed: int, until: float) -> Tensor:
        """The images [number or fewer, ...] that a server would guess, as the network takes them."""
        exact = self._read_off(state, downhill)
        if exact is not None:
            return exact[:number]
        return self._search(state, downhill, number, labels, steps, seed, until)

    def _read_off(self, state: State, downhill: State) -> Tensor | None:
        """The first layer's weights over its bias, unit by unit; the units whose image is one of pixels come first."""
        layer = self._first_layer(state)
        if layer is None:
            return None
        weight, bias = (downhill[f"{layer}.{n}"].double() for n in ("weight", "bias"))
        rows, units = weight.reshape(len(bias), -1), bias.abs() > 1e-3 * bias.abs().max()
        if not bool(units.any()):
            return None
        ratio = rows[units] / bias[units, None]
        mixed = (rows * bias[:, None]).sum(0, keepdim=True) / bias.square().sum()  # exact where one image is behind all
        images = torch.cat([mixed, ratio]).reshape(-1, *self._shape).float().to(self._device)
        beyond = ((self._dark - images).clamp(min=0) + (images - self._bright).clamp(min=0)).flatten(1).mean(1)
        return images[beyond.argsort(stable=True)].clamp(self._dark, self._bright).cpu()

    def _first_layer(self, state: State) -> str | None:
        """The layer that takes the whole image at once, if there is one, with a bias."""
        found: list[str] = []
        pixels = self._shape[0] * self._shape[1] * self._shape[2]

        layers = {n: m for n, m in self._net.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
        hooks = [layer.register_forward_pre_hook(lambda *_, name=name: found.append(name)) for name, layer in layers.items()]
        self._load(state)
        with torch.no_grad():
            self._net.eval()(torch.zeros(1, *self._shape, device=self._device))
        for hook in hooks:
            hook.remove()
        first = layers[found[0]] if found else None
        whole = (isinstance(first, nn.Linear) and first.in_features == pixels) or (
            isinstance(first, nn.Conv2d) and tuple(first.kernel_size) == self._shape[1:] and first.in_channels == self._shape[0]
        )
        return found[0] if whole and first is not None and first.bias is not None else None

    def _search(self, state: State, downhill: State, number: int, labels: Tensor | None, steps: int, seed: int, until: float) -> Tensor:
        self._load(state)
        trained = [(name, w) for name, w in self._trained() if name in downhill]
        weights, wanted = [w for _, w in trained], [-downhill[name].to(self._device) for name, _ in trained]
        scale = torch.sqrt(sum((t.square().sum() for t in wanted), torch.zeros((), device=self._device)))
        rng = torch.Generator().manual_seed(seed)
        x = (0.5 * (self._dark + self._bright) + 0.1 * torch.randn(number, *self._shape, generator=rng).to(self._device)).requires_grad_()
        soft = self._soft_labels(number, labels)
        optimizer = torch.optim.Adam([x] if labels is not None else [x, soft], lr=0.1)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [steps * k // 8 for k in (3, 5, 7)], gamma=0.3)
        best, least = x.detach().clone(), float("inf")
        for _ in range(steps):
            with sdpa_kernel(SDPBackend.MATH):  # fast attention has no second derivative
                loss = self._loss(self._net(x), soft if labels is None else labels.to(self._device))
            made = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
            pairs = [(g, t) for g, t in zip(made, wanted, strict=True) if g is not None]
            size = torch.sqrt(sum((g.square().sum() for g, _ in pairs), torch.zeros((), device=self._device)) + 1e-24)
            distance = 1 - sum(((g * t).sum() for g, t in pairs), torch.zeros((), device=self._device)) / (size * scale + 1e-24)
            smooth = (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., :, 1:] - x[..., :, :-1]).abs().mean()
            optimizer.zero_grad()
            (distance + _TV * smooth).backward(inputs=[x] if labels is not None else [x, soft])
            assert x.grad is not None
            x.grad.sign_()
            if float(distance.detach()) < least:
                best, least = x.detach().clone(), float(distance.detach())
            optimizer.step()
            schedule.step()
            with torch.no_grad():
                x.clamp_(self._dark, self._bright)
            if time.monotonic() > until:
                self.cut_short = True
                break
        return best.cpu()

    def _soft_labels(self, number: int, labels: Tensor | None) -> Tensor:
        """Labels that are searched along with the images, where they are not known: masks."""
        shape = (number, self._task.outputs, *self._shape[1:]) if self._task.name == "segmentation" else (number, self._task.outputs)
        return torch.zeros(shape, device=self._device, requires_grad=labels is None)

    def _loss(self, logits: Tensor, y: Tensor) -> Tensor:
        if y.is_floating_point():
            return self._task.loss(logits, y.sigmoid()) if y.ndim == 4 else F.cross_entropy(logits, y.softmax(1))
        return self._task.loss(logits, y)

    def _load(self, state: State) -> None:
        self._net.load_state_dict(state)
        self._net.train()

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, w) for name, w in self._net.named_parameters() if w.requires_grad]


def images_attempt(what: str, alike: Likeness, control: Likeness, behind: str) -> Attempt:
    """Whether what was found is an image of the site."""
    value, guess = (sum(values) / len(values) for values in (alike.inside, alike.outside))
    low, high = correlation_interval(alike.inside)
    works = sum(control.inside) / len(control.inside)
    outcome: Outcome = "images" if alike.found else "better" if alike.by_chance < CHANCE else "guessing"
    if outcome == "images":
        verdict = f"images come back: {alike.found} of the {len(alike.inside)} that were searched"
    elif outcome == "better":
        verdict = "better than guessing: what is found resembles images that trained more than others"
    elif not control.hits:
        outcome, verdict = "silent", "the attack fails even on a single image, so this row says nothing"
    else:
        verdict = "no better than guessing: what is found resembles other images as much"
    best = f"{alike.hits} of {len(alike.inside)} are likest to an image that trained, {alike.share:.0%} would be by chance; {behind}"
    told = "one image, one step"
    return Attempt(what, "images from the change of weights", outcome, verdict, "correlation", value, low, high, guess, works, told, best)
