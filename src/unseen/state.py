"""A network's weights and buffers by name: copied, compared, many tensors at once (a loop would launch one kernel for each on a GPU)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

__all__ = ["State", "copied", "copy_all", "same_bits", "state_of"]

State = dict[str, Tensor]


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


def state_of(net: nn.Module) -> State:
    """Weights and buffers, copied: later steps of the network do not change them."""
    return copied(net.state_dict())


def same_bits(a: State, b: State) -> bool:
    """Whether two states have the same names, types, shapes and bits (NaN equals NaN)."""
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and torch.equal(_bits(a[k]), _bits(b[k])) for k in a
    )


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
