"""The studies that a site approved, on its disk: what they say, how far they are, and the answers that were given.

Each place of a study is answered once, for the first question that names it, and in order. An answer that was lost on its way is given
again as it was. Of a study that ended, only its text and its end are kept.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from unseen.engines.frames import frame_parts, read_frame
from unseen.engines.tasks import Place
from unseen.errors import BadInput
from unseen.federation.messages import Message
from unseen.federation.site.by_hand import waiting_file
from unseen.federation.site.policy import Rejected
from unseen.federation.study.approvals import Approval, read_approval, read_approvals
from unseen.federation.study.study import Study, read_study
from unseen.files import OWNER_ALONE, write_atomically

__all__ = ["HeldStudy", "SiteStudies"]

_KEPT_ROUNDS = 2  # a server that goes back to its last checkpoint but one asks for these again
_MOST_WAITING = 8  # studies that nobody has approved
_BOX = "box.secret"
_SCORE_IS_LAST = 10**6  # a round's score is asked for after everything else in it


@dataclass
class Progress:
    """How far a study is at this site."""

    order: list[int] = field(default_factory=lambda: [-1, 0, 0])  # of the last place that was asked about
    asked: dict[str, str] = field(default_factory=dict)  # the question at each place of the last rounds
    left: dict[str, int] = field(default_factory=dict)  # bytes, by round
    named: dict[str, list[str]] = field(default_factory=dict)  # memories that the server named, by round
    ended: bool = False


class HeldStudy:
    """One approved study."""

    def __init__(self, folder: Path, study: Study, approval: Approval) -> None:
        self.folder, self.study, self.approval = folder, study, approval
        self.memory = folder / "memory"
        self._answers = folder / "answers"
        self._file, self._box = folder / "progress.json", folder / _BOX
        self.progress = Progress()
        with contextlib.suppress(FileNotFoundError):
            try:
                self.progress = Progress(**json.loads(self._file.read_text()))
            except (ValueError, TypeError) as error:
                raise BadInput(
                    f"{self._file} cannot be read ({type(error).__name__}); restore it: without it questions could be repeated"
                ) from error
        self.agreed: dict[str, Approval] = {}
        with contextlib.suppress(FileNotFoundError):
            self.agreed = read_approvals(json.loads((folder / "approvals.json").read_text()), study)

    def agree(self, approvals: Mapping[str, Approval]) -> None:
        """Keep who else approved. It is told once, before the first question."""
        if self.agreed and self.agreed != dict(approvals):
            raise Rejected("study: who approved it was told before, and otherwise")
        self.agreed = dict(approvals)
        write_atomically(self.folder / "approvals.json", json.dumps([one.plain() for one in approvals.values()]))

    def open_place(self, place: Place, step: int, question: str) -> Message | None:
        """Take the place for this question. The answer that was given to it before, if any; Rejected for any other question there."""
        key, order = _key(place, step), [place.round, place.ask if place.ask != -1 else _SCORE_IS_LAST, step]
        known = self.progress.asked.get(key)
        if known is not None:
            if known != question:
                raise Rejected(f"study: round {place.round} was asked another question here")
            return self._read_answer(key)
        if self.progress.ended or order <= self.progress.order:
            raise Rejected("study: it has ended" if self.progress.ended else f"study: it is past this place of round {place.round}")
        if place.round > self.progress.order[0]:
            self._forget(place.round - _KEPT_ROUNDS)
        self.progress.order, self.progress.asked[key] = order, question
        self._save()
        return None

    def keep_answer(self, place: Place, step: int, answer: Message, size: int, ends: bool) -> None:
        """The answer on the disk, before it leaves. It is signed whenever it leaves, with the ledger as it stands then."""
        self._answers.mkdir(exist_ok=True, mode=0o700)
        write_atomically(self._answers / _key(place, step), frame_parts({"header": answer.header}, answer.payload))
        left = self.progress.left
        left[str(place.round)] = left.get(str(place.round), 0) + size
        self.progress.ended = ends
        self._save()
        if ends:
            shutil.rmtree(self.memory, ignore_errors=True)
            shutil.rmtree(self.folder / "sums", ignore_errors=True)
            self._box.unlink(missing_ok=True)

    def box(self) -> bytes:
        """The private key that this site made for the sums of this study."""
        try:
            return self._box.read_bytes()
        except FileNotFoundError:
            raise Rejected("secure sums: this site's key for the sums of this study is gone; propose the study anew") from None

    def sum_file(self, place: Place) -> Path:
        """Where the site's secrets of a sum lie between its steps."""
        folder = self.folder / "sums"
        folder.mkdir(exist_ok=True, mode=0o700)
        return folder / f"{place.round}.{place.ask}"

    def left_in(self, round_number: int) -> int:
        return self.progress.left.get(str(round_number), 0)

    def name_memories(self, round_number: int, files: Iterable[str]) -> set[str]:
        """The memories that must stay: those that this round or one before it named."""
        self.progress.named[str(round_number)] = sorted(files)
        return {file for files in self.progress.named.values() for file in files}

    def _forget(self, before: int) -> None:
        """Answers, counts and names of rounds that no server goes back to."""
        for table in (self.progress.left, self.progress.named):
            for number in [n for n in table if int(n) < before]:
                del table[number]
        for secrets in (self.folder / "sums").glob("*"):  # of a sum that was given up, or left by a kill while they were written
            if int(secrets.name.lstrip(".").split(".")[0]) < before:
                secrets.unlink()
        for key in [k for k in self.progress.asked if int(k.split(".")[0]) < before]:
            del self.progress.asked[key]
            (self._answers / key).unlink(missing_ok=True)

    def _read_answer(self, key: str) -> Message | None:
        try:
            with (self._answers / key).open("rb") as stream:
                header, payload = read_frame(stream)
        except (FileNotFoundError, EOFError):
            return None  # the process ended before it had answered
        return Message(header["header"], payload)

    def _save(self) -> None:
        write_atomically(self._file, json.dumps(asdict(self.progress)))


class SiteStudies:
    """All studies of a site, and the keys of other sites that its people have seen."""

    def __init__(self, folder: Path, members: Mapping[str, str]) -> None:
        self._folder, self._known, self._waiting = folder / "studies", folder / "known_sites.json", folder / "waiting"
        self._held: dict[str, HeldStudy] = {}
        self.known_keys: set[str] = {*members.values()}
        with contextlib.suppress(FileNotFoundError):
            self.known_keys |= {*json.loads(self._known.read_text()).values()}

    def get(self, digest: str) -> HeldStudy | None:
        """An approved study by its name."""
        if digest not in self._held:
            folder = self._folder / digest
            if not (folder / "approval.json").is_file():
                return None
            try:
                study = read_study(json.loads((folder / "study.json").read_text()))
            except (OSError, ValueError, RecursionError) as error:
                why = error if isinstance(error, BadInput) else type(error).__name__
                raise BadInput(
                    f"study {digest[:16]} of this site cannot be read: it was changed, or another version wrote it ({why})"
                ) from error
            if study.digest != digest:
                raise BadInput(f"{folder / 'study.json'} was changed; restore it")
            self._held[digest] = HeldStudy(folder, study, read_approval(json.loads((folder / "approval.json").read_text())))
        return self._held[digest]

    @property
    def at_rest(self) -> bool:
        """Whether no study that this process was asked about is under way: agreed upon, and not at its end."""
        return not any(held.agreed and not held.progress.ended for held in self._held.values())

    def _sweep(self) -> None:
        """Answers of studies that ended are needed no more. Only their progress is read: another version may have written the rest."""
        for file in self._folder.glob("*/progress.json"):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                if json.loads(file.read_text())["ended"] is True:
                    shutil.rmtree(file.parent / "answers", ignore_errors=True)

    def put(self, study: Study, approval: Approval, box: X25519PrivateKey | None) -> HeldStudy:
        """Keep an approved study, and the key for its sums. The approval is written last: without it there is none."""
        self._sweep()
        folder = self._folder / study.digest
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(folder / "study.json", study.text)
        if box is not None:
            write_atomically(folder / _BOX, box.private_bytes_raw(), OWNER_ALONE)
        write_atomically(folder / "approval.json", json.dumps(approval.plain()))
        self._held[study.digest] = HeldStudy(folder, study, approval)
        waiting_file(self._folder.parent, study.digest).unlink(missing_ok=True)
        return self._held[study.digest]

    def keep_waiting(self, digest: str, signed_study: bytes) -> None:
        """A study that the server wants to begin and nobody here has approved. The newest few are kept."""
        self._waiting.mkdir(exist_ok=True, mode=0o700)
        write_atomically(waiting_file(self._folder.parent, digest), signed_study)
        for old in sorted(self._waiting.glob("*.json"), key=lambda file: file.stat().st_mtime)[:-_MOST_WAITING]:
            old.unlink(missing_ok=True)

    def know(self, study: Study) -> None:
        """A person has seen who takes part: from now on these keys are known here."""
        keys = {name: site.signing for name, site in study.participants.items()}
        before = json.loads(self._known.read_text()) if self._known.exists() else {}
        write_atomically(self._known, json.dumps({**before, **keys}, indent=1))
        self.known_keys |= {*keys.values()}


def _key(place: Place, step: int) -> str:
    return f"{place.round}.{place.ask}.{step}"
