"""The responder of a site: opens a question, does the work, and lets an answer out only as far as study and policy go.

Nothing of a question is trusted before its signature is checked. A question names a study that this site approved and a place in it; every
fact about the run is read from that study. No name in a question becomes a path unless it has the exact form of the names this site
gave itself.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from unseen.codec import CodecError
from unseen.data.domain import DomainDataset
from unseen.engines.checking import Checker, outline_from_plain, refuse_other_forms
from unseen.engines.cohort import SCORING_ASK
from unseen.engines.tasks import Place, TaskRunner, find_task
from unseen.errors import BadInput, RefusedReply
from unseen.federation.activity import Observer, nobody
from unseen.federation.cards import as_agreed, card_of, site_world
from unseen.federation.kits import Kit
from unseen.federation.messages import Bytes, Message, SignedMessage, open_message, question_id, sign
from unseen.federation.site.approving import Approver, experiment_of
from unseen.federation.site.bounds import BoundedClient, TimeLimit
from unseen.federation.site.budget import Budget
from unseen.federation.site.by_hand import note_outcome, pending, read_by_hand
from unseen.federation.site.contents import content_of, network_of, sha256_of
from unseen.federation.site.ledger import Ledger
from unseen.federation.site.policy import Policy, Rejected
from unseen.federation.site.privacy import privatised
from unseen.federation.site.refusals import Refusals
from unseen.federation.site.same_data import content_hash, refuse_other_data
from unseen.federation.site.studies import HeldStudy, SiteStudies
from unseen.federation.site.summing import LAST_STEP, WORDS, SumStep, taking_part_in
from unseen.federation.site.telling import Telling
from unseen.federation.study.approvals import read_approvals
from unseen.federation.study.rehearsal import hash_of_state
from unseen.federation.study.study import phase_of
from unseen.federation.sums.context import STEPS
from unseen.method import task_types
from unseen.payload import OF_A_NETWORK, Payload, carried, declarations, refuse_unusable
from unseen.runs.memory import FILE_OF_MEMORY, MemoryStore

__all__ = ["Responder"]

log = logging.getLogger("unseen.site")
_MOST_BYTES = 2**31 - 1
_MOST_HELLOS = 1000
_DIGEST = re.compile(r"[0-9a-f]{64}")
_COMMON = {"federation", "to", "task", "receipt"}
_ENTRIES = {  # what a question of each kind has, beside what all have
    "hello": {"nonce"},
    "begin": {"study"},
    "agreed": {"study"},
    "ask": {"study", "round", "ask", "step", "versions"},
}
_Work = Callable[[Bytes], tuple[Payload, Payload, dict[str, str]]]
_SMALL = 8192  # bytes that numbers may take beyond what the rehearsal saw


class Responder:
    """Answers the questions of one federation over one site's data."""

    def __init__(
        self,
        kit: Kit,
        dataset: DomainDataset,
        policy: Policy,
        folder: Path,
        evaluates: bool = False,
        device: str = "auto",
        hellos: int = 0,
        observer: Observer = nobody,
    ) -> None:
        self._kit, self._dataset, self._policy, self._folder = kit, dataset, policy, folder
        self._evaluates, self._device = evaluates, device
        self._key = kit.signing
        self._ledger = Ledger(
            folder / "ledger.jsonl", kit.signing, kit.server_key, kit.client, federation=kit.federation, earlier=kit.earlier
        )
        self._refusals = Refusals(self._ledger)
        self._data = content_hash(dataset, folder / "data.json")
        self._budget = Budget(policy.privacy, self._data, self._spent())
        self._studies = SiteStudies(folder, kit.members)
        self._approver = Approver(kit, dataset, policy, self._studies, self._ledger, self._data, evaluates)
        self._runner: tuple[str, TaskRunner] | None = None
        self._clock = TimeLimit()
        self.hellos = hellos  # that were answered since this site joined
        self._tell = Telling(observer, evaluates)

    def _spent(self) -> list[tuple[float, int]]:
        """How many answers over these data left with which noise, as the ledger has it."""
        noises: dict[str, float] = {entry["question"]: float(entry["noise"]) for entry in self._ledger.entries()
                                    if entry.get("data") == self._data and "noise" in entry}  # fmt: skip
        return [(noise, [*noises.values()].count(noise)) for noise in sorted({*noises.values()})]

    @property
    def at_rest(self) -> bool:
        """Whether no study is under way, as far as this process was asked."""
        return self._studies.at_rest

    def approve(self, signed_study: bytes) -> str:
        """A person at this site approves a study; returns its name."""
        held = self._approver.approve(signed_study, by_hand=True)
        self._tell.of("approved", held, text="by a person here")
        return held.study.digest

    def take_up_approvals(self) -> None:
        """What people have approved while this site was at work. Each file goes, and what came of it is written beside it."""
        for file in pending(self._folder):
            try:
                self.approve(read_by_hand(file, self._kit))
                note_outcome(file, None)
            except (Rejected, BadInput) as refusal:
                self._tell.note("refused", f"approving a study: {refusal}")
                note_outcome(file, str(refusal))

    def answer(self, signed: SignedMessage) -> SignedMessage:
        """The site's answer, whatever the question: the work done, or a refusal that names its rule."""
        try:
            message = open_message(signed, self._kit.server_key, "question", _MOST_BYTES)
            self._refuse_stray(message.header)
        except (Rejected, RefusedReply) as refusal:
            self._tell.note("refused", f"a message that is no question to this site: {refusal}")
            return self._signed({"question": "", "status": "refused", "reason": str(refusal)})
        question = question_id(message)
        self._tell.begin()
        try:
            if isinstance(receipt := message.header.get("receipt"), dict):
                self._ledger.take_receipt(receipt)
            return self._answered(message, question)
        except (Rejected, RefusedReply, BadInput) as refusal:
            self._tell.refusal(refusal, message.header)
            self._refusals.note(message.header, question, str(refusal))
            outcome = {"status": "refused", "reason": str(refusal)}
        except OSError as error:
            self._tell.failure(f"the disk: {error.strerror}", message.header)
            log.exception("failed")
            outcome = {"status": "failed", "reason": f"the disk: {error.strerror}"}
        except Exception as error:  # what went wrong may tell of the data, so only its kind leaves
            self._tell.failure(type(error).__name__, message.header)
            log.exception("failed")
            outcome = {"status": "failed", "reason": "an error" if self._policy.privacy.on else type(error).__name__}
        return self._signed({"question": question, **outcome})

    def _answered(self, message: Message, question: str) -> SignedMessage:
        match message.header["task"]:
            case "hello":
                return self._signed({"question": question, "status": "ok", "card": self._hello(question)})
            case "begin":
                known = self._studies.get(_digest(message.header)) is not None
                held = self._approver.begin(_digest(message.header), bytes(message.payload))
                self._tell.of("note" if known else "approved", held, text="begins" if known else "by this site's rules")
                return self._signed({"question": question, "status": "ok", "approval": held.approval.plain()})
            case "agreed":
                self._agree(self._held(message.header), bytes(message.payload))
                return self._signed({"question": question, "status": "ok"})
            case _:
                return self._work(message, question)

    def _signed(self, header: Mapping[str, Any], payload: Bytes = b"") -> SignedMessage:
        common = {"federation": self._kit.federation, "from": self._kit.client, "reason": "", "ledger": list(self._ledger.head)}
        return sign(Message({**common, **header}, payload), self._key, "answer")

    def _refuse_stray(self, header: Mapping[str, Any]) -> None:
        """A question for this site, with the entries of its kind and no others."""
        if header.get("federation") != self._kit.federation or header.get("to") != self._kit.client:
            raise Rejected("question: meant for another site or federation")
        task = header.get("task")
        if not isinstance(task, str) or task not in _ENTRIES or (header.keys() | {"receipt"}) != _ENTRIES[task] | _COMMON:
            raise Rejected("question: it has other entries than a question has")

    def _hello(self, question: str) -> dict[str, Any]:
        self.hellos += 1
        if self.hellos > _MOST_HELLOS:
            raise Rejected("hello: it was asked too often")
        card = card_of(self._dataset, self._evaluates)
        data = json.dumps(card).encode()
        entry = {"question": question, "task": "hello", "field": "card", "kind": "text", "bytes": len(data), "sha256": sha256_of(data)}
        self._ledger.append([entry])
        self._tell.note("answered", "what kind of data there are (card)", "hello", len(data))
        return card

    def _held(self, header: Mapping[str, Any]) -> HeldStudy:
        held = self._studies.get(_digest(header))
        if held is None:
            raise Rejected("study: this site has not approved it")
        return held

    def _agree(self, held: HeldStudy, payload: bytes) -> None:
        try:
            approvals = read_approvals(json.loads(payload), held.study)
        except (ValueError, RecursionError) as error:
            raise Rejected(f"study: {error if isinstance(error, BadInput) else 'the approvals cannot be read'}") from error
        if self._kit.client not in approvals:
            raise Rejected("study: this site's own approval is missing among those of the others")
        self._approver.refuse_too_few(held.study, approvals)
        self._approver.refuse_other_sums(held.study, approvals)
        held.agree(approvals)

    def _work(self, message: Message, question: str) -> SignedMessage:
        held, header = self._held(message.header), message.header
        place, step = _place(header)
        if not held.agreed:
            raise Rejected("study: who else approved it has not been told")
        self._approver.check(held)
        self._refuse_unplanned(held, place, step)
        given = held.open_place(place, step, question)
        if given is not None:
            self._sum(held, place).forget_after(step)  # a kill may have come before it
            self._tell.of("again", held, place, step, len(given.payload))
            return self._signed(given.header, given.payload)
        self._tell.of("asked", held, place, step, len(message.payload))
        if step not in (0, WORDS):
            return self._small_step(held, place, step, question, bytes(message.payload))
        runner, memory = self._runner_for(held), self._memory(held, place, header["versions"])
        self._budget.refuse_overspent()
        work = partial(self._work_done, held, place, runner, memory)
        if step == WORDS:
            return self._masked(held, place, question, message.payload, work, runner)
        _, up, staged = work(message.payload)
        return self._let_out(held, place, step, question, self._entries(held, place, question, up), up.to_bytes(), staged)

    def _work_done(
        self, held: HeldStudy, place: Place, runner: TaskRunner, memory: MemoryStore, payload: Bytes
    ) -> tuple[Payload, Payload, dict[str, str]]:
        """The question, the answer to it with noise where the policy has it, and the memories that were staged."""
        path = held.study.task_at(place.round, place.ask)
        assert path is not None
        task = find_task(path, runner.world.experiment.method)
        down = self._down(held, place, task_types(task)[0], payload)
        self._clock.start(self._policy.most_minutes)
        up, staged = runner.run(task, down, self._kit.client, place, memory)
        refuse_unusable(up, type(up))
        if self._policy.privacy.on:
            told = runner.world.dataset.task
            names = [*told.metrics, *([told.own_metric.name] if told.own_metric else [])]
            up = privatised(up, down, self._policy.privacy, names)
            up = Checker(runner.world).clamped(up, self._policy.privacy.announced_samples)  # noise gives accuracies beyond 1
        return down, up, staged

    def _masked(self, held: HeldStudy, place: Place, question: str, payload: Bytes, work: _Work, runner: TaskRunner) -> SignedMessage:
        """The step of a secure sum that brings the answer, under masks."""
        size, staged, entries = int.from_bytes(payload[:8], "little"), dict[str, str](), list[dict[str, Any]]()
        content, asked = bytes(payload[8 : 8 + size]), memoryview(payload)[8 + size :]

        def answered() -> tuple[Payload, Payload]:
            down, up, written = work(asked)
            staged.update(written)
            entries.extend(self._entries(held, place, question, up))
            return down, up

        words = self._sum(held, place).masked(content, asked, answered, runner.world.entries)
        return self._let_out(held, place, WORDS, question, entries, words, staged)

    def _sum(self, held: HeldStudy, place: Place) -> SumStep:
        return SumStep(held, place, self._kit.client, self._key, self._policy.minimum_clients)

    def _small_step(self, held: HeldStudy, place: Place, step: int, question: str, payload: bytes) -> SignedMessage:
        """Any other step of a secure sum. It needs neither data nor memories."""
        answer = self._sum(held, place).answer(step, payload)
        about = {"study": held.study.digest, "question": question, "round": place.round, "ask": place.ask, "field": STEPS[step]}
        entry = {**about, "kind": "sum", "bytes": len(answer), "sha256": sha256_of(answer)}
        return self._let_out(held, place, step, question, [entry], answer, {})

    def _refuse_unplanned(self, held: HeldStudy, place: Place, step: int) -> None:
        """A place that the study has, for this site."""
        study = held.study
        if study.task_at(place.round, place.ask) is None or (place.round == 0 and place.ask == SCORING_ASK):
            raise Rejected("study: it has no question at this place")
        if not (1 <= step <= LAST_STEP if study.is_summed(place.round, place.ask) else step == 0):
            raise Rejected("study: the answers here are summed" if step == 0 else "study: it has no such step at this place")
        if place.ask == SCORING_ASK:
            self._policy.check_score(place.round == study.rounds)
            return
        if self._evaluates:
            raise Rejected("evaluate-only: the data of this site do not train")
        if self._kit.client not in taking_part_in(held, place.round):
            raise Rejected(f"study: this site does not take part in round {place.round}")

    def _runner_for(self, held: HeldStudy) -> TaskRunner:
        """The world of this study, made once: data and networks stay in memory between questions."""
        if self._runner is None or self._runner[0] != held.study.digest:
            dataset = as_agreed(self._dataset, held.study.schema)
            experiment = experiment_of(held.study, dataset, self._device)
            runner = TaskRunner(site_world(experiment, dataset, self._evaluates))
            runner.client = partial(BoundedClient, self._policy, self._clock)
            if self._approver.draws_in_secret(held.study):
                runner.secret = (self._approver.secret_order(), held.study.digest)  # or two studies would differ in one image
            self._runner = held.study.digest, runner
        return self._runner[1]

    def _memory(self, held: HeldStudy, place: Place, versions: dict[str, str]) -> MemoryStore:
        """The memories of this study, as far as they count; versions that no checkpoint needs are thrown away."""
        held.memory.mkdir(parents=True, exist_ok=True, mode=0o700)
        refuse_other_data(self._dataset, held.folder / "data.json")
        memory = MemoryStore(held.memory)
        memory.versions = {self._kit.client: versions}
        lost = [kind for kind, file in versions.items() if not memory.holds(file)]
        if lost:
            raise Rejected(f"memory: {', '.join(sorted(lost))} of this study is no longer here")
        named = held.name_memories(place.round, versions.values())
        if place.ask == 1:
            memory.sweep({self._kit.client: {str(n): file for n, file in enumerate(sorted(named))}})
        return memory

    def _down(self, held: HeldStudy, place: Place, kind: type[Payload], payload: Bytes) -> Payload:
        """What the question brings: finite, and in round 1 the first weights that the study states."""
        try:
            down = kind.from_bytes(payload)
        except (CodecError, ValueError, TypeError, OverflowError) as error:
            raise Rejected(f"question: its payload is no {kind.__name__}") from error
        try:
            refuse_unusable(down, kind)
        except RefusedReply as refusal:
            raise Rejected(f"question: {refusal}") from refusal
        if (place.round, place.ask) == (1, 1):
            for field, stated in held.study.weights.items():
                value = getattr(down, field, None)
                if value is None or hash_of_state(value) != stated:
                    raise Rejected(f"study: {field} holds other first weights than the study states")
        return down

    def _entries(self, held: HeldStudy, place: Place, question: str, up: Payload) -> list[dict[str, Any]]:
        """What the ledger says of an answer, after study and policy allowed it and its privacy was spent."""
        fields = [one for one in carried(up) if one.bytes]
        self._policy.check_leaving(fields, held.left_in(place.round))
        refuse_other_forms(up, outline_from_plain(held.study.shapes_at(place.round, place.ask)))
        rows = held.study.leaving(phase_of(place.round, place.ask), place.ask)
        planned = {row.field: row for row in rows if row.first <= place.round <= row.last}
        for one in fields:
            row = planned.get(one.field)
            if row is None or (not one.grows and one.bytes > max(row.bytes, 0 if one.kind in OF_A_NETWORK else _SMALL)):
                raise Rejected(f"study: {one.field} ({one.bytes:,} bytes) is not what the study lets leave here")
        privacy, entries = self._policy.privacy, []
        spent = {"data": self._data, "noise": privacy.noise if privacy.on else 0.0, "epsilon": self._budget.spend()}
        if not privacy.on:
            del spent["epsilon"]
        for one in fields:
            shape, sha256 = content_of(up, one.field)
            about = {"study": held.study.digest, "question": question, "round": place.round, "ask": place.ask}
            about |= {"task": held.study.task_at(place.round, place.ask), "field": one.field, "kind": one.kind, "shape": shape}
            about |= {"bytes": one.bytes, "sha256": sha256, **spent}
            about |= {"masked": True} if planned[one.field].summed else {}
            entries.append(about | network_of(declarations(type(up))[one.field]))
        return entries

    def _let_out(
        self,
        held: HeldStudy,
        place: Place,
        step: int,
        question: str,
        entries: list[dict[str, Any]],
        payload: bytes,
        staged: dict[str, str],
    ) -> SignedMessage:
        """The signed answer, once the ledger and the study's folder have it."""
        self._ledger.append(entries)
        epsilon = [entry["epsilon"] for entry in entries if "epsilon" in entry][:1]
        header: dict[str, Any] = {"question": question, "status": "ok", "staged": staged, **({"epsilon": epsilon[0]} if epsilon else {})}
        ends = place.ask == SCORING_ASK and place.round == held.study.rounds
        held.keep_answer(place, step, Message(header, payload), sum(entry["bytes"] for entry in entries), ends)
        self._sum(held, place).forget_after(step)
        fields = ", ".join(dict.fromkeys(str(entry["kind"]) for entry in entries))
        self._tell.of("answered", held, place, step, len(payload), fields or "nothing but that it is done")
        if ends:
            self._tell.of("ended", held)
        return self._signed(header, payload)


def _digest(header: Mapping[str, Any]) -> str:
    digest = header["study"]
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise Rejected("question: the study's name is not taken")
    return digest


def _place(header: Mapping[str, Any]) -> tuple[Place, int]:
    """Where in the study the question stands, and the step of a sum."""
    if not all(type(header[key]) is int for key in ("round", "ask", "step")) or type(header["versions"]) is not dict:
        raise Rejected("question: its place is missing or of another kind")
    versions = header["versions"]
    if not all(kind.isidentifier() and isinstance(file, str) and FILE_OF_MEMORY.fullmatch(file) for kind, file in versions.items()):
        raise Rejected("question: names a memory in a way that is not taken")
    if not (0 <= header["round"] < 10**6 and -1 <= header["ask"] < 1000 and header["ask"] != 0 and 0 <= header["step"] < 10):
        raise Rejected("question: its place is out of range")
    return Place(header["round"], header["ask"]), header["step"]
