"""FedADG's losses and draws (Zhang et al., 2021): a discriminator between extracted features h and generated ones h'.

Scores are D(h|y) and D(h'|y), the probability of being generated, one a row.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = [
    "DiscriminatorLoss",
    "GeneratorLoss",
    "Reference",
    "Smoothing",
    "discriminator_loss",
    "draw_reference",
    "feature_loss",
    "generator_loss",
    "one_hot",
    "smoothed_cross_entropy",
    "warmed_up",
]

DiscriminatorLoss = Literal["paper", "lsgan"]
GeneratorLoss = Literal["paper", "adversarial"]
Smoothing = Literal["all", "wrong"]
Reference = Literal["generated", "normal", "uniform", "laplace"]

_WARM_UP_START = 1e-7  # the learning rate from which the released code's warm-up climbs


def discriminator_loss(extracted: Tensor, generated: Tensor, form: DiscriminatorLoss) -> Tensor:
    """L_adv_d. paper: Eq. 2, the negative squared mistakes; lsgan: the squared distances from 1 and 0, as released for PACS.

    Both are least where D(h') = 1 and D(h) = 0. They differ in where they push hardest: Eq. 2 where D is right already.

    >>> h, g = torch.tensor([0.5]), torch.tensor([0.8])
    >>> [round(float(discriminator_loss(h, g, form)), 2) for form in ("paper", "lsgan")]  # -(.5^2 + .8^2), .2^2 + .5^2
    [-0.89, 0.29]
    """
    if form == "paper":
        return -((1 - extracted).square().mean() + generated.square().mean())
    return (1 - generated).square().mean() + extracted.square().mean()


def feature_loss(extracted: Tensor) -> Tensor:
    """L_adv_f, Eq. 3: the extractor wants its features taken for generated ones."""
    return (1 - extracted).square().mean()


def generator_loss(generated: Tensor, form: GeneratorLoss) -> Tensor:
    """L_adv_g. paper: Eq. 4, which raises D(h') just as the discriminator does; adversarial: lowers it, as released for PACS."""
    return (1 - generated).square().mean() if form == "paper" else generated.square().mean()


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, epsilon: float, over: Smoothing) -> Tensor:
    """L_err with label smoothing: epsilon / M on every one of M classes, or epsilon / (M - 1) on the wrong ones only.

    >>> logits, y = torch.log(torch.tensor([[0.5, 0.25, 0.25]])), torch.tensor([0])
    >>> round(float(smoothed_cross_entropy(logits, y, 0.5, "wrong")), 4)  # .5 ln 2 + .25 ln 4 + .25 ln 4 = 1.5 ln 2
    1.0397
    """
    if over == "all":
        return F.cross_entropy(logits, labels, label_smoothing=epsilon)
    log_p = logits.log_softmax(1)
    true = log_p.gather(1, labels[:, None])[:, 0]
    wrong = (log_p.sum(1) - true) / (logits.shape[1] - 1)
    return -((1 - epsilon) * true + epsilon * wrong).mean()


def one_hot(labels: Tensor, classes: int, value: float) -> Tensor:
    """The label as a vector with `value` at its class. (torch's own waits for the device to check the labels.)

    >>> one_hot(torch.tensor([1, 0]), 2, 0.7)
    tensor([[0.0000, 0.7000],
            [0.7000, 0.0000]])
    """
    return torch.zeros(len(labels), classes, device=labels.device).scatter_(1, labels[:, None], value)


def draw_reference(kind: Reference, rows: int, size: int, rng: torch.Generator) -> Tensor:
    """Noise z ~ U[0, 1) for the generator, or h' itself from a fixed distribution: N(0, I), U[-1, 1), Laplace(0, 1/sqrt 2)."""
    if kind == "normal":
        return torch.randn(rows, size, generator=rng)
    if kind == "laplace":  # the difference of two exponentials; its variance is 2 b^2 = 1
        one, other = (torch.empty(rows, size).exponential_(generator=rng) for _ in range(2))
        return (one - other) / math.sqrt(2)
    drawn = torch.rand(rows, size, generator=rng)
    return drawn if kind == "generated" else 2 * drawn - 1


def warmed_up(lr: float, count: int, over: int) -> float:
    """The learning rate at step `count` of a linear warm-up over that many steps; with `over` = 0 there is none, and 0 stays 0.

    >>> warmed_up(0.01, 5, 0), round(warmed_up(0.01, 9, 100), 6)
    (0.01, 0.0009)
    """
    return lr if over == 0 or lr == 0 else _WARM_UP_START + (lr - _WARM_UP_START) * min(1.0, count / over)
