"""Two networks that learn from each other's predictions: deep mutual learning (Zhang et al., CVPR 2018), as G2G takes it over."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["divergence_from"]


def divergence_from(teacher: Tensor, logits: Tensor) -> Tensor:
    """KL(teacher || student) of the predictions that logits stand for; nothing is learnt by the teacher.

    Logits [n, classes] are averaged over the images; logits of masks [n, structures, h, w] over every pixel of every structure, each of
    which is a distribution over two.

    >>> sure, unsure = torch.tensor([[30.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    >>> round(float(divergence_from(sure, unsure)), 4)  # log 2
    0.6931
    """
    told, said = _log_distribution(teacher.detach()), _log_distribution(logits)
    return (told.exp() * (told - said)).sum(-1).mean()


def _log_distribution(logits: Tensor) -> Tensor:
    exact = logits.float()
    return exact.log_softmax(1) if logits.ndim == 2 else torch.stack([F.logsigmoid(exact), F.logsigmoid(-exact)], -1)
