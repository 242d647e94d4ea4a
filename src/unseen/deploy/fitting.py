"""Data brought to a model's labels: a site may have fewer classes, or its structures in another order."""

from __future__ import annotations

import numpy as np

from unseen.data.domain import Domain, DomainDataset
from unseen.errors import BadInput
from unseen.task import Task

__all__ = ["fitted"]


def fitted(data: DomainDataset, task: Task, channels: int, size: tuple[int, int]) -> tuple[Domain, ...]:
    """The domains with labels numbered as the model's task numbers them, or BadInput with all that does not fit."""
    if data.task.name != task.name:
        raise BadInput(f"{data.name} is for {data.task.name}; this model does {task.name}")
    here, problems = data.task.labels, []
    if (data.channels, *data.size) != (channels, *size):
        problems.append(f"{data.name} has images {[data.channels, *data.size]}; this model takes {[channels, *size]}")
    unknown = [name for name in here if name not in task.labels]
    if unknown:
        problems.append(f"{data.name} has {', '.join(unknown)}, which the model never saw; it knows {', '.join(task.labels)}")
    if task.name == "segmentation" and set(here) != set(task.labels):
        problems.append(f"{data.name} has masks of {', '.join(here)}; this model draws {', '.join(task.labels)}")
    problems += [f"site {d.name!r} has no images" for d in data.domains if not len(d)]
    if problems:
        raise BadInput(problems)
    if here == task.labels:
        return data.domains
    if task.name == "classification":
        number = np.array([task.labels.index(name) for name in here], dtype=np.int64)
        return tuple(Domain(d.name, d.images, number[np.asarray(d.labels)], d.groups, d.split, d.spacing) for d in data.domains)
    order = [here.index(name) for name in task.labels]
    return tuple(Domain(d.name, d.images, d.labels[:, order], d.groups, d.split, d.spacing) for d in data.domains)
