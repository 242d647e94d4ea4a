"""Losses that draw features of the same kind together: of a region (Liu et al., "FedDG", CVPR 2021, Eq. 5-7), of a class (Khosla et al.,
"Supervised contrastive learning", NeurIPS 2020), or of an image under several models (Li et al., "Model-contrastive federated learning",
CVPR 2021, Eq. 3).

A region may be empty (no organ in the image): `valid` marks the images that count, and the others enter no loss.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["info_nce", "masked_average", "model_contrast", "nt_xent", "supervised_contrast", "versions_of"]


def masked_average(maps: Sequence[Tensor], masks: Tensor) -> Tensor:
    """h = sum(Z * y) / sum(y) of Eq. 5: maps [n, c, h, w] and masks [n, s, H, W] to features [n, s, c], maps behind one another.

    Z is each map enlarged bilinearly to H x W. Summing an enlarged map over a mask equals summing the map itself over the mask
    brought back by the transposed enlargement, so nothing large is made. An empty mask gives zeros.
    """
    exact = torch.promote_types(maps[0].dtype, torch.float32)  # thousands of pixels cannot be summed in 16 bits
    with torch.autocast(masks.device.type, enabled=False):
        masks = masks.to(exact)
        area = masks.sum((-2, -1))[..., None].clamp_min(1)
        sums = [_brought_back(masks, z).flatten(2) @ z.to(exact).flatten(2).mT for z in maps]
    return torch.cat(sums, -1) / area


def versions_of(passes: Sequence[Sequence[Tensor]], masks: Tensor) -> Tensor:
    """Eq. 5 for several versions of n images under the same masks [n, s, H, W]: features [versions, n, s, c].

    Each pass through a network gives its maps [versions n, c, h, w], all images of one version together.
    """
    features = [masked_average(maps, masks.repeat(len(maps[0]) // len(masks), 1, 1, 1)) for maps in passes]
    together = torch.cat(features)
    return together.view(-1, len(masks), *together.shape[1:])


def _brought_back(masks: Tensor, z: Tensor) -> Tensor:
    """The masks under the transpose of bilinear enlargement from the size of z."""
    if masks.shape[-2:] == z.shape[-2:]:
        return masks
    rows, columns = (_enlargement(z.shape[d], masks.shape[d], masks) for d in (-2, -1))
    return rows @ masks @ columns.mT


def _enlargement(small: int, large: int, like: Tensor) -> Tensor:
    """The matrix [small, large] that a row of `small` values is multiplied with in linear interpolation."""
    unit = torch.eye(small, dtype=like.dtype, device=like.device)
    return F.interpolate(unit[None], size=large, mode="linear", align_corners=False)[0]


def info_nce(boundary: Tensor, background: Tensor, valid: Tensor, tau: float) -> Tensor:
    """Eq. 6-7 of every image, averaged over the valid ones: features [K, n, c] of the K versions of n images, valid [n].

    An anchor m has as positives the later features p > m of its own kind, and as negatives, which alone are in the
    denominator, all K of the other kind.
    """
    here, there = boundary.transpose(0, 1), background.transpose(0, 1)
    apart = _cosines(here, there) / tau
    sides = ((_cosines(here, here) / tau, apart.logsumexp(2)), (_cosines(there, there) / tau, apart.logsumexp(1)))
    pairs = torch.ones_like(apart[0]).triu(1)  # m < p
    each = sum((pairs * (negatives[..., None] - positives)).sum((1, 2)) for positives, negatives in sides)
    weights = valid.to(apart.dtype)
    return (weights * each).sum() / (weights.sum().clamp_min(1) * (2 * pairs.sum()).clamp_min(1))


def nt_xent(boundary: Tensor, background: Tensor, valid: Tensor, tau: float) -> Tensor:
    """The released form: one set of features for the whole batch, every ordered positive pair, itself in its denominator too."""
    features = torch.cat([boundary.flatten(0, 1), background.flatten(0, 1)])
    kind = torch.arange(2, device=valid.device).repeat_interleave(len(features) // 2)
    counts = valid.repeat(len(features) // len(valid))
    both = counts[:, None] & counts
    same = kind[:, None] == kind
    close = _cosines(features, features) / tau
    negatives = close.masked_fill(~both | same, torch.finfo(close.dtype).min).logsumexp(1, keepdim=True)
    positive = (both & same).fill_diagonal_(False).to(close.dtype)
    return (positive * F.softplus(negatives - close)).sum() / positive.sum().clamp_min(1)  # -log(e^c / (e^c + e^n))


def supervised_contrast(features: Tensor, labels: Tensor, tau: float) -> Tensor:
    """SupCon (Khosla et al., NeurIPS 2020, Eq. 2, outside the logarithm): features [n, c] of rows with class labels [n].

    -1/|P(i)| sum over p in P(i) of log(e^(z_i z_p / tau) / sum over a != i of e^(z_i z_a / tau)), P(i) being the other rows of i's
    class; the mean over the rows that have such others, and 0 where none has.
    """
    close = _cosines(features, features) / tau
    itself = torch.eye(len(close), dtype=torch.bool, device=close.device)
    same = (labels[:, None] == labels) & ~itself
    everyone = close.masked_fill(itself, torch.finfo(close.dtype).min).logsumexp(1, keepdim=True)
    positives = same.sum(1)
    each = (same * (everyone - close)).sum(1) / positives.clamp_min(1)
    return each.sum() / (positives > 0).sum().clamp_min(1)


def model_contrast(z: Tensor, towards: Tensor, away: Sequence[Tensor], tau: float) -> Tensor:
    """MOON's l_con, Eq. 3, of representations [n, c], averaged over the images: near that of one model, far from those of others.

    >>> z, across = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
    >>> round(float(model_contrast(z, z, [across], 0.5)), 4)  # log(1 + e^-2)
    0.1269
    """
    with torch.autocast(z.device.type, enabled=False):
        close = torch.stack([(_unit(z.float()) * _unit(other.float())).sum(-1) for other in (towards, *away)], -1) / tau
    return (close.logsumexp(-1) - close[..., 0]).mean()


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    """Every row of a with every row of b; not in 16 bits, whose rounding 1 / tau would make twenty times as large."""
    exact = torch.promote_types(a.dtype, torch.float32)
    with torch.autocast(a.device.type, enabled=False):
        return _unit(a.to(exact)) @ _unit(b.to(exact)).mT


def _unit(h: Tensor) -> Tensor:
    """h / |h|; a zero stays one, with finite derivatives of any order."""
    return h * h.square().sum(-1, keepdim=True).clamp_min(1e-16).rsqrt()
