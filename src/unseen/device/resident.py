"""Where a client's samples are read from: the disk or memory, or a device that all domains fit on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from unseen.data.domain import Domain, Samples

__all__ = ["SampleReader"]

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
        images = torch.from_numpy(np.ascontiguousarray(np.moveaxis(domain.images, 1, 3)))  # turned here: there it would take room twice
        labels = torch.from_numpy(np.array(domain.labels))
        self._held[id(domain)] = images.to(self.device), labels.to(self.device)

    def take(self, samples: Samples, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The images (uint8) and labels at these positions, in that order."""
        if len(samples.parts) == 1 and id(samples.parts[0][0]) in self._held:
            images, labels = self._held[id(samples.parts[0][0])]
            rows = torch.from_numpy(samples.parts[0][1][positions.numpy()]).to(self.device, non_blocking=True)
            return _channels_second(images[rows]), labels[rows]
        if samples.parts and all(id(domain) in self._held for domain, _ in samples.parts):
            return self._gather(samples, positions)
        images, labels = samples.take(positions)
        return images.to(self.device), labels.to(self.device)

    def _gather(self, samples: Samples, positions: Tensor) -> tuple[Tensor, Tensor]:
        part, row = samples.addresses
        where = positions.numpy()
        first_images, first_labels = self._held[id(samples.parts[0][0])]
        images = first_images.new_empty((len(where), *first_images.shape[1:]))
        labels = first_labels.new_empty((len(where), *first_labels.shape[1:]))
        for number, (domain, _) in enumerate(samples.parts):
            here = np.flatnonzero(part[where] == number)
            if len(here):
                to, rows = (torch.from_numpy(a).to(self.device) for a in (here, row[where[here]]))
                held_images, held_labels = self._held[id(domain)]
                images[to], labels[to] = held_images[rows], held_labels[rows]
        return _channels_second(images), labels


def _channels_second(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2)
