"""A user's own data set: a torch Dataset per domain, or a function that makes one, converted once into a DomainDataset."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import NDArray
from torch import Tensor

from unseen.data.domain import IMAGENET, UNIT, Domain, DomainDataset
from unseen.data.loading import load
from unseen.errors import BadInput
from unseen.own_code import Own, telling_where
from unseen.task import Classification, Segmentation, Task

__all__ = ["dataset_of", "open_data", "unfit_data"]

_CHANNELS = (1, 3, 4)
_SMALL = 64  # pixels up to which a small network is trained unless the user says otherwise


@functools.lru_cache(maxsize=2)
def open_data(data: str | Own, size: int | None) -> DomainDataset:
    """A data set by name or by a user's own code. A benchmark runs many experiments over one: it is made or opened once."""
    if isinstance(data, str):
        return load(data, size=size)
    thing, takes_size = data.thing, False
    if callable(thing) and not isinstance(thing, DomainDataset | Mapping):
        takes_size = "size" in inspect.signature(thing).parameters
        with telling_where(f"{data} failed"):
            thing = data(**({"size": size} if takes_size and size is not None else {}))
    if size is not None and not takes_size:
        raise BadInput(f"size is {size}, but {data} takes no `size`; make the images of that size there")
    return thing if isinstance(thing, DomainDataset) else dataset_of(thing, data.name)


def unfit_data(data: Any) -> str:
    """What is wrong with data that is neither a name nor a data set; '' for nothing that is known here."""
    several = isinstance(data, list | tuple)
    one = data[0] if several and data else data
    what = f"a {type(data).__name__}" + (f" of {type(one).__name__}s" if several and data else "")
    if isinstance(one, Domain):
        return f"data is {what}; give them with their task: DomainDataset(name, Classification(class names), (domain, domain, ...))"
    if isinstance(one, torch.utils.data.Dataset | torch.utils.data.DataLoader):
        return f"data is {what}; give a torch Dataset for each domain, by its name: data={{'north': dataset, 'south': dataset}}"
    if several or isinstance(data, np.ndarray | Tensor):
        return f"data is {what}; give a name (`unseen data` lists them), a DomainDataset, or a torch Dataset for each domain by its name"
    return ""


def dataset_of(domains: Any, name: str) -> DomainDataset:
    """A DomainDataset of one torch Dataset per domain, each of (image, label) pairs.

    An image is uint8, or float from 0 to 1: a tensor [channels, height, width], an array [height, width, channels], or of PIL. A label
    is a class number, or masks [height, width] or [structures, height, width] of 0 and 1. All images have one size.
    """
    if not isinstance(domains, Mapping) or not domains or not all(isinstance(key, str) for key in domains):
        raise BadInput(
            f"data is a {type(domains).__name__}; expected a torch Dataset per domain by name, such as {{'north': dataset, ...}}"
        )
    made = [replace(given, name=key) if isinstance(given, Domain) else _domain(key, given) for key, given in domains.items()]
    kinds = {d.labels.shape[1:2] for d in made}
    if len(kinds) > 1:
        raise BadInput("the domains differ in their labels: classes in some and masks in others, or another number of masks")
    task = _task(made, [getattr(dataset, "classes", None) for dataset in domains.values()])
    channels, small = made[0].images.shape[1], max(made[0].images.shape[2:]) <= _SMALL
    network = "unet" if isinstance(task, Segmentation) else "small_cnn" if small else "resnet18"
    return DomainDataset(name, task, tuple(made), pixels=IMAGENET if channels == 3 else UNIT, network=network)


def _task(domains: Sequence[Domain], named: Sequence[Any]) -> Task:
    labels = domains[0].labels
    if labels.ndim == 4:
        return Segmentation(("mask",) if labels.shape[1] == 1 else tuple(f"mask-{n}" for n in range(labels.shape[1])))
    known = [tuple(map(str, names)) for names in named if names is not None]
    if any(names != known[0] for names in known):
        raise BadInput(
            f"the domains name their classes differently: {', '.join(known[0])} and {', '.join(next(n for n in known if n != known[0]))}"
        )
    least, most = min(int(d.labels.min()) for d in domains), max(int(d.labels.max()) for d in domains)
    classes = known[0] if known else tuple(str(n) for n in range(most + 1))
    if least < 0 or most >= len(classes):
        raise BadInput(f"labels run from {least} to {most}; expected class numbers from 0 to {len(classes) - 1}")
    return Classification(classes)


def _domain(name: str, dataset: Any) -> Domain:
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise BadInput(f"domain {name!r} is a {type(dataset).__name__}; expected a torch Dataset of (image, label) pairs with a length")
    if not len(dataset):
        raise BadInput(f"domain {name!r} has no samples")
    images, labels = [], []
    for number in range(len(dataset)):
        where = f"sample {number} of domain {name!r}"
        with telling_where(f"{where} cannot be read"):
            pair = dataset[number]
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise BadInput(f"{where} is a {type(pair).__name__}; expected a pair (image, label)")
        images.append(_image(pair[0], where))
        labels.append(_label(pair[1], where))
        if images[-1].shape != images[0].shape:
            raise BadInput(f"{where} is {_shape(images[-1])} and the first is {_shape(images[0])}; resize them to one size in the data set")
        if labels[-1].shape != labels[0].shape:
            raise BadInput(f"the label of {where} is {list(labels[-1].shape)} and the first is {list(labels[0].shape)}")
    if labels[0].ndim and labels[0].shape[1:] != images[0].shape[1:]:
        raise BadInput(f"domain {name!r} has masks of {labels[0].shape[1:]} for images of {images[0].shape[1:]}")
    return Domain(name, np.stack(images), np.stack(labels))


def _image(given: Any, where: str) -> NDArray[np.uint8]:
    tensor = isinstance(given, Tensor)
    array = given.detach().cpu().numpy() if tensor else np.asarray(given)
    if array.ndim == 2:
        array = array[None]
    if array.ndim != 3 or array.dtype.kind not in "uif":
        raise BadInput(f"the image of {where} is {array.dtype} {list(array.shape)}; expected channels, height and width")
    if not tensor and array.shape[2] in _CHANNELS:  # arrays and PIL images have their channels last
        array = array.transpose(2, 0, 1)
    if array.shape[0] not in _CHANNELS:
        raise BadInput(
            f"the image of {where} is {list(array.shape)}; expected a tensor [c, h, w] or an array [h, w, c] with c of 1, 3 or 4"
        )
    top = 1 if array.dtype.kind == "f" else 255
    if not (array.min() >= 0 and array.max() <= top):
        undo = "; leave out Normalize, which is done later" if top == 1 else ""
        raise BadInput(f"the image of {where} runs from {array.min():g} to {array.max():g}; expected 0 to {top}{undo}")
    return np.ascontiguousarray(np.rint(array * 255) if top == 1 else array).astype(np.uint8)


def _label(given: Any, where: str) -> NDArray[Any]:
    array = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    if array.ndim == 0 and array.dtype.kind in "iu":
        return array.astype(np.int64)
    if array.ndim in (2, 3) and array.dtype.kind in "biuf" and np.isin(array, (0, 1)).all():
        return (array[None] if array.ndim == 2 else array).astype(np.uint8)
    raise BadInput(f"the label of {where} is {array.dtype} {list(array.shape)}; expected a class number, or masks of 0 and 1")


def _shape(image: NDArray[np.uint8]) -> str:
    return f"{image.shape[0]} x {image.shape[1]} x {image.shape[2]}"
