"""Many tensors at once: on a GPU a few launches, where a loop would take one for each tensor of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from unseen.codec import State

__all__ = ["copied", "copy_all"]


def copied(tensors: Mapping[str, Tensor]) -> State:
    """Copies that lie in memory as they would if they had travelled as bytes, so that sums over them come to the same bits either way.

    On a GPU models stay on the device, in the order that suits it.
    """
    copies = {name: torch.empty_like(tensor, memory_format=_order(tensor), requires_grad=False) for name, tensor in tensors.items()}
    copy_all([*copies.values()], [tensor.detach() for tensor in tensors.values()])
    return copies


def copy_all(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Each target becomes its source, in the target's type. Types go together: a list of several is copied one by one."""
    alike: dict[tuple[torch.dtype, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        pair = alike.setdefault((target.dtype, source.dtype), ([], []))
        pair[0].append(target)
        pair[1].append(source)
    for into, of in alike.values():
        torch._foreach_copy_(into, of)


def _order(tensor: Tensor) -> torch.memory_format:
    return torch.contiguous_format if tensor.device.type == "cpu" else torch.preserve_format
