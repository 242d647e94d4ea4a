"""The responder of a site: opens a question, does the work, and lets an answer out only as far as the site's policy goes.

Nothing of a question is trusted before its signature is checked, and no name in it becomes a path unless it has the exact form
of the names this site gave itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from unseen.codec import CodecError, hints_of, tensors_in
from unseen.data.domain import DomainDataset
from unseen.engines.tasks import Place, TaskRunner, find_task
from unseen.errors import BadInput, RefusedReply
from unseen.experiment import read_experiment
from unseen.federation.cards import as_agreed, card_of, site_world
from unseen.federation.kits import Kit
from unseen.federation.messages import Message, SignedMessage, open_message, sign
from unseen.federation.site.budget import Budget
from unseen.federation.site.ledger import Ledger, read_ledger
from unseen.federation.site.policy import Policy, Rejected
from unseen.federation.site.privacy import privatised
from unseen.federation.site.same_data import _content as content_hash
from unseen.federation.site.same_data import refuse_other_data
from unseen.method import task_types
from unseen.methods import METHODS
from unseen.own_code import names_code, texts_in
from unseen.payload import OF_A_NETWORK, Declaration, Payload, carried, declarations
from unseen.runs.memory import FILE_OF_MEMORY, MemoryStore

__all__ = ["Responder"]

log = logging.getLogger("unseen.site")
_MOST_BYTES = 2**31 - 1
_RUN, _NONCE = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{32}")
_TASK = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)?")
_SCORE = "scoring.score"


@dataclasses.dataclass(frozen=True)
class _Question:
    """A question whose every entry is of its kind."""

    run: str
    task: str
    place: Place
    last: bool
    clients: int
    experiment: dict[str, Any]
    schema: dict[str, Any]
    versions: dict[str, str]
    keep: list[str]

    @classmethod
    def read(cls, header: Mapping[str, Any]) -> _Question:
        kinds = {"run": str, "task": str, "round": int, "ask": int, "last": bool, "clients": int}
        kinds |= {"experiment": dict, "schema": dict, "versions": dict, "keep": list}
        for key, kind in kinds.items():
            if type(header.get(key)) is not kind:
                raise Rejected(f"question: {key} is missing or of another kind")
        files = [*header["versions"].values(), *header["keep"]]
        if not all(isinstance(file, str) and FILE_OF_MEMORY.fullmatch(file) for file in files):
            raise Rejected("question: names a memory in a way that is not taken")
        if not (_RUN.fullmatch(header["run"]) and _TASK.fullmatch(header["task"])):
            raise Rejected("question: the name of the run or of the task is not taken")
        if not (0 <= header["round"] < 10**6 and -1 <= header["ask"] < 1000):
            raise Rejected("question: the round or the number of the ask is out of range")
        place = Place(header["round"], header["ask"])
        rest = {key: header[key] for key in kinds if key not in ("round", "ask")}
        return cls(place=place, **rest)


class Responder:
    """Answers the questions of one federation over one site's data."""

    def __init__(
        self, kit: Kit, dataset: DomainDataset, policy: Policy, folder: Path, evaluates: bool = False, device: str = "auto"
    ) -> None:
        self._kit, self._dataset, self._policy, self._folder = kit, dataset, policy, folder
        self._evaluates, self._device = evaluates, device
        self._key = kit.signing
        self._ledger = Ledger(folder / "ledger.jsonl")
        asked = [e["question"] for e in read_ledger(self._ledger.file)] if self._ledger.file.exists() else []
        self._seen = set(asked) - set(asked[-1:])  # the answer to the last one may have been lost with the process that gave it
        self._last: tuple[SignedMessage, SignedMessage] | None = None
        self._budget = Budget(policy.privacy, content_hash(dataset), [])
        self._runner: tuple[str, TaskRunner] | None = None
        self._round: tuple[str, int] = ("", -1)  # of which `_left` counts the bytes
        self._left = 0

    def answer(self, signed: SignedMessage) -> SignedMessage:
        """The site's answer, whatever the question: the work done, or a refusal that names its rule.

        An answer that was lost on its way is asked for with the very same message, and is then given again as it was.
        """
        if self._last is None or self._last[0] != signed:
            self._last = signed, self._answer(signed)
        return self._last[1]

    def _answer(self, signed: SignedMessage) -> SignedMessage:
        header: dict[str, Any] = {}
        payload = b""
        try:
            message = open_message(signed, self._kit.server_key, "question", _MOST_BYTES)
            header = message.header
            self._refuse_stray(header)
            outcome, payload = self._hello(header) if header.get("task") == "hello" else self._work(message)
        except (Rejected, RefusedReply, BadInput) as refusal:
            log.warning("refused: %s", refusal)
            outcome = {"status": "refused", "reason": str(refusal)}
        except OSError as error:
            log.exception("failed")
            outcome = {"status": "failed", "reason": f"the disk: {error.strerror}"}
        except Exception as error:  # what went wrong may tell of the data, so only its kind leaves
            log.exception("failed")
            outcome = {"status": "failed", "reason": type(error).__name__}
        echo = {key: header.get(key) if isinstance(header.get(key), str) else "" for key in ("nonce", "run")}
        reply = {"federation": self._kit.federation, "from": self._kit.client, **echo, "reason": "", "staged": {}, **outcome}
        return sign(Message(reply, payload), self._key, "answer")

    def _refuse_stray(self, header: Mapping[str, Any]) -> None:
        nonce = header.get("nonce")
        if header.get("federation") != self._kit.federation or header.get("to") != self._kit.client:
            raise Rejected("question: meant for another site or federation")
        if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce) or nonce in self._seen:
            raise Rejected("question: was asked before")
        self._seen.add(nonce)

    def _hello(self, header: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        seed, share = header.get("seed"), header.get("validation")
        if type(seed) is not int or not isinstance(share, int | float) or not 0 <= share < 1:
            raise Rejected("question: seed or validation is missing or out of range")
        card = card_of(self._dataset, self._evaluates, seed, float(share))
        if self._policy.privacy.on:
            announced = self._policy.privacy.announced_samples
            card |= {"samples": 2 * announced, "train": 0 if self._evaluates else announced, "validation": announced}
        self._ledger.append([_entry(header, "hello", Place(0, 0), "card", "count", [], json.dumps(card).encode())])
        return {"status": "ok", "card": card}, b""

    def _work(self, message: Message) -> tuple[dict[str, Any], bytes]:
        question = _Question.read(message.header)
        runner = self._runner_for(question)
        self._refuse_by_rule(question, runner)
        memory = self._memory(question)
        task = _find(question.task, runner)
        down_type, _ = task_types(task)
        try:
            down = down_type.from_bytes(message.payload)
        except (CodecError, ValueError, TypeError) as error:
            raise Rejected(f"question: its payload is no {down_type.__name__}") from error
        up, staged = runner.run(task, down, self._kit.client, question.place, memory)
        if self._policy.privacy.on:
            told = runner.world.dataset.task
            names = [*told.metrics, *([told.own_metric.name] if told.own_metric else [])]
            up = privatised(up, down, self._policy.privacy, names)
        spent = self._budget.spend()
        payload = self._let_out(message.header, question, up)
        log.info("round %d: %s answered, %d bytes", question.place.round, question.task, len(payload))
        return {"status": "ok", "staged": staged, **({"epsilon": spent} if self._policy.privacy.on else {})}, payload

    def _refuse_by_rule(self, question: _Question, runner: TaskRunner) -> None:
        holding = runner.world.holdings.get(self._kit.client)
        samples = len(holding.train) if holding is not None else len(self._dataset.domains[0])
        self._policy.check_run(question.experiment.get("method", ""), samples, question.clients)
        if question.task == _SCORE:
            self._policy.check_score(question.last)
        elif self._evaluates:
            raise Rejected("evaluate-only: the data of this site do not train")
        self._budget.refuse_overspent()

    def _runner_for(self, question: _Question) -> TaskRunner:
        """The world of this experiment, made once: data and networks stay in memory between questions."""
        key = json.dumps([{**question.experiment, "rounds": 0}, question.schema], sort_keys=True)
        if self._runner is None or self._runner[0] != key:
            _refuse_own_code(question)
            if question.experiment.get("method") not in METHODS:
                raise Rejected("methods: only methods that are installed here run here")
            values = {**question.experiment, "data": "elsewhere", "device": self._device, "weights": None, "preset": None}
            experiment = dataclasses.replace(read_experiment(values), data=as_agreed(self._dataset, question.schema))
            self._runner = key, TaskRunner(site_world(experiment, as_agreed(self._dataset, question.schema), self._evaluates))
        return self._runner[1]

    def _memory(self, question: _Question) -> MemoryStore:
        """The memories of this run, as far as they count; versions that no checkpoint needs are thrown away."""
        folder = self._folder / "memory" / question.run
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        refuse_other_data(self._dataset, folder / "data.json")
        memory = MemoryStore(folder)
        memory.versions = {self._kit.client: question.versions}
        lost = [kind for kind, file in question.versions.items() if not memory.holds(file)]
        if lost:
            raise Rejected(f"memory: {', '.join(sorted(lost))} of this run is no longer here")
        if question.place.ask == 1:
            memory.sweep({self._kit.client: {str(n): file for n, file in enumerate(question.keep)}})
        return memory

    def _let_out(self, header: Mapping[str, Any], question: _Question, up: Payload) -> bytes:
        """The bytes of an answer, after the policy allowed them and the ledger has them."""
        place = (question.run, question.place.round)
        if place != self._round:
            self._round, self._left = place, 0
        fields = list(carried(up))
        self._policy.check_leaving(fields, self._left)
        payload = up.to_bytes()
        self._left += sum(one.bytes for one in fields)
        entries = []
        for one in fields:
            if one.bytes:
                shape, data = _content(up, one.field)
                entry = _entry(header, question.task, question.place, one.field, one.kind, shape, data, one.bytes)
                entries.append(entry | _network(declarations(type(up))[one.field]))
        self._ledger.append(entries)
        return payload


def _refuse_own_code(question: _Question) -> None:
    """A message names what is to run and never brings it: no file that it names is imported or opened."""
    for where, values in (*question.experiment.items(), *question.schema.items()):
        texts = list(texts_in([where, values]))
        if any(names_code(text) for text in texts) or (where == "partition" and any(t.startswith("file:") for t in texts)):
            raise Rejected(f"{where if not names_code(where) else 'experiment'}: only what is installed here runs here")


def _find(path: str, runner: TaskRunner) -> Callable[..., Payload]:
    try:
        return find_task(path, runner.world.experiment.method)
    except (AttributeError, TypeError) as error:
        raise Rejected(f"question: no task {path!r}") from error


def _content(up: Payload, field: str) -> tuple[list[list[int]], bytes]:
    """The shapes of a field's tensors, and its bytes, to be hashed."""
    value = getattr(up, field)
    tensors = [tensor.detach().cpu().contiguous() for _, tensor in tensors_in(value, hints_of(type(up))[field])]
    if not tensors:
        return [], json.dumps(value).encode()
    return [list(t.shape) for t in tensors], b"".join(t.reshape(-1).view(torch.uint8).numpy().tobytes() for t in tensors)


def _network(told: Declaration) -> dict[str, str]:
    """Of which network, and of which part of it, a field holds weights, as it declares."""
    return {"network": told.role, "part": told.part} if told.kind in OF_A_NETWORK else {}


def _entry(
    header: Mapping[str, Any], task: str, place: Place, field: str, kind: str, shape: list[list[int]], data: bytes, size: int | None = None
) -> dict[str, Any]:
    """A line of the ledger. Of a model, the shapes of its tensors are summed up in their number."""
    return {
        "run": header.get("run"),
        "question": header.get("nonce"),
        "round": place.round,
        "ask": place.ask,
        "task": task,
        "field": field,
        "kind": kind,
        "shape": f"{len(shape)} tensors" if len(shape) > 1 else shape[0] if shape else [],
        "bytes": len(data) if size is None else size,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
