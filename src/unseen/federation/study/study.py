"""A study: everything that a run between sites will do, written down, signed by the server and approved by each site.

Its name is the hash of its text. A question names the study and a place in it, and nothing else: what the last round is, who takes
part and what may leave are read from the text that the site approved.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any, Literal, cast, get_args

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from unseen.errors import BadInput
from unseen.federation.keys import fingerprint

__all__ = ["MOST_STUDY", "Leaving", "Participant", "Phase", "Study", "asks_of", "phase_of", "read_signed_study"]

MOST_STUDY = 4 * 2**20  # bytes
Phase = Literal["start", "round", "score"]
_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_TASK = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)?")
_KEY = re.compile(r"[0-9a-f]{64}")
_PURPOSE = b"unseen study 1 "


@dataclass(frozen=True)
class Participant:
    """A site of the study, known by its key."""

    signing: str  # public key, hexadecimal: what the site's signatures are checked with
    node: str  # its other two public keys, so that the fingerprint is the one that people compared by telephone
    box: str
    evaluates: bool  # its data are scored and never trained on

    def fingerprint(self, name: str) -> str:
        """The one that the site and the server's owner compared when it was admitted under this name."""
        return fingerprint({"name": name, "node": self.node, "signing": self.signing, "box": self.box})


@dataclass(frozen=True)
class Leaving:
    """One field of one answer: what it carries, how large it is at most, and in which rounds it was seen to leave."""

    phase: Phase
    ask: int  # the number of the question in its round
    task: str
    field: str
    kind: str
    role: str
    part: str
    bytes: int  # at one site; of a field that grows with the data, for each image
    grows: bool
    summed: bool  # the server gets only the sum over the sites
    shape: list[Any] | None  # type and dimensions of a single tensor, but for its number of entries
    first: int
    last: int


@dataclass(frozen=True)
class Study:
    """The agreement. Plain values alone, so that its text is its meaning."""

    federation: str
    proposal: str  # drawn for each proposal: the same experiment proposed again is another study
    experiment: dict[str, Any]  # as `Experiment.description`, without what each machine decides for itself
    schema: dict[str, Any]  # what the sites' data have in common
    participants: dict[str, Participant]
    minimum_clients: int  # usable answers without which a round does not count
    sums: bool  # answers that are averaged leave masked, and only their sum is read
    passed_on: tuple[str, ...]  # kinds that other sites get of a site's answers, one by one
    weights: dict[str, str]  # sha256 of the first weights, by field of the first question of round 1
    plan: tuple[Leaving, ...]

    @property
    def rounds(self) -> int:
        return int(self.experiment["rounds"])

    @property
    def training(self) -> list[str]:
        """The sites that train, by name."""
        return sorted(name for name, site in self.participants.items() if not site.evaluates)

    @cached_property
    def text(self) -> str:
        """The one way to write it down."""
        return json.dumps({"version": _VERSION, **asdict(self)}, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def digest(self) -> str:
        """The study's name everywhere."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def signed(self, key: Ed25519PrivateKey) -> bytes:
        """The file `study.json`: the study, and the server's signature on it."""
        signature = key.sign(_PURPOSE + self.text.encode()).hex()
        return (json.dumps({"study": json.loads(self.text), "signature": signature}, indent=1, sort_keys=True) + "\n").encode()

    def leaving(self, phase: Phase, ask: int) -> list[Leaving]:
        """What leaves in answer to that question."""
        return [one for one in self.plan if one.phase == phase and one.ask == ask]

    def shapes_at(self, round_number: int, ask: int) -> dict[str, list[Any]]:
        """The shapes and types of the tensors that leave there, as the rehearsal had them."""
        return {row.field: row.shape for row in self.leaving(phase_of(round_number, ask), ask) if row.shape is not None}

    def is_summed(self, round_number: int, ask: int) -> bool:
        """Whether the server gets only the sum of the answers to that question."""
        return any(one.summed for one in self.leaving(phase_of(round_number, ask), ask))

    def task_at(self, round_number: int, ask: int) -> str | None:
        """The task of the question at that place; None where the study has none."""
        return asks_of(self.plan).get((phase_of(round_number, ask), ask)) if 0 <= round_number <= self.rounds else None


def phase_of(round_number: int, ask: int) -> Phase:
    """Before round 1, in a round, or the question how good the model is."""
    return "score" if ask == -1 else "start" if round_number == 0 else "round"


def asks_of(plan: Iterable[Leaving]) -> dict[tuple[Phase, int], str]:
    """The tasks that are asked for, by phase and number of the question. An answer that carries nothing has an entry without a field."""
    return {(one.phase, one.ask): one.task for one in plan}


def read_signed_study(data: bytes, key: Ed25519PublicKey) -> Study:
    """The study in these bytes, if the server signed it and every entry is of its kind; else BadInput."""
    try:
        if len(data) > MOST_STUDY:
            raise BadInput(f"the study has {len(data):,} bytes; at most {MOST_STUDY:,} are taken")
        told = json.loads(data)
        if not isinstance(told, dict) or told.keys() != {"study", "signature"}:
            raise BadInput("not a study: expected a file that `unseen federation propose` wrote")
        study = read_study(told["study"])
        key.verify(bytes.fromhex(told["signature"]), _PURPOSE + study.text.encode())
    except InvalidSignature:
        raise BadInput("the study is not signed by this federation's server, or was changed since") from None
    except BadInput:
        raise
    except (ValueError, TypeError, RecursionError, AttributeError) as error:
        raise BadInput(f"the study cannot be read ({type(error).__name__})") from None
    return study


def read_study(told: Any) -> Study:
    """A study from plain values. It is the study only if it is written as it was read, so nothing can hide in it."""
    problems = _problems(told)
    if problems:
        raise BadInput([f"the study cannot be used: {problem}" for problem in problems])
    values = {field.name: told[field.name] for field in fields(Study)}
    values["participants"] = {name: Participant(**site) for name, site in told["participants"].items()}
    values["passed_on"] = tuple(told["passed_on"])
    values["plan"] = tuple(Leaving(**row) for row in told["plan"])
    study = Study(**values)
    if json.loads(study.text) != told:
        raise BadInput("the study cannot be used: it is not written as this version writes it")
    return study


def _problems(told: Any) -> list[str]:
    known = {"version", *(field.name for field in fields(Study))}
    if not isinstance(told, dict) or told.get("version") != _VERSION:
        return ["it is not of this version's form; server and sites need the same version of unseen"]
    if told.keys() != known:
        return [f"it lacks or adds {', '.join(sorted(map(str, told.keys() ^ known)))}"]
    problems = []
    kinds: dict[str, type] = {
        "federation": str,
        "proposal": str,
        "experiment": dict,
        "schema": dict,
        "participants": dict,
        "weights": dict,
        "plan": list,
    }
    kinds |= {"minimum_clients": int, "sums": bool, "passed_on": list}
    wrong = [key for key, kind in kinds.items() if type(told[key]) is not kind]
    if wrong:
        return [f"{', '.join(wrong)} is of another kind"]
    if type(told["experiment"].get("rounds")) is not int or not 1 <= told["experiment"]["rounds"] < 10**6:
        problems.append("the number of rounds is missing or out of range")
    if not 1 <= told["minimum_clients"] <= 10_000:
        problems.append("minimum_clients is out of range")
    if not all(_NAME.fullmatch(name) and _of_kind(site, Participant) and _KEY.fullmatch(site["signing"]) for name, site in
               told["participants"].items()):  # fmt: skip
        problems.append("a participant is not a name with a key")
    elif len({site["signing"] for site in told["participants"].values()}) != len(told["participants"]):
        problems.append("two participants have one key")
    if not all(isinstance(kind, str) for kind in told["passed_on"]):
        problems.append("what is passed on cannot be read")
    if not all(isinstance(value, str) and _KEY.fullmatch(value) for value in told["weights"].values()):
        problems.append("a hash of the first weights is none")
    if len(told["plan"]) > 1000 or not all(_is_leaving(row) for row in told["plan"]):
        problems.append("its plan of what leaves cannot be read")
    if any(not math.isfinite(number) for number in _numbers(told)):
        problems.append("it holds a number that is not finite")
    return problems


def _of_kind(row: Any, cls: type) -> bool:
    kinds = {"str": str, "int": int, "bool": bool}
    told = {f.name: kinds.get(cast(str, f.type)) for f in fields(cls)}
    return isinstance(row, dict) and row.keys() == told.keys() and all(kind is None or type(row[key]) is kind for key, kind in told.items())


def _is_leaving(row: Any) -> bool:
    if not _of_kind(row, Leaving) or row["phase"] not in get_args(Phase) or not _TASK.fullmatch(row["task"]):
        return False
    shape = row["shape"]
    numbers = (row["bytes"], row["first"], row["last"])
    return (shape is None or _is_shape(shape)) and -1 <= row["ask"] < 1000 and all(0 <= number < 2**53 for number in numbers)


def _is_shape(shape: Any) -> bool:
    """Name, type and dimensions of each tensor."""
    return isinstance(shape, list) and all(
        isinstance(form, list) and len(form) == 3 and isinstance(form[2], list) and all(type(n) is int and 0 <= n < 2**53 for n in form[2])
        for form in shape
    )


def _numbers(told: Any) -> Iterable[float]:
    waiting: list[Any] = [told]
    while waiting:
        value = waiting.pop()
        if isinstance(value, float):
            yield value
        elif isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
