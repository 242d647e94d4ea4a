"""Is an answer from another machine what was asked for? Checked before it counts, whatever the site that sent it."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from unseen.codec import CodecError
from unseen.errors import RefusedReply
from unseen.networks.norm import batch_norm_names
from unseen.payload import Payload, carried, refuse_unusable
from unseen.state import State
from unseen.world import World

__all__ = ["AnswerOutline", "Checker", "odd_ones_out", "outline_of", "read_answer"]

Outline = dict[str, tuple[torch.Size, torch.dtype]]
AnswerOutline = dict[str, Hashable]
_MOST_NUMBERS = 10_000  # in one list or table of scores


def read_answer(kind: type[Payload], data: bytes) -> Payload:
    """The declared payload in these bytes, every number finite, or RefusedReply."""
    try:
        answer = kind.from_bytes(data)
    except (CodecError, ValueError, TypeError, OverflowError, MemoryError) as error:
        raise RefusedReply(f"not a {kind.__name__}: {type(error).__name__}") from error
    refuse_unusable(answer, kind)
    return answer


class Checker:
    """Knows the networks of a run, and so what a model's weights must look like."""

    def __init__(self, world: World) -> None:
        self._outlines = [outline for make in world.builders.values() for outline in _outlines(make())]

    def refuse_misfit(self, answer: Payload, question: Payload, samples: int) -> None:
        """Raise RefusedReply for weights of no network of this run, scores of nothing asked, or more samples than there are."""
        kinds = {field.field: field.kind for field in carried(answer)}
        candidates = _keys_asked(question)
        for field in dataclasses.fields(cast(Any, answer)):
            name, value = field.name, getattr(answer, field.name)
            if kinds[name] == "model" and isinstance(value, dict):
                self._refuse_foreign_weights(name, value)
            elif isinstance(value, dict) and candidates and kinds[name] == "score" and value.keys() != candidates:
                raise RefusedReply(f"{name} is about {len(value)} models; it was asked about {len(candidates)} others")
            elif isinstance(value, dict | list) and len(value) > _MOST_NUMBERS:
                raise RefusedReply(f"{name} holds {len(value):,} entries; at most {_MOST_NUMBERS:,} are taken")
            elif isinstance(value, int) and not 0 <= value <= samples:
                raise RefusedReply(f"{name} is {value}; the site holds {samples} samples")

    def _refuse_foreign_weights(self, name: str, value: dict[str, Any]) -> None:
        nested = value and all(isinstance(v, dict) for v in value.values())
        for state in value.values() if nested else [value]:
            if not any(_fits(_outline(state), outline) for outline in self._outlines):
                raise RefusedReply(f"{name} has not the names, shapes and types of a network of this run")


def outline_of(answer: Payload) -> AnswerOutline:
    """Type and shape of each field that is one tensor (but for its number of entries) or one network's weights."""
    values = {field.name: getattr(answer, field.name) for field in dataclasses.fields(cast(Any, answer))}
    tensors: AnswerOutline = {name: (value.dtype, value.shape[1:]) for name, value in values.items() if isinstance(value, Tensor)}
    states = {name: v for name, v in values.items() if isinstance(v, dict) and all(isinstance(t, Tensor) for t in v.values())}
    return tensors | {name: tuple((key, t.dtype, t.shape) for key, t in sorted(state.items())) for name, state in states.items()}


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


def _outlines(net: torch.nn.Module) -> list[Outline]:
    """Weights travel whole, or parameters and buffers apart, or without the batch norms, which then stay with the client."""
    parameters, norms = {name for name, _ in net.named_parameters()}, batch_norm_names(net)
    whole = _outline(net.state_dict())
    return [
        whole,
        {n: o for n, o in whole.items() if n in parameters},
        {n: o for n, o in whole.items() if n not in parameters},
        {n: o for n, o in whole.items() if n not in norms},
    ]


def _fits(found: Outline, wanted: Outline) -> bool:
    """The same names and shapes, and the same types; floats may come in double precision, where a method works in it."""
    return found.keys() == wanted.keys() and all(
        shape == wanted[name][0] and (dtype == wanted[name][1] or (dtype == torch.float64 and wanted[name][1].is_floating_point))
        for name, (shape, dtype) in found.items()
    )


def _outline(state: State) -> Outline:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}


def _keys_asked(question: Payload) -> set[str]:
    """The candidates in a question that carries models by name."""
    for field in dataclasses.fields(cast(Any, question)):
        value = getattr(question, field.name)
        if isinstance(value, dict) and value and all(isinstance(v, dict) for v in value.values()):
            return set(value)
    return set()
