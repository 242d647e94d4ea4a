"""Where a client's samples are read from: the disk or memory, or a device that all domains fit on."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.data.domain import Domain, Samples

__all__ = ["SampleReader"]

_AT_ONCE = 512  # images
_SHARE = 0.5  # of a device's free memory that data may take


class SampleReader:
    """Gives samples as tensors on a device. On a GPU the domains are copied there once, if they fit, channels last."""

    def __init__(self, domains: tuple[Domain, ...], device: torch.device) -> None:
        self.device = device
        self._held: dict[int, tuple[Tensor, Tensor]] = {}
        size = sum(domain.images.nbytes + domain.labels.nbytes for domain in domains)
        if device.type == "cuda" and size < _SHARE * torch.cuda.mem_get_info(device)[0]:
            for domain in domains:
                self.hold(domain)

    def hold(self, domain: Domain) -> None:
        n, channels, height, width = domain.images.shape
        images = torch.empty((n, height, width, channels), dtype=torch.uint8, device=self.device)
        for start in range(0, n, _AT_ONCE):  # turned there, where it is faster; a piece at a time, or it would take room twice
            piece = torch.from_numpy(np.array(domain.images[start : start + _AT_ONCE]))
            images[start : start + _AT_ONCE] = piece.to(self.device).permute(0, 2, 3, 1)
        self._held[id(domain)] = images, torch.from_numpy(np.array(domain.labels)).to(self.device)

    def take(self, samples: Samples, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The images (uint8) and labels at these positions, in that order."""
        if samples.parts and all(id(domain) in self._held for domain, _ in samples.parts):
            images, labels = samples.take(positions, self._held_rows)
            return images.permute(0, 3, 1, 2), labels
        images, labels = samples.take(positions)
        return images.to(self.device), labels.to(self.device)

    def _held_rows(self, domain: Domain, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Rows of a domain on the device, channels last."""
        images, labels = self._held[id(domain)]
        there = torch.from_numpy(rows).to(self.device, non_blocking=True)
        return images[there], labels[there]
