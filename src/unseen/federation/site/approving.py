"""Whether a site approves a study: by a person who was shown it, or by the site's own rules."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from unseen.data.domain import DomainDataset
from unseen.data.partition.partitions import per_domain
from unseen.engines.cohort import SCORING_ASK
from unseen.engines.tasks import find_task
from unseen.errors import BadInput
from unseen.experiment import Experiment, read_experiment
from unseen.federation.cards import as_agreed, card_of, refuse_bad_card
from unseen.federation.keys import public_hex, write_secret
from unseen.federation.kits import Kit
from unseen.federation.site.ledger import Ledger
from unseen.federation.site.policy import Policy, Rejected, StudyFacts
from unseen.federation.site.studies import HeldStudy, SiteStudies
from unseen.federation.study.approvals import Approval, approve
from unseen.federation.study.study import Leaving, Study, asks_of, read_signed_study
from unseen.federation.sums.summable import is_summed
from unseen.method import task_types
from unseen.methods import METHODS
from unseen.own_code import names_code, texts_in
from unseen.payload import Payload, declarations
from unseen.task import Classification

__all__ = ["Approver", "NotApproved", "experiment_of", "facts_of"]

_MORE_LOOKS = 8  # splits that may be tried by rule beyond those that may be approved


def experiment_of(study: Study, dataset: DomainDataset, device: str = "cpu") -> Experiment:
    """The study's experiment over these data. Only what is installed here runs: no file that a study names is imported or opened."""
    refuse_own_code(study)
    values = {**study.experiment, "data": "elsewhere", "device": device, "weights": None, "preset": None, "label": None, "threads": 1}
    return dataclasses.replace(read_experiment(values), data=dataset)


def refuse_own_code(study: Study) -> None:
    for where, values in (*study.experiment.items(), *study.schema.items()):
        texts = list(texts_in([where, values]))
        if any(names_code(text) for text in texts) or (where == "partition" and any(t.startswith("file:") for t in texts)):
            raise Rejected(f"{where if not names_code(where) else 'experiment'}: only what is installed here runs here")
    if not isinstance(name := study.experiment.get("method"), str) or name not in METHODS:
        raise Rejected("methods: only methods that are installed here run here")


class NotApproved(Rejected):
    """A study that waits for a person."""


class Approver:
    """Looks at studies with this site's rules, data and keys."""

    def __init__(
        self, kit: Kit, dataset: DomainDataset, policy: Policy, studies: SiteStudies, ledger: Ledger, data: str, evaluates: bool
    ) -> None:
        self._kit, self._dataset, self._policy, self._studies, self._ledger = kit, dataset, policy, studies, ledger
        self._data, self._evaluates = data, evaluates
        self._checked: set[str] = set()  # studies that the rules of this process allow

    def begin(self, digest: str, signed_study: bytes) -> HeldStudy:
        """The study that the server wants to begin, if this site approved it, or if its rules do."""
        held = self._studies.get(digest)
        if held is None:
            if self._policy.studies != "by-rule":
                self._keep_waiting(digest, signed_study)
                raise NotApproved(
                    f"studies: nobody here has approved study {digest[:16]}; a person at the site must (`unseen study approve`)"
                )
            held = self.approve(signed_study, by_hand=False)
        self.check(held)
        if held.study.digest != digest:
            raise Rejected("study: the question names another one than it brings")
        return held

    def _keep_waiting(self, digest: str, signed_study: bytes) -> None:
        """So that a person here can look at what the server wants to begin."""
        with contextlib.suppress(BadInput, Rejected, OSError):
            study = read_signed_study(signed_study, self._kit.server_key)
            self._refuse_other_place(study)
            if study.digest == digest:
                self._studies.keep_waiting(study.digest, signed_study)

    def approve(self, signed_study: bytes, by_hand: bool) -> HeldStudy:
        """Check the study against everything this site knows, sign it and keep it."""
        study = read_signed_study(signed_study, self._kit.server_key)
        held = self._studies.get(study.digest)
        if held is not None:
            return held
        self._refuse_other_place(study)
        if by_hand:
            self._check(study, known={site.signing for site in study.participants.values()})
            self._studies.know(study)
        else:
            self._refuse_beyond_rules(study)
            self._check(study, known=self._studies.known_keys)
        train, validation = self._announced(study)
        box = X25519PrivateKey.generate() if study.sums else None
        may_lose, public = study.sums and self._policy.sums_may_lose_sites, public_hex(box) if box else None
        approval = approve(study, self._kit.client, train, validation, self._kit.signing, public, may_lose)
        self._ledger.append([{"kind": "approval", "study": study.digest, "by": "hand" if by_hand else "rule", "data": self._data,
                              "split": _split(study), "train": train, "validation": validation}])  # fmt: skip
        return self._studies.put(study, approval, box)

    def check(self, held: HeldStudy) -> None:
        """A study that was approved under earlier rules must keep those of today."""
        if held.study.digest not in self._checked:
            known = self._studies.known_keys
            self._check(held.study, known)
            if held.approval.may_lose and not self._policy.sums_may_lose_sites:
                raise Rejected("sums_may_lose_sites: it was true when this site approved the study, and is not now; propose the study anew")
            self._checked.add(held.study.digest)

    def refuse_too_few(self, study: Study, approvals: Mapping[str, Approval]) -> None:
        """So many sites that this one knows must have signed the study too."""
        known = self._studies.known_keys | {self._own_key}
        signed = [n for n in approvals if not study.participants[n].evaluates and study.participants[n].signing in known]
        if len(signed) < self._policy.minimum_clients:
            raise Rejected(
                f"minimum_clients: {len(signed)} sites that this one knows have signed, {self._policy.minimum_clients} are asked for"
            )

    def refuse_other_sums(self, study: Study, approvals: Mapping[str, Approval]) -> None:
        """Answers from the same data are always summed among the same sites, unless a person was shown others.

        The server says who approved. It could begin one experiment several times, each time without another site: every sum would be a
        regular one, and their differences the answers of single sites.
        """
        if not study.sums or self._evaluates:
            return
        sites = {name: study.participants[name].signing for name in study.training if name in approvals}
        entries = [entry for entry in self._ledger.entries() if entry.get("data") == self._data]
        before = [entry for entry in entries if entry.get("kind") == "summed"]
        if any(entry["study"] == study.digest for entry in before):
            return
        by_hand = any(e.get("kind") == "approval" and e["study"] == study.digest and e["by"] == "hand" for e in entries)
        shown = by_hand and len(sites) == len(study.training)
        if before and not shown and all({*entry["sites"].values()} != {*sites.values()} for entry in before):
            raise Rejected(
                f"secure sums: answers from these data were summed among {', '.join(before[-1]['sites'])} before, now it would be "
                f"{', '.join(sites)}; two sums that differ in a site tell its answer, so a person must approve a study of just these sites"
            )
        self._ledger.append([{"kind": "summed", "study": study.digest, "data": self._data, "sites": sites}])

    def draws_in_secret(self, study: Study) -> bool:
        """Whether the batches of a study come in an order of this site's own.

        Two studies of other settings in the order of one seed (a step on 17 images, one on 16) can differ in a single image. So by
        rule only so many studies of one seed are drawn in the order that the seed gives. A person decides for the study that was shown.
        """
        if self._policy.own_order:
            return True
        others = 0  # earlier studies in the same order, with other settings
        for entry in self._ledger.entries():
            if entry.get("kind") == "approval" and entry.get("data") == self._data:
                if entry["study"] == study.digest:
                    return bool(entry["by"] == "rule") and others >= self._policy.most_orders
                earlier = self._studies.get(str(entry["study"]))
                others += earlier is None or (_seed(earlier.study) == _seed(study) and not _trains_alike(earlier.study, study))
        return False

    def secret_order(self) -> str:
        """A secret of this site's that the order of its batches is drawn from. It stays the same, so that a study can go on."""
        file: Path = self._kit.path / "order.secret"
        if not file.exists():
            write_secret(file, secrets.token_hex(32).encode())
        return file.read_text()

    @property
    def _own_key(self) -> str:
        return self._kit.signing.public_key().public_bytes_raw().hex()

    def _refuse_other_place(self, study: Study) -> None:
        site = study.participants.get(self._kit.client)
        if study.federation != self._kit.federation or site is None or site.signing != self._own_key:
            raise Rejected("study: it is of another federation, or this site is not in it under its key")
        if site.evaluates != self._evaluates:
            raise Rejected(f"study: this site {'only evaluates' if self._evaluates else 'trains'}; the study has it otherwise")

    def _check(self, study: Study, known: set[str]) -> None:
        self._policy.check_study(facts_of(study, self._dataset, self._evaluates, known | {self._own_key}))

    def _announced(self, study: Study) -> tuple[int | None, int | None]:
        """The counts that this site tells with its approval."""
        if self._policy.privacy.on:
            told = self._policy.privacy.announced_samples
            return (0 if self._evaluates else told), told
        if "count" not in self._policy.kinds:
            return None, None
        return _parts(study, as_agreed(self._dataset, study.schema), self._evaluates)[0]

    def _refuse_beyond_rules(self, study: Study) -> None:
        """By rule only so many studies over the same data, and ways to part them: two that differ in one image would tell it.

        A refusal tells something of the data too (a part is too small under this split), so the splits that were only tried count as well.
        """
        entries = list(self._ledger.entries())
        before = [e for e in entries if e.get("kind") == "approval" and e.get("data") == self._data]
        if sum(e.get("by") == "rule" for e in before) >= self._policy.most_studies:
            raise Rejected(
                f"most_studies: {self._policy.most_studies} studies over these data were approved by rule; a person must approve more"
            )
        splits = {str(e.get("split")) for e in before}
        if not self._evaluates and _split(study) not in splits and len(splits) >= self._policy.most_splits:
            raise Rejected("most_splits: by rule the data are parted as before (seed and validation); a person must approve another way")
        looked = {str(e.get("split")) for e in entries if e.get("kind") == "look" and e.get("data") == self._data}
        if not self._evaluates and _split(study) not in splits | looked:
            if len(looked) >= self._policy.most_splits + _MORE_LOOKS:
                raise Rejected("most_splits: too many ways to part the data were tried; a person must approve another one")
            self._ledger.append([{"kind": "look", "study": study.digest, "data": self._data, "split": _split(study)}])


def facts_of(study: Study, data: DomainDataset, evaluates: bool, known: set[str]) -> StudyFacts:
    """Facts that a site reads in the study's text, or finds out over its own data. `known`: the keys that it knows."""
    _refuse_odd_schema(study, data)
    dataset = as_agreed(data, study.schema)
    experiment = experiment_of(study, dataset)
    method = experiment.method
    _refuse_odd_places(study.plan)
    passed_on = set()
    for (phase, ask), path in asks_of(study.plan).items():
        try:
            down, up = task_types(find_task(path, method))
        except (AttributeError, TypeError) as error:
            raise Rejected(f"study: no task {path!r}") from error
        passed_on |= {told.kind for told in declarations(down).values() if told.passed_on}
        _refuse_other_plan(study.leaving(phase, ask), up, summed=study.sums and phase != "score" and is_summed(up))
    if passed_on != {*study.passed_on}:
        raise Rejected("study: it does not say what other sites get, as the method has it")
    sizes, classes = _parts(study, dataset, evaluates)
    return StudyFacts(
        method=str(study.experiment["method"]),
        rounds=study.rounds,
        participation=experiment.participation,
        plan=study.plan,
        passed_on=frozenset(passed_on),
        exposures=method.exposures(),
        public_sets=frozenset(method.public_sets()),
        sums=study.sums,
        known_clients=sum(study.participants[name].signing in known for name in study.training),
        strangers=sum(study.participants[name].signing not in known for name in study.training),
        trains=not evaluates,
        samples=sizes,
        classes=classes,
    )


def _parts(study: Study, dataset: DomainDataset, evaluates: bool) -> tuple[tuple[int, int], list[int]]:
    """How many samples, and of how many classes, train and validate here under the study's split."""
    domain = dataset.domains[0]
    if evaluates:
        parts = [np.empty(0, np.int64), np.arange(len(domain))]
    else:
        try:
            holding = per_domain(float(study.experiment["validation"]))([domain], int(study.experiment["seed"]))[0]
        except (BadInput, KeyError, TypeError) as error:
            raise Rejected(f"study: the data cannot be split as it says ({error})") from error
        parts = [part.parts[0][1] for part in (holding.train, holding.validation)]
    classes = [len(np.unique(np.asarray(domain.labels)[p])) for p in parts] if isinstance(dataset.task, Classification) else []
    return (len(parts[0]), len(parts[1])), classes


def _refuse_odd_schema(study: Study, data: DomainDataset) -> None:
    """What the sites' data have in common has the form of a site's own card, and fits this site's images."""
    own = card_of(data, evaluates=False)
    try:
        card = refuse_bad_card({"evaluates": False, **{key: value for key, value in study.schema.items() if key != "name"}})
    except BadInput:
        raise Rejected("study: what it says of the data cannot be read") from None
    if not isinstance(study.schema.get("name"), str) or any(card[key] != own[key] for key in ("task", "channels", "size")):
        raise Rejected("study: it is for other data than this site has")


def _refuse_odd_places(plan: Sequence[Leaving]) -> None:
    """One task at each place, each field once; scores where scores are asked for and nowhere else, or rules on them would not hold."""
    tasks = asks_of(plan)
    for row in plan:
        scores = (row.phase == "score", row.ask == SCORING_ASK, row.task == "scoring.score")
        if len({*scores}) > 1 or row.ask == 0 or tasks[row.phase, row.ask] != row.task:
            raise Rejected(f"study: its plan has {row.task} at a place where it cannot be")
    if len({(row.phase, row.ask, row.field) for row in plan}) < len(plan):
        raise Rejected("study: its plan names a field twice")


def _refuse_other_plan(rows: Sequence[Leaving], up: type[Payload], summed: bool) -> None:
    """The plan says of every field what the method that is installed here declares."""
    told = declarations(up)
    for row in rows:
        if row.kind == "nothing" and not row.field:
            continue
        say = told.get(row.field)
        if say is None or (row.kind, row.role, row.part, row.grows) != (say.kind, say.role, say.part, say.grows) or row.summed != summed:
            raise Rejected(f"study: its plan does not say of {row.field} what the method declares")


def _split(study: Study) -> str:
    return f"seed {_seed(study)}, validation {study.experiment.get('validation')}"


def _seed(study: Study) -> int:
    try:
        return int(study.experiment["seed"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise Rejected("study: its seed is no number") from None


def _trains_alike(one: Study, other: Study) -> bool:
    return (one.experiment, one.schema) == (other.experiment, other.schema)
