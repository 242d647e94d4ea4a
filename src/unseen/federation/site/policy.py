"""What a site lets out. Its owner writes it; the site enforces it before anything is sent."""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from unseen.data.sets.registry import DATASETS
from unseen.errors import BadInput, nearest
from unseen.federation.study.study import Leaving
from unseen.federation.sums.summable import drawn_sites
from unseen.payload import OF_A_NETWORK, Carried, Kind

__all__ = ["KINDS", "Policy", "Privacy", "Rejected", "StudyFacts", "read_policy"]

KINDS: tuple[str, ...] = get_args(Kind)
_CHOICES = {"scores": ("every-round", "last-round"), "studies": ("by-hand", "by-rule")}


class Rejected(Exception):
    """A rule of the site forbids it. The text names the rule and is sent to the server."""


@dataclass(frozen=True)
class StudyFacts:
    """What the rules look at: facts of a study that the site read or worked out itself, none of them a message's word."""

    method: str
    rounds: int
    participation: float  # share of the training sites that is drawn for each round
    plan: Sequence[Leaving]
    passed_on: frozenset[str]  # kinds that other sites get of this one's answers, one by one
    exposures: Mapping[str, float]  # of the method, by name
    public_sets: frozenset[str]  # data sets beside the site's own that the method reads
    sums: bool
    known_clients: int  # training sites whose keys this site knows
    strangers: int  # those whose keys it does not know
    trains: bool
    samples: tuple[int, int]  # in training and validation
    classes: Sequence[int]  # in each part, where there are classes

    @property
    def train_and_validation(self) -> int:
        return self.samples[0] if self.trains else self.samples[1]


@dataclass(frozen=True)
class Privacy:
    """Clipping and Gaussian noise on everything that leaves, and the most that may be spent."""

    on: bool = False
    clip: float = 1.0  # largest L2 norm of what one answer changes, all its fields together
    noise: float = 1.0  # standard deviation of the noise, in multiples of clip
    delta: float = 1e-5
    most_epsilon: float = 10.0
    announced_samples: int = 100  # the number that is given wherever a count is asked for: chosen by the owner, so it tells nothing


@dataclass(frozen=True)
class Policy:
    """The rules of a site. As they stand: a person approves each study, any method may run, and models, their changes, counts, plain
    numbers and scores may leave, none of which rests on a few images alone."""

    studies: str = "by-hand"  # or "by-rule": a study that keeps these rules is approved by the site itself
    most_studies: int = 20  # approved by rule over the same data
    most_splits: int = 1  # ways to part the data into training and validation, over studies approved by rule
    methods: tuple[str, ...] = ("*",)
    kinds: tuple[str, ...] = ("model", "update", "control", "count", "number", "score")
    networks: tuple[str, ...] = ("*",)  # whose weights may leave, by role: task, generator
    others_see: tuple[str, ...] = ("model",)  # kinds that the server may pass on to other sites, one by one
    public_sets: tuple[
        str, ...
    ] = ()  # data sets prepared here that a study may take for public; those made on the spot hold nobody's images
    fields_that_grow: bool = False  # fields whose size grows with the data (one entry per image)
    most_megabytes_a_round: float = 1000.0
    most_rounds: int = 1000
    most_minutes: float = 120.0  # of computing for one answer
    most_passes: float = 100.0  # through the data for one answer
    minimum_samples: int = 1
    minimum_clients: int = 2  # that train and have signed the study, this one included
    smallest_batch: int = 4
    fewest_images: int = 16  # behind one trained answer
    fewest_validation: int = 4  # images behind a score
    fewest_classes: int = 2  # in the training and in the validation part
    spectrum_reach: float = 0.1  # largest part of a side that a window of amplitudes may cover
    images_per_spectrum: int = 8  # fewest images behind one spectrum
    numbers_per_spectrum: int = 32  # most numbers in a window: a wide one tells an image even from a group's mean
    most_orders: int = 1  # studies of other settings, by rule, whose order of batches follows from one seed; later ones are drawn in secret
    own_order: bool = False  # draw batches in an order that the server cannot know; results then differ from those of one process
    scores: str = "every-round"  # or "last-round": whether the global model's score leaves in every round
    secure_sums: bool = False  # approve only studies whose models are summed under masks
    sums_may_lose_sites: bool = False  # a sum may leave sites out; sums over other sites, taken from each other, tell single answers
    privacy: Privacy = field(default_factory=Privacy)

    def check_study(self, facts: StudyFacts) -> None:
        """Before a study is approved, by whomever."""
        for broken in self._broken_by(facts):
            raise Rejected(broken)

    def _broken_by(self, facts: StudyFacts) -> Iterator[str]:
        if "*" not in self.methods and facts.method not in self.methods:
            yield f"methods: {facts.method} is not among {', '.join(self.methods)}"
        if facts.rounds > self.most_rounds:
            yield f"most_rounds: {facts.rounds} rounds, at most {self.most_rounds}"
        if facts.train_and_validation < self.minimum_samples:
            yield f"minimum_samples: fewer than {self.minimum_samples}"
        if facts.known_clients < self.minimum_clients:
            yield f"minimum_clients: {facts.known_clients} sites that this one knows take part, {self.minimum_clients} are asked for"
        if facts.sums and facts.strangers:  # enough made-up sites would open a sum, whatever the true ones do
            yield f"secure sums: this site does not know {facts.strangers} of the sites that sum; a person must approve the study"
        if facts.sums:
            yield from drawn_sites(facts.participation)
        if self.secure_sums and any(row.kind in OF_A_NETWORK and not row.summed for row in facts.plan):
            yield "secure_sums: the study lets the server read single models"
        for name, (least, most) in {
            "spectrum_reach": (0.0, self.spectrum_reach),
            "images_per_spectrum": (self.images_per_spectrum, 1e9),
        }.items():
            if name in facts.exposures and not least <= facts.exposures[name] <= most:
                bound = f"at most {most:g}" if name == "spectrum_reach" else f"at least {least:g}"
                yield f"{name}: {facts.exposures[name]:g}, {bound} is allowed"
        for name in sorted(facts.public_sets):
            if name not in DATASETS:
                yield f"public_sets: {name!r} is no data set by name, and a study opens no files here"
            elif not DATASETS[name].embedded and name not in self.public_sets:
                allowed = ", ".join(self.public_sets) or "what is made on the spot"
                yield f"public_sets: {name} lies prepared here; only {allowed} may be public"
        if facts.exposures.get("images_per_direction", math.inf) < self.fewest_images:
            yield "fewest_images: the perturbed model would tell the gradient of a few images; use direction = sample"
        for row in facts.plan:
            if row.kind == "nothing":
                continue
            if row.kind not in self.kinds:
                yield f"kinds: {row.field} is a {row.kind}; only {', '.join(self.kinds)} may leave"
            if row.kind in OF_A_NETWORK and "*" not in self.networks and row.role not in self.networks:
                yield f"networks: {row.field} is of the network {row.role!r}; only {', '.join(self.networks)} may leave"
            if row.kind == "spectrum" and not row.shape:
                yield f"numbers_per_spectrum: the study does not say how wide a window of {row.field} is"
            if row.kind == "spectrum" and any(math.prod(form[-1]) > self.numbers_per_spectrum for form in row.shape or ()):
                yield f"numbers_per_spectrum: a window of {row.field} has more than {self.numbers_per_spectrum} numbers"
            if row.grows and not self.fields_that_grow:
                yield f"fields_that_grow: {row.field} grows with the data"
        for kind in sorted(facts.passed_on - {*self.others_see}):
            allowed = ", ".join(self.others_see) or "nothing"
            yield f"others_see: other sites would get a {kind} of this site; only {allowed} may be passed on"
        if facts.trains and facts.samples[0] < self.fewest_images:
            yield f"fewest_images: fewer than {self.fewest_images} train"
        if 0 < facts.samples[1] < self.fewest_validation:
            yield f"fewest_validation: the validation part has fewer than {self.fewest_validation} images; raise `validation`"
        if any(0 < classes < self.fewest_classes for classes in facts.classes):
            yield f"fewest_classes: a part has fewer than {self.fewest_classes} classes"

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
    problems += [f"others_see: no kind {k!r}{nearest(str(k), KINDS)}" for k in policy.others_see if k not in KINDS]
    for rule, choices in _CHOICES.items():
        if getattr(policy, rule) not in choices:
            problems.append(f"{rule} is {getattr(policy, rule)!r}; expected {' or '.join(map(repr, choices))}")
    for name, value in vars(policy).items():
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            problems.append(f"{name} is {value}; expected a finite number from 0")
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
