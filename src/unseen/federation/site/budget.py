"""How much privacy was spent over a site's data, and whether one more answer may leave.

Every answer is counted by its noise, over all studies, under the fingerprint of the data: in the user's state folder, whichever
folder a site works in, and in the ledger. What counts is the larger of both. An answer without noise spends without limit.

Opacus's accountant adds up the Renyi divergences of all answers, whatever the noise of each, and turns them into an epsilon. It is
imported only where a policy switches privacy on.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock, Timeout

from unseen.errors import BadInput
from unseen.federation.site.policy import Privacy, Rejected
from unseen.files import write_atomically

__all__ = ["Budget", "Spent", "epsilon"]

log = logging.getLogger("unseen.site")

Spent = tuple[float, int]  # noise in multiples of the clipping norm (0: none), and how many answers left with it
# Renyi orders to choose the best from. Opacus's own end at 63, which is too early for much noise.
_ORDERS = [1 + 10 ** (k / 20) for k in range(-60, 101)]
_SENSITIVITY = 2  # in clipping norms: any other data may move an answer from one end of the ball to the other
_LEAST_NOISE = 1e-7  # below, and no policy goes there, it is as good as none
_PATIENCE = 60.0  # seconds for another process to write a short file


def epsilon(history: Sequence[Spent], delta: float) -> float:
    """What answers with these noises spend together. Noise as large as `clip` is half as large as the sensitivity.

    >>> round(epsilon([(1.0, 1)], 1e-5), 2), epsilon([], 1e-5), epsilon([(0.0, 1)], 1e-5)
    (10.73, 0.0, inf)
    """
    counted = [(noise / _SENSITIVITY, 1.0, answers) for noise, answers in history if answers]
    if not counted:
        return 0.0
    if any(noise < _LEAST_NOISE for noise, _, _ in counted):
        return math.inf
    accountant = _opacus().RDPAccountant()
    accountant.history = counted
    return float(accountant.get_epsilon(delta, alphas=_ORDERS))


def _opacus() -> Any:
    try:
        import opacus.accountants
    except ImportError:
        raise BadInput("the policy switches privacy on, which needs opacus; run: pip install 'unseen[privacy]'") from None
    return opacus.accountants


class Budget:
    """What the answers over one site's data have spent. `data` is the SHA-256 of their content, `spent` what the ledger knows of them.

    The state lies in `state`, else in UNSEEN_STATE, else in the platform's folder for it. Where it cannot be read, nothing leaves.
    """

    def __init__(self, privacy: Privacy, data: str, spent: Sequence[Spent], state: Path | None = None) -> None:
        if not re.fullmatch(r"[0-9a-f]{64}", data):
            raise ValueError(f"data of fingerprint {data!r}; expected 64 hexadecimal digits")
        if privacy.on:
            _opacus()
        self._privacy, self._data = privacy, data
        named = state or os.environ.get("UNSEEN_STATE") or platformdirs.user_state_path("unseen")
        self._file = Path(named).absolute() / "privacy" / f"{data}.json"
        if not _makes_sense(spent):
            raise BadInput("the ledger tells of answers with a noise or a number that cannot be; look at it with: unseen ledger verify")
        self._known = _larger(spent, ())
        with self._alone():
            self._known = self._counted()

    def refuse_overspent(self) -> None:
        """Before the work is done: with one more answer, no more may be spent than the policy allows."""
        if self._privacy.on:
            with self._at_work():
                self._refuse(self._with_one_more())

    def spend(self) -> float:
        """Note one more answer before it leaves; the epsilon of all answers so far. Another process may have spent the rest meanwhile."""
        with self._at_work():
            history = self._with_one_more()
            if self._privacy.on:
                self._refuse(history)
            self._write(history)
            self._known = history
        return epsilon([*history.items()], self._privacy.delta)

    def _refuse(self, history: dict[float, int]) -> None:
        total = epsilon([*history.items()], self._privacy.delta)
        if total == math.inf:
            raise Rejected("privacy: answers over these data left without noise before, so no epsilon holds for them any more")
        if total > self._privacy.most_epsilon:
            raise Rejected(f"privacy: epsilon would be {total:.2f}, at most {self._privacy.most_epsilon:g} may be spent")

    def _with_one_more(self) -> dict[float, int]:
        history, noise = self._counted(), self._privacy.noise if self._privacy.on else 0.0
        return history | {noise: history.get(noise, 0) + 1}

    def _counted(self) -> dict[float, int]:
        """What the file tells, another process's answers among it; never less than what is known here."""
        try:
            content = json.loads(self._file.read_bytes())
            history = [(one["noise"], one["number"]) for one in content["answers"]]
            if content["data"] != self._data or not _makes_sense(history):
                raise ValueError("of other data, or with numbers that cannot be")
        except FileNotFoundError:
            history = []
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._unusable("cannot be read") from error
        return _larger([*self._known.items()], history)

    def _write(self, history: dict[float, int]) -> None:
        answers = [{"noise": noise, "number": number} for noise, number in sorted(history.items())]
        try:
            write_atomically(self._file, json.dumps({"data": self._data, "answers": answers}))
            self._file.chmod(0o600)
            folder = os.open(self._file.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._unusable(f"cannot be written ({error.strerror})") from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While no other process of this user counts answers over these data."""
        lock = FileLock(self._file.with_suffix(".lock"), timeout=_PATIENCE, mode=0o600)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock.acquire()
        except (OSError, Timeout) as error:
            raise self._unusable(f"cannot be locked ({type(error).__name__})") from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """A refusal goes to the server, so it does not name the file: its name is the fingerprint of the data."""
        try:
            with self._alone():
                yield
        except BadInput as error:
            log.error("%s", error)
            raise Rejected("privacy: the site can no longer tell what was spent; its log says more") from error

    def _unusable(self, why: str) -> BadInput:
        return BadInput(
            f"{self._file}, which tells how much privacy was spent over these data, {why}; "
            "put it back from a backup, or say with UNSEEN_STATE in which folder it lies. Without it nothing leaves"
        )


def _makes_sense(history: Sequence[Any]) -> bool:
    return all(type(noise) is float and 0 <= noise < math.inf and type(number) is int and 0 <= number <= 2**53 for noise, number in history)


def _larger(one: Sequence[Spent], other: Sequence[Spent]) -> dict[float, int]:
    """By noise, the larger number of answers."""
    together: dict[float, int] = {}
    for noise, number in (*one, *other):
        together[noise] = max(number, together.get(noise, 0))
    return together
