"""Domains, the data sets they form, and the samples that a client holds of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unseen.errors import BadInput, choose
from unseen.task import Task

__all__ = [
    "IMAGENET",
    "UNIT",
    "Domain",
    "DomainDataset",
    "Fold",
    "Holding",
    "Partition",
    "Pixels",
    "Protocol",
    "Samples",
    "batches_of",
    "normalise",
]


@dataclass(frozen=True)
class Pixels:
    """How stored bytes become a network's input: (byte / 255 - mean) / std, per channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def tensors(self, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, shaped to spread over a batch of images. To be read, not changed: all who ask get the same."""
        return _spread(self, torch.device(device))

    def normalised(self, images: Tensor) -> Tensor:
        """Images in 0 to 1 as a network takes them."""
        return normalise(images, *self.tensors(images.device))

    def restored(self, x: Tensor) -> Tensor:
        """The inverse: a network's input as images in 0 to 1."""
        mean, std = self.tensors(x.device)
        return x * std + mean


@lru_cache(maxsize=16)
def _spread(pixels: Pixels, device: torch.device) -> tuple[Tensor, Tensor]:
    """Copied to a device once: such a copy waits for all that the device has yet to do."""
    mean, std = (torch.tensor(values).view(1, -1, 1, 1).to(device) for values in (pixels.mean, pixels.std))
    return mean, std


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """`Pixels.normalised` for whoever keeps the two tensors on a device, or inside a model."""
    return (images - mean).div_(std)


UNIT = Pixels((0.0,), (1.0,))
IMAGENET = Pixels((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


@dataclass(frozen=True, eq=False)
class Domain:
    """The images of one site or style. Arrays may be memory-mapped; nothing is read until samples are taken."""

    name: str
    images: NDArray[np.uint8]  # [n, channels, height, width]
    labels: NDArray[Any]  # int64 [n], or masks uint8 {0, 1} [n, structures, height, width]
    groups: NDArray[np.str_] | None = None  # patient, slide or volume of each sample; never split between two parts
    split: NDArray[np.str_] | None = None  # official part of each sample: "train", "val" or "test"
    spacing: NDArray[np.float32] | None = None  # millimetres per pixel, [n, 2] (rows, columns)

    def __post_init__(self) -> None:
        problems = []
        for what in ("images", "labels"):
            value = getattr(self, what)
            array = value.detach().cpu().numpy() if isinstance(value, Tensor) else value if hasattr(value, "dtype") else np.asarray(value)
            object.__setattr__(self, what, _bytes_of(array) if what == "images" else array)
        if self.images.ndim == 4 and self.images.shape[3] in (1, 3, 4) and min(self.images.shape[1:3]) > 4:
            problems.append(f"domain {self.name!r}: images {self.images.shape} have their channels last; give images.transpose(0, 3, 1, 2)")
        if self.images.ndim != 4 or self.images.dtype != np.uint8:
            problems.append(
                f"domain {self.name!r}: images are {self.images.dtype} {self.images.shape}; expected uint8 [n, c, h, w], or 0 to 1"
            )
        for what in ("labels", "groups", "split", "spacing"):
            array = getattr(self, what)
            if array is not None and len(array) != len(self.images):
                problems.append(f"domain {self.name!r}: {len(array)} {what} for {len(self.images)} images")
        if problems:
            raise BadInput(problems)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        channels, height, width = self.images.shape[1:]
        what = "masks" if self.labels.ndim == 4 else "labels"
        return f"Domain({self.name!r}: {len(self):,} images {channels} x {height} x {width} with {what})"


def _bytes_of(images: NDArray[Any]) -> NDArray[Any]:
    """Numbers from 0 to 1 become bytes; whatever else is not bytes stays as it is, and is refused."""
    if images.dtype.kind == "f" and images.size and images.min() >= 0 and images.max() <= 1:
        return np.asarray(np.rint(images * 255), dtype=np.uint8)
    return images


def read_rows(domain: Domain, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Images and labels of a domain, from its arrays."""
    images, labels = (torch.from_numpy(np.ascontiguousarray(array[rows])) for array in (domain.images, domain.labels))
    return images, labels


ReadRows = Callable[[Domain, NDArray[np.int64]], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Samples:
    """Some samples of one domain or of several, in a fixed order: positions, not copies."""

    parts: tuple[tuple[Domain, NDArray[np.int64]], ...]

    def __len__(self) -> int:
        return sum(len(index) for _, index in self.parts)

    def __repr__(self) -> str:
        return f"Samples({', '.join(f'{len(index):,} of {domain.name}' for domain, index in self.parts)})"

    def take(self, positions: Tensor, read: ReadRows = read_rows) -> tuple[Tensor, Tensor]:
        """The images (uint8) and labels at these positions, as fresh tensors in that order. `read` gives rows of one domain."""
        where = positions.numpy()
        if len(self.parts) == 1:
            domain, index = self.parts[0]
            return read(domain, index[where])
        part, row = self.addresses
        images, labels = (one.new_empty((len(where), *one.shape[1:])) for one in read(self.parts[0][0], where[:0]))
        for number, (domain, _) in enumerate(self.parts):
            here = np.flatnonzero(part[where] == number)
            if len(here):
                to = torch.from_numpy(here).to(images.device, non_blocking=True)
                images[to], labels[to] = read(domain, row[where[here]])
        return images, labels

    @cached_property
    def addresses(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of every sample the number of its part, and its row there."""
        part = np.concatenate([np.full(len(index), n) for n, (_, index) in enumerate(self.parts)])
        return part.astype(np.int64), np.concatenate([index for _, index in self.parts])

    def spacing(self) -> Tensor | None:
        """Millimetres per pixel of every sample, [n, 2], where all of its domains know them."""
        known = [domain.spacing[index] for domain, index in self.parts if domain.spacing is not None]
        return torch.from_numpy(np.concatenate(known)) if known and len(known) == len(self.parts) else None

    def classes(self) -> NDArray[np.int64]:
        """The class of every sample, in order (classification only)."""
        return np.concatenate([np.asarray(domain.labels[index]) for domain, index in self.parts] or [np.empty(0)]).astype(np.int64)


@dataclass(frozen=True, eq=False)
class DomainDataset:
    """A data set of several domains: bring your own by making one of these."""

    name: str
    task: Task
    domains: tuple[Domain, ...]
    pixels: Pixels = IMAGENET
    network: str = "resnet18"  # what is trained on it unless the user says otherwise
    augment: str = "none"  # recipe, likewise
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if not isinstance(self.task, Task):
            raise BadInput(f"the task of {self.name!r} is {self.task!r}; give Classification(class names) or Segmentation(structures)")
        strange = [type(one).__name__ for one in self.domains if not isinstance(one, Domain)]
        if strange or not len(self.domains):
            raise BadInput(f"the domains of {self.name!r} are {', '.join(strange) or 'none'}; give a tuple of Domain(name, images, labels)")
        object.__setattr__(self, "domains", tuple(self.domains))
        names = [d.name for d in self.domains]
        problems = [f"data set {self.name!r} has two domains named {n!r}" for n in sorted({n for n in names if names.count(n) > 1})]
        if not isinstance(self.network, str):
            problems.append(f"the network of {self.name!r} is {self.network!r}; it is a name here: give your own to run(network=...)")
        if len({d.images.shape[1:] for d in self.domains}) > 1:
            shapes = ", ".join(f"{d.name} {d.images.shape[1:]}" for d in self.domains)
            problems.append(f"the domains of {self.name!r} differ in image shape ({shapes}); prepare them at one size")
        if problems:
            raise BadInput(problems)

    def __repr__(self) -> str:
        height, width = self.size
        held = ", ".join(f"{domain.name} ({len(domain):,})" for domain in self.domains)
        told = f"{self.task.name} of {', '.join(self.task.labels)}" if self.task.outputs <= 6 else f"{self.task.outputs} classes"
        return f"DomainDataset({self.name!r}: {held}; {told}; images {self.channels} x {height} x {width})"

    def __getitem__(self, name: str) -> Domain:
        choose(f"domain of {self.name}", name, self.names)
        return next(d for d in self.domains if d.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(d.name for d in self.domains)

    @property
    def channels(self) -> int:
        return int(self.domains[0].images.shape[1])

    @property
    def size(self) -> tuple[int, int]:
        height, width = self.domains[0].images.shape[2:]
        return int(height), int(width)


@dataclass(frozen=True, eq=False)
class Fold:
    """Which domains train and which stay unseen."""

    name: str
    sources: tuple[Domain, ...]
    targets: tuple[Domain, ...]
    held_out: tuple[Domain, ...] = ()  # source domains kept for selection; they do not train

    def __repr__(self) -> str:
        parts = (("train", self.sources), ("unseen", self.targets), ("held out", self.held_out))
        return f"Fold({'; '.join(f'{what}: ' + ', '.join(d.name for d in domains) for what, domains in parts if domains)})"


@dataclass(frozen=True, eq=False)
class Holding:
    """What one client holds. `domain` names its domain, or all of them joined by '+'."""

    client: str
    domain: str
    train: Samples
    validation: Samples

    def __repr__(self) -> str:
        return f"Holding({self.client!r} of {self.domain}: {len(self.train):,} to train, {len(self.validation):,} to validate)"


Protocol = Callable[[DomainDataset], Iterator[Fold]]
Partition = Callable[[Sequence[Domain], int], tuple[Holding, ...]]


def batches_of(samples: int, size: int, epochs: float, drop_last: bool) -> int:
    """How many batches `Client.batches` makes of so many passes.

    >>> batches_of(33, 16, 2, False), batches_of(34, 16, 2, False), batches_of(34, 16, 2.5, True)
    (4, 6, 5)
    """
    passes, share = divmod(epochs, 1)
    full, rest = divmod(samples, size)
    kept = rest > 0 and (rest == samples or rest >= (size if drop_last else min(size, 2)))
    return int(passes) * (full + kept) + (max(1, round(share * full)) if share else 0)
