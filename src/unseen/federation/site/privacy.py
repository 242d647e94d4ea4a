"""Clipping and Gaussian noise at the site, and how much privacy was spent.

One answer is one use of the Gaussian mechanism with noise multiplier z (standard deviation z times the clipping norm) on all of
the site's data. Opacus's accountant adds up the Renyi divergences of all answers, whatever the noise of each, and turns
them into an epsilon. It is imported only where a policy switches privacy on.

The unit of protection is the site: what an answer would be with other data altogether. Noise comes from the operating system's
randomness, not from the run's seed, which the server knows.
"""

from __future__ import annotations

import dataclasses
import json
import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from unseen.errors import BadInput
from unseen.federation.site.policy import Privacy, Rejected
from unseen.files import write_atomically
from unseen.payload import Payload, bases, declarations, is_by_name

__all__ = ["Accountant", "epsilon", "privatised"]

Spent = tuple[float, int]  # noise multiplier, and how many answers left with it
# Renyi orders to choose the best from. Opacus's own end at 63, which is too early for much noise.
_ORDERS = [1 + 10 ** (k / 20) for k in range(-60, 101)]


def epsilon(history: Sequence[Spent], delta: float) -> float:
    """What answers with these noise multipliers spend together.

    >>> round(epsilon([(1.0, 1)], 1e-5), 2), epsilon([], 1e-5), epsilon([(0.0, 1)], 1e-5)
    (4.73, 0.0, inf)
    """
    accountant = _opacus().RDPAccountant()
    accountant.history = [(noise, 1.0, answers) for noise, answers in history if answers]
    if not accountant.history:
        return 0.0
    if any(noise == 0 for noise, _, _ in accountant.history):
        return math.inf
    return float(accountant.get_epsilon(delta, alphas=_ORDERS))


def _opacus() -> Any:
    try:
        import opacus.accountants
    except ImportError:
        raise BadInput("the policy switches privacy on, which needs opacus; run: pip install 'unseen[privacy]'") from None
    return opacus.accountants


class Accountant:
    """Counts a site's answers by their noise, over all runs, on its disk."""

    def __init__(self, privacy: Privacy, file: Path) -> None:
        self._privacy, self._file = privacy, file
        self._history = _read(file) if file.exists() else []
        if privacy.on:
            _opacus()

    def refuse_overspent(self) -> None:
        """Before the work is done: one more answer must not exceed what the policy allows."""
        total = epsilon(self._with_one_more(), self._privacy.delta)
        if total > self._privacy.most_epsilon:
            raise Rejected(f"privacy: epsilon would be {total:.2f}, at most {self._privacy.most_epsilon:g} may be spent")

    def spend(self) -> float:
        """Note one more answer before it leaves; the epsilon of all answers so far."""
        history = self._with_one_more()
        write_atomically(self._file, json.dumps({"answers": [{"noise": noise, "number": number} for noise, number in history]}))
        self._history = history
        return epsilon(history, self._privacy.delta)

    def _with_one_more(self) -> list[Spent]:
        numbers = dict(self._history)
        numbers[self._privacy.noise] = numbers.get(self._privacy.noise, 0) + 1
        return list(numbers.items())


def _read(file: Path) -> list[Spent]:
    """A site that cannot tell what it spent spends no more."""
    try:
        history = [(float(one["noise"]), int(one["number"])) for one in json.loads(file.read_text())["answers"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{file}, which tells how much privacy was spent, cannot be read ({type(error).__name__})") from error
    if not all(noise >= 0 and number >= 0 for noise, number in history):
        raise BadInput(f"{file}, which tells how much privacy was spent, holds a negative number")
    return history


def privatised(up: Payload, down: Payload, privacy: Privacy) -> Payload:
    """An answer whose difference from the question, all fields together, is clipped and noised.

    A model is compared with the weights in the question that it declares it was trained from; everything else is itself the
    difference. Integer buffers of a model stay what they were in the question. Counts of samples leave as they are: they are on the
    site's card already. Text is refused.
    """
    rng = torch.Generator().manual_seed(secrets.randbits(63))
    texts = [name for name, told in declarations(type(up)).items() if told.kind == "text" and getattr(up, name) is not None]
    if texts:
        raise Rejected(f"privacy: {texts[0]} is text, to which no noise can be added")
    based = bases(type(down), type(up))
    fields = {name: told for name, told in declarations(type(up)).items() if told.kind not in ("count", "text")}
    versions = [name for name, told in fields.items() if told.kind == "model" and name in based]
    starts = {name: _start(up, name, down, based[name]) for name in versions}
    flat = [change for name in fields for change in _changes(getattr(up, name), starts.get(name))]
    norm = math.sqrt(sum(float(t.double().square().sum()) for t in flat))
    factor = min(1.0, privacy.clip / norm) if norm > 0 else 1.0

    def noisy(change: Tensor) -> Tensor:
        noise = torch.randn(change.shape, generator=rng, dtype=torch.float64) * (privacy.noise * privacy.clip)
        return (change.double() * factor + noise).to(change.dtype)

    private: Payload = dataclasses.replace(cast(Any, up), **{name: _rebuilt(getattr(up, name), starts.get(name), noisy) for name in fields})
    return private


def _start(up: Payload, name: str, down: Payload, base: str) -> Any:
    """Where a model, or each of several by name, started from: the same, or the one of its name; nothing where there is none."""
    value, start = getattr(up, name), getattr(down, base)
    if value is None or start is None or not is_by_name(type(up), name):
        return start
    return {key: start.get(key) if is_by_name(type(down), base) else start for key in value}


def _changes(value: Any, start: Any) -> Iterator[Tensor]:
    """Every number of a field that is clipped and noised, as the difference from where it started."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value if start is None else value - start
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _changes(inner, None if start is None else start[key])
    elif isinstance(value, list):
        yield torch.tensor(value, dtype=torch.float64)
    elif isinstance(value, int | float):
        yield torch.tensor(float(value), dtype=torch.float64)


def _rebuilt(value: Any, start: Any, noisy: Callable[[Tensor], Tensor]) -> Any:
    """The field with every difference made noisy. An integer tensor is its start's, or zero where there is none."""
    if isinstance(value, Tensor):
        if not value.is_floating_point():
            return torch.zeros_like(value) if start is None else start.clone()
        return noisy(value) if start is None else start + noisy(value - start)
    if isinstance(value, dict):
        return {key: _rebuilt(inner, None if start is None else start[key], noisy) for key, inner in value.items()}
    if isinstance(value, list):
        return noisy(torch.tensor(value, dtype=torch.float64)).tolist()
    if isinstance(value, float):
        return float(noisy(torch.tensor(value, dtype=torch.float64)))
    if isinstance(value, int):
        return round(float(noisy(torch.tensor(float(value), dtype=torch.float64))))
    return value
