"""What a site lets out. Its owner writes it; the site enforces it before anything is sent."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from unseen.errors import BadInput, nearest
from unseen.payload import Carried, Kind

__all__ = ["KINDS", "Policy", "Privacy", "Rejected", "read_policy"]

KINDS: tuple[str, ...] = get_args(Kind)


class Rejected(Exception):
    """A rule of the site forbids it. The text names the rule and is sent to the server."""


@dataclass(frozen=True)
class Privacy:
    """Clipping and Gaussian noise on everything that leaves, and the most that may be spent."""

    on: bool = False
    clip: float = 1.0  # largest L2 norm of what one answer changes, all its fields together
    noise: float = 1.0  # standard deviation of the noise, in multiples of clip
    delta: float = 1e-5
    most_epsilon: float = 10.0
    announced_samples: int = 100  # leaves in place of every count of samples


@dataclass(frozen=True)
class Policy:
    """The rules of a site. As it stands: any method, but models and their changes, counts, plain numbers and scores only."""

    methods: tuple[str, ...] = ("*",)
    kinds: tuple[str, ...] = ("model", "update", "control", "count", "number", "score")
    fields_that_grow: bool = False  # fields whose size grows with the data (one entry per image)
    most_megabytes_a_round: float = 1000.0
    minimum_samples: int = 1
    minimum_clients: int = 2  # in the federation's run, this one included
    scores: str = "every-round"  # or "last-round": whether the global model's score leaves in every round
    privacy: Privacy = field(default_factory=Privacy)

    def check_run(self, method: str, samples: int, clients: int) -> None:
        """Before any work is done."""
        if "*" not in self.methods and method not in self.methods:
            raise Rejected(f"methods: {method} is not among {', '.join(self.methods)}")
        if samples < self.minimum_samples:
            raise Rejected(f"minimum_samples: fewer than {self.minimum_samples}")
        if clients < self.minimum_clients:
            raise Rejected(f"minimum_clients: {clients} take part, {self.minimum_clients} are asked for")

    def check_score(self, last_round: bool) -> None:
        if self.scores == "last-round" and not last_round:
            raise Rejected("scores: this site gives its score after the last round alone")

    def check_leaving(self, fields: Sequence[Carried], already: int) -> None:
        """Before an answer is sent; `already` is what left in this round before."""
        for one in fields:
            if one.bytes and one.kind not in self.kinds:
                raise Rejected(f"kinds: {one.field} is a {one.kind}; only {', '.join(self.kinds)} may leave")
            if one.bytes and one.grows and not self.fields_that_grow:
                raise Rejected(f"fields_that_grow: {one.field} grows with the data")
        total = already + sum(one.bytes for one in fields)
        if total > self.most_megabytes_a_round * 1e6:
            raise Rejected(f"most_megabytes_a_round: {total / 1e6:.1f} MB, at most {self.most_megabytes_a_round:g}")


def read_policy(file: Path | None) -> Policy:
    """A site's policy; the default one where there is no file."""
    if file is None:
        return Policy()
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInput(f"no file {file}") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} is not a TOML file: {error}") from None
    problems: list[str] = []
    privacy = _read(Privacy, values.pop("privacy", {}), "privacy.", problems)
    policy: Policy = _read(Policy, values, "", problems)
    problems += [f"kinds: no kind {k!r}{nearest(str(k), KINDS)}" for k in policy.kinds if k not in KINDS]
    if policy.scores not in ("every-round", "last-round"):
        problems.append(f"scores is {policy.scores!r}; expected 'every-round' or 'last-round'")
    sensible = 1e-30 <= privacy.clip <= 1e30 and 1e-6 <= privacy.noise <= 1e6 and 0 < privacy.most_epsilon < math.inf
    if not (sensible and 0 < privacy.delta < 1 and privacy.announced_samples >= 1):
        expected = "clip from 1e-30 to 1e30, noise from 1e-6 to 1e6, a finite most_epsilon > 0, 0 < delta < 1 and announced_samples >= 1"
        problems.append(f"privacy: expected {expected}")
    if problems:
        raise BadInput([f"{file}: {problem}" for problem in problems])
    return dataclasses.replace(policy, privacy=privacy)


def _read(cls: type[Any], values: Any, where: str, problems: list[str]) -> Any:
    """An object of `cls` from a TOML table; what does not fit goes into `problems`."""
    if not isinstance(values, Mapping):
        problems.append(f"{where.rstrip('.')} is {values!r}; expected a table")
        return cls()
    known = {f.name: f for f in dataclasses.fields(cls) if f.name != "privacy"}
    ready: dict[str, Any] = {}
    for key, value in values.items():
        if key not in known:
            problems.append(f"no rule {where + key!r}{nearest(key, known)}")
            continue
        wanted = type(known[key].default)
        if wanted is tuple and isinstance(value, list) and all(isinstance(v, str) for v in value):
            ready[key] = tuple(value)
        elif wanted is float and isinstance(value, int | float) and not isinstance(value, bool):
            ready[key] = float(value)
        elif type(value) is wanted and wanted is not tuple:
            ready[key] = value
        else:
            problems.append(f"{where}{key} is {value!r}; expected {'a list of names' if wanted is tuple else wanted.__name__}")
    return cls(**ready)
