"""Is an answer what was asked for and what its fields declare? Checked before it counts, whoever sent it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from unseen.codec import CodecError, hints_of, without_none
from unseen.errors import RefusedReply
from unseen.payload import OF_A_NETWORK, Declaration, Payload, bases, declarations, is_by_name, refuse_unusable
from unseen.state import State
from unseen.world import World

__all__ = ["AnswerOutline", "Checker", "odd_ones_out", "outline_of", "read_answer"]

Outline = dict[str, tuple[torch.Size, torch.dtype]]
AnswerOutline = dict[str, Hashable]
_MOST_NUMBERS = 10_000  # in one list or table of scores
_LARGEST = 2**53  # beyond it a float64 does not tell whole numbers apart


def read_answer(kind: type[Payload], data: bytes) -> Payload:
    """The declared payload in these bytes, every number finite, or RefusedReply."""
    try:
        answer = kind.from_bytes(data)
    except (CodecError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise RefusedReply(f"not a {kind.__name__}: {type(error).__name__}") from error
    refuse_unusable(answer, kind)
    return answer


class Checker:
    """Knows the networks of a run, and so what each declared field of an answer must look like."""

    def __init__(self, world: World) -> None:
        self._entries = {role: world.entries(role) for role in world.builders}

    def refuse_misfit(self, answer: Payload, question: Payload, samples: int) -> None:
        """Raise RefusedReply for a field that is not what its declaration says; `samples` is how many the client holds."""
        asked = bases(type(question), type(answer))
        for name, told in declarations(type(answer)).items():
            value = getattr(answer, name)
            if value is None:
                continue
            if told.kind in OF_A_NETWORK:
                self._refuse_other_entries(name, told, value.values() if is_by_name(type(answer), name) else [value])
            elif told.kind == "count" and not 0 <= value <= samples:
                raise RefusedReply(f"{name} is {value}; the site holds {samples} samples")
            elif told.kind == "number" and not abs(value) <= _LARGEST:
                raise RefusedReply(f"{name} is larger than any number that is taken")
            elif told.kind == "score" and name in asked and value.keys() != (candidates := getattr(question, asked[name]) or {}).keys():
                raise RefusedReply(f"{name} is about {len(value)} of {asked[name]}; it was asked about {len(candidates)}")
            elif isinstance(value, dict | list) and len(value) > _MOST_NUMBERS:
                raise RefusedReply(f"{name} holds {len(value):,} entries; at most {_MOST_NUMBERS:,} are taken")

    def _refuse_other_entries(self, name: str, told: Declaration, states: Iterable[State]) -> None:
        """Names, shapes and types of the declared part; gradients and control variates are of parameters alone."""
        if told.role not in self._entries:
            raise RefusedReply(f"{name} is declared of the role {told.role!r}; this run has {', '.join(self._entries)}")
        entries = self._entries[told.role]
        wanted = {
            key: entries.outline[key] for key in entries.names(told.part) if told.kind in ("model", "update") or key in entries.parameters
        }
        for state in states:
            if not _fits(_outline(state), wanted):
                part = "" if told.part == "whole" else f"{told.part} of the "
                raise RefusedReply(f"{name} has not the names, shapes and types of the {part}network {told.role!r}")


def outline_of(answer: Payload) -> AnswerOutline:
    """Type and shape of each field that is one tensor (but for its number of entries) or one network's weights."""
    hints = {name: without_none(hint)[0] for name, hint in hints_of(type(answer)).items() if getattr(answer, name) is not None}
    tensors = {name: getattr(answer, name) for name, hint in hints.items() if hint is Tensor}
    states = {name: getattr(answer, name) for name, hint in hints.items() if hint == State}
    outline: AnswerOutline = {name: (value.dtype, value.shape[1:]) for name, value in tensors.items()}
    return outline | {name: tuple((key, t.dtype, t.shape) for key, t in sorted(state.items())) for name, state in states.items()}


def odd_ones_out(answers: Mapping[str, AnswerOutline]) -> dict[str, str]:
    """Whose tensors differ from those of most sites, and how."""
    shapes: dict[str, dict[Any, list[str]]] = {}
    for client, outline in sorted(answers.items()):
        for name, form in outline.items():
            shapes.setdefault(name, {}).setdefault(form, []).append(client)
    odd: dict[str, str] = {}
    for field_name, groups in shapes.items():
        usual = max(groups, key=lambda key: len(groups[key]))
        for key, clients in groups.items():
            if key != usual:
                odd |= dict.fromkeys(clients, f"{field_name} differs in shape or type from that of the other sites")
    return odd


def _fits(found: Outline, wanted: Outline) -> bool:
    """The same names and shapes, and the same types; floats may come in double precision, where a method works in it."""
    return found.keys() == wanted.keys() and all(
        shape == wanted[name][0] and (dtype == wanted[name][1] or (dtype == torch.float64 and wanted[name][1].is_floating_point))
        for name, (shape, dtype) in found.items()
    )


def _outline(state: State) -> Outline:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
