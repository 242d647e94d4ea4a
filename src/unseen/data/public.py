"""Public images: of a data set that is nobody's own, without its labels, in the shape of the images that a network is trained on."""

from __future__ import annotations

import functools

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from unseen.data.domain import DomainDataset, Samples
from unseen.data.loading import load
from unseen.data.sets.registry import DATASETS
from unseen.errors import BadInput

__all__ = ["open_public"]

_AT_ONCE = 256


@functools.lru_cache(maxsize=2)
def open_public(name: str, channels: int, size: tuple[int, int], number: int) -> Tensor:
    """At most `number` images of the data set, uint8 [n, channels, height, width]: the same in the same order on every machine.

    They are spread evenly over the set, and resized where they are of another size. A set of other channels is refused.
    """
    data = _opened(name)
    if data.channels != channels:
        raise BadInput(f"public is {name!r}, whose images have {data.channels} channels; the data have {channels}, so choose another set")
    everything = Samples(tuple((domain, np.arange(len(domain), dtype=np.int64)) for domain in data.domains))
    found = len(everything)
    if min(found, number) < 2:
        raise BadInput(f"public is {name!r}, of which {min(found, number)} images are there; at least 2 are needed")
    chosen = torch.arange(min(found, number)) * found // min(found, number)
    return torch.cat([_resized(everything.take(part)[0], size) for part in chosen.split(_AT_ONCE)])


def _opened(name: str) -> DomainDataset:
    try:
        return load(name)
    except BadInput:
        if name not in DATASETS:
            raise
        missing = f"public is {name!r}, which is not prepared on this machine"  # without its paths: a site tells this to others
        raise BadInput(f"{missing}; run unseen data prepare {name} --from FOLDER") from None


def _resized(images: Tensor, size: tuple[int, int]) -> Tensor:
    if tuple(images.shape[2:]) == size:
        return images
    return F.interpolate(images.float(), size, mode="bilinear", antialias=True).round().clamp(0, 255).byte()
