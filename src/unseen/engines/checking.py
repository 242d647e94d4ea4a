"""Is an answer what was asked for and what its fields declare? Checked before it counts, whoever sent it.

Whatever goes wrong while an answer is read is a refusal of that answer: its sender is left out, and the run goes on.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from unseen.codec import TENSOR_TYPES, decode, hints_of, tensors_in, without_none
from unseen.engines.ranges import Ranges
from unseen.errors import RefusedReply
from unseen.method import Method
from unseen.payload import OF_A_NETWORK, Declaration, Payload, bases, declarations, is_by_name, refuse_unusable
from unseen.scoring import Scores
from unseen.state import State
from unseen.world import World

__all__ = ["AnswerOutline", "Checker", "outline_from_plain", "outline_of", "outline_to_plain", "read_answer", "refuse_other_forms"]

Outline = dict[str, tuple[torch.Size, torch.dtype]]
Form = tuple[str, torch.dtype, tuple[int, ...]]  # of one tensor: its name in a state, its type and its shape
AnswerOutline = dict[str, Hashable]  # by field: a tuple of forms, in name order; a single tensor has no name
_MOST_NUMBERS = 10_000  # in one list or table of scores
_LARGEST = 2**53  # beyond it a float64 does not tell whole numbers apart
_USUAL_TYPES = frozenset(TENSOR_TYPES.values()) - {torch.float16, torch.bfloat16}


def read_answer(kind: type[Payload], data: bytes | memoryview, views: bool = False) -> Payload:
    """The declared payload in these bytes, every number finite, or RefusedReply, whatever the bytes are. `views` as in `decode`."""
    try:
        answer = decode(kind, data, views)
        refuse_unusable(answer, kind)
    except RefusedReply:
        raise
    except Exception as error:
        told = f": {error}"[:300] if isinstance(error, ValueError | TypeError) else ""
        raise RefusedReply(f"not a {kind.__name__}: {type(error).__name__}{told}") from error
    return answer


class Checker:
    """Knows the networks, the task and the images of a run, and so what each declared field of an answer must look like."""

    def __init__(self, world: World) -> None:
        self._entries = {role: world.entries(role) for role in world.builders}
        self._ranges = Ranges(world)
        self._types = _USUAL_TYPES | {dtype for entries in self._entries.values() for _, dtype in entries.outline.values()}
        self._own_models = type(world.experiment.method).local_model is not Method.local_model

    def refuse_bytes(
        self, kind: type[Payload], data: bytes | memoryview, question: Payload, samples: int, expected: AnswerOutline | None = None
    ) -> None:
        """RefusedReply unless the answer in these bytes is what was asked for: also for a mistake that nobody thought of."""
        answer = read_answer(kind, data, views=True)
        try:
            self.refuse_misfit(answer, question, samples, expected)
        except RefusedReply:
            raise
        except Exception as error:
            raise RefusedReply(f"a {kind.__name__} that cannot be checked: {type(error).__name__}") from error

    def refuse_misfit(self, answer: Payload, question: Payload, samples: int, expected: AnswerOutline | None = None) -> None:
        """Raise RefusedReply for a field that is not what its declaration says, and OutOfRange for a number that no honest site has.

        `samples` is how many the client holds. `expected` is what a rehearsal of the study answered: the tensors of single fields must
        have its types and shapes. A field that grows with the data may have other entries, each with the type and shape of one there.
        A field that may be None may be left out.
        """
        asked = bases(type(question), type(answer))
        for name, told in declarations(type(answer)).items():
            value = getattr(answer, name)
            if value is None:
                continue
            if name in asked and getattr(question, asked[name]) is None:
                raise RefusedReply(f"{name} is of {asked[name]}, which was not sent")
            self._refuse_other_types(name, told, value, type(answer))
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
            if told.kind == "spectrum" or (told.kind == "statistic" and told.grows):
                _refuse_other_number(name, told, value, samples)
        if isinstance(answer, Scores):
            self._refuse_other_metrics(answer)
        if expected is not None:
            refuse_other_forms(answer, expected)
        self._ranges.refuse_outside(answer, samples)

    def clamped(self, answer: Payload, samples: int) -> Payload:
        """The answer with every number inside its range: a site that added noise gives no accuracy of 1.3."""
        return self._ranges.clamped(answer, samples)

    def _refuse_other_types(self, name: str, told: Declaration, value: Any, kind: type[Payload]) -> None:
        for path, tensor in tensors_in(value, hints_of(kind)[name]):
            floating = tensor.is_floating_point() or told.kind != "spectrum"
            if tensor.dtype not in self._types or tensor.layout is not torch.strided or not floating:
                raise RefusedReply(f"{name}{'.' if path else ''}{path} is of the type {tensor.dtype}, which is not taken here")

    def _refuse_other_metrics(self, answer: Scores) -> None:
        """The task's metrics under their names, and those of a client's own model only where the method gives one."""
        for name, told in (("metrics", answer.metrics), ("own", answer.own or {})):
            strange = sorted(told.keys() - self._ranges.metrics)
            if strange:
                raise RefusedReply(f"{name} tells {strange[0]!r}, which is no metric of this task")
        if answer.own is not None and not self._own_models:
            raise RefusedReply("own tells of a client's own model; this method gives none")

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
    """Type and shape of each field that is one tensor or one state; where it grows with the data, without the number of entries."""
    outline: AnswerOutline = {}
    for name, told in declarations(type(answer)).items():
        value = getattr(answer, name)
        if value is not None and without_none(hints_of(type(answer))[name])[0] in (Tensor, State):
            state = {"": value} if isinstance(value, Tensor) else value
            forms = ((key, t.dtype, tuple(t.shape[1:] if told.grows else t.shape)) for key, t in state.items())
            outline[name] = tuple(sorted(forms, key=lambda form: form[0]))
    return outline


def outline_to_plain(outline: AnswerOutline) -> dict[str, list[list[Any]]]:
    """An outline as values that JSON holds.

    >>> outline_to_plain({"low": (("", torch.float32, (3, 1)),)})
    {'low': [['', 'float32', [3, 1]]]}
    """
    names = {dtype: name for name, dtype in TENSOR_TYPES.items()}
    return {field: [[key, names[dtype], list(shape)] for key, dtype, shape in forms] for field, forms in outline.items()}  # type: ignore[attr-defined]


def outline_from_plain(plain: Mapping[str, Any]) -> AnswerOutline:
    """The inverse of `outline_to_plain`; ValueError for anything else."""

    def form(item: Any) -> Form:
        key, dtype, shape = item
        if not isinstance(key, str) or dtype not in TENSOR_TYPES or not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"{item!r} is no name, type and shape of a tensor")
        return key, TENSOR_TYPES[dtype], tuple(shape)

    try:
        return {str(field): tuple(form(item) for item in forms) for field, forms in plain.items()}
    except (TypeError, AttributeError) as error:
        raise ValueError(f"no outline of an answer: {error}") from error


def refuse_other_forms(answer: Payload, expected: AnswerOutline) -> None:
    """RefusedReply unless tensors have the shapes and types of the rehearsal; what grows with the data may have more or fewer entries."""
    told = declarations(type(answer))
    found = outline_of(answer)
    for name, forms in found.items():
        here, wanted = cast(tuple[Form, ...], forms), cast(tuple[Form, ...], expected.get(name, ()))
        if here != wanted and not (told[name].grows and {form[1:] for form in here} <= {form[1:] for form in wanted}):
            raise RefusedReply(f"{name} has not the shapes and types that the study's rehearsal had")


def _refuse_other_number(name: str, told: Declaration, value: Any, samples: int) -> None:
    """At least one spectrum or row of statistics, since others draw from them, and no more than one an image."""
    what = "spectra" if told.kind == "spectrum" else "rows"
    for tensor in value.values() if isinstance(value, dict) else [value]:
        if isinstance(tensor, Tensor) and (tensor.ndim < 1 or not 1 <= len(tensor) <= samples):
            raise RefusedReply(f"{name} holds {len(tensor) if tensor.ndim else 'no'} {what}; the site holds {samples} samples")


def _fits(found: Outline, wanted: Outline) -> bool:
    """The same names and shapes, and the same types; floats may come in double precision, where a method works in it."""
    return found.keys() == wanted.keys() and all(
        shape == wanted[name][0] and (dtype == wanted[name][1] or (dtype == torch.float64 and wanted[name][1].is_floating_point))
        for name, (shape, dtype) in found.items()
    )


def _outline(state: State) -> Outline:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
