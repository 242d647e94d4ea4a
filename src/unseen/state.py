"""A network's weights and buffers by name: copied, compared, and told apart by what they are.

Tensors are copied many at once: a loop would launch one kernel for each on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

__all__ = [
    "Entries", "Part", "State", "StoredState", "copied", "copy_all", "entries_of", "load_into", "on_the_host", "only", "same_bits",
    "state_of",
]  # fmt: skip

State = dict[str, Tensor]
Part = Literal["whole", "parameters", "buffers", "head", "backbone", "norms", "without-norms"]
_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)  # the first: batch and instance norm of any dimension


class StoredState(dict[str, Tensor]):
    """Weights that stay where they are stored: an entry is read whenever it is looked at, and is then the reader's own.

    To everybody it is a state; whoever knows better reads a large entry `part` by part. Nothing can be put into it.
    """

    def __init__(self, outline: State, read: Callable[[str, int, int], Tensor]) -> None:
        """`outline` has tensors of the right types and shapes that hold nothing; `read` gives an entry's numbers from one to another."""
        super().__init__(outline)
        self._read = read

    def part(self, key: str, first: int, last: int) -> Tensor:
        """So many of an entry's numbers, as they lie one behind the other."""
        return self._read(key, first, last)

    @property
    def outline(self) -> State:
        return {key: super(StoredState, self).__getitem__(key) for key in self}

    def __getitem__(self, key: str) -> Tensor:
        form = super().__getitem__(key)
        return self._read(key, 0, form.numel()).reshape(form.shape)

    def __iter__(self) -> Iterator[str]:  # told here, so that no copy takes the outline for the numbers
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 -- this is what it would call

    def items(self) -> ItemsView[str, Tensor]:  # type: ignore[override]
        return ItemsView(self)

    def values(self) -> ValuesView[Tensor]:  # type: ignore[override]
        return ValuesView(self)

    def copy(self) -> State:
        return dict(self)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("weights that are stored elsewhere cannot be changed; make a dict of them first")

    __setitem__ = __delitem__ = __ior__ = pop = popitem = setdefault = update = clear = _refuse


@dataclass(frozen=True)
class Entries:
    """What a network's state consists of: every entry's shape and type, and which of them are what."""

    outline: Mapping[str, tuple[torch.Size, torch.dtype]]  # in the order of the state
    parameters: frozenset[str]  # trained; the others are buffers
    head: frozenset[str]  # the layer that turns features into logits, where the network names one
    norms: frozenset[str]  # parameters and statistics of normalisation layers

    def names(self, part: Part = "whole") -> list[str]:
        """The entries of a part, in the order of the state."""
        inside = {
            "whole": self.outline.keys(),
            "parameters": self.parameters,
            "buffers": self.outline.keys() - self.parameters,
            "head": self.head,
            "backbone": self.outline.keys() - self.head,
            "norms": self.norms,
            "without-norms": self.outline.keys() - self.norms,
        }[part]
        return [name for name in self.outline if name in inside]


def entries_of(net: nn.Module, head: nn.Module | None = None) -> Entries:
    """What the state of a network consists of; `head` is its layer that gives logits. Layers are known by their type, never by their name.

    >>> entries_of(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))).names("without-norms")
    ['0.weight', '0.bias']
    """
    state = net.state_dict()
    inside_head: set[int] = set() if head is None else {id(module) for module in head.modules()}
    owners = {f"{prefix}." if prefix else "": module for prefix, module in net.named_modules()}

    def within(wanted: Callable[[nn.Module], bool]) -> frozenset[str]:
        prefixes = tuple(prefix for prefix, module in owners.items() if wanted(module))
        return frozenset(name for name in state if name.startswith(prefixes)) if prefixes else frozenset()

    return Entries(
        outline={name: (value.shape, value.dtype) for name, value in state.items()},
        parameters=frozenset(name for name, _ in net.named_parameters(remove_duplicate=False)) & state.keys(),
        head=within(lambda module: id(module) in inside_head),
        norms=within(lambda module: isinstance(module, _NORMS) or bool(getattr(module, "normalises", False))),
    )


def only(state: State, names: Iterable[str]) -> State:
    """These entries alone."""
    return {name: state[name] for name in names}


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


def on_the_host(state: State) -> State:
    """The state in this machine's own memory. It leaves a device in one copy for each type: a copy for each entry would wait as often."""
    state, there = state.copy(), State()
    alike: dict[torch.dtype, list[str]] = {}
    for name, value in state.items():
        alike.setdefault(value.dtype, []).append(name)
    for names in alike.values():
        if not any(state[name].is_cuda for name in names):
            there |= {name: state[name].cpu() for name in names}
            continue
        flat = torch.cat([state[name].detach().flatten() for name in names])
        fast = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat)  # over memory that the device can write to
        pieces = fast.clone().split([state[name].numel() for name in names])
        there |= {name: piece.view(state[name].shape) for name, piece in zip(names, pieces, strict=True)}
    return {name: there[name] for name in state}


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


def load_into(net: nn.Module, state: State) -> None:
    """`load_state_dict` in a few launches on a GPU; where something does not fit, that one says what."""
    own = net.state_dict()
    if own.keys() == state.keys() and all(value.shape == state[name].shape for name, value in own.items()):
        copy_all(list(own.values()), [state[name] for name in own])
    else:
        net.load_state_dict(state)
