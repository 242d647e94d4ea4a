"""A secure sum at a site: its keys and shares, its masked answer, its consent and its unmasking, one step a question."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from unseen.engines.cohort import taking_part_of
from unseen.engines.tasks import Place
from unseen.errors import BadInput
from unseen.federation.site.policy import Rejected
from unseen.federation.site.studies import HeldStudy
from unseen.federation.study.sum_context import sum_context
from unseen.federation.sums.context import FEWEST_SITES, SumContext
from unseen.federation.sums.encoding import encode_answer
from unseen.federation.sums.site import SiteSum
from unseen.files import OWNER_ALONE, write_atomically
from unseen.payload import Payload
from unseen.state import Entries

__all__ = ["LAST_STEP", "WORDS", "SumStep", "context_of", "taking_part_in"]

WORDS, LAST_STEP = 2, 4


def taking_part_in(held: HeldStudy, round_number: int) -> list[str]:
    """The sites that train in a round, as the study and its approvals have it."""
    clients = sorted(name for name in held.agreed if not held.study.participants[name].evaluates)
    experiment = held.study.experiment
    return taking_part_of(clients, experiment["participation"], experiment["seed"], round_number)


def context_of(held: HeldStudy, place: Place, minimum_clients: int) -> SumContext:
    """Who is in the sum, by key and announced weight: from the study and its approvals, never from a question."""
    try:
        return sum_context(held.study, held.agreed, taking_part_in(held, place.round), place, max(FEWEST_SITES, minimum_clients))
    except BadInput as bad:
        raise Rejected(f"secure sums: {bad}") from bad


@dataclass(frozen=True)
class SumStep:
    """One step of one sum at this site. What must not be forgotten is on the disk before an answer leaves."""

    held: HeldStudy
    place: Place
    site: str
    key: Ed25519PrivateKey
    minimum_clients: int  # of the site's policy: fewer are not summed, however many are said to be lost

    def answer(self, step: int, content: bytes) -> bytes:
        """Any step but the one that brings the answer itself."""
        going = self._going()
        steps: dict[int, Callable[[], bytes]] = {
            1: going.keys,
            3: lambda: going.consent(content),
            4: lambda: going.unmask(content),
        }
        answer = steps[step]()
        self._keep(going)
        return answer

    def masked(
        self, content: bytes, asked: bytes | memoryview, work: Callable[[], tuple[Payload, Payload]], entries: Callable[[str], Entries]
    ) -> bytes:
        """The site's answer under masks. `work` gives the question and the answer to it."""
        going = self._going()
        going.take_keys(content, hashlib.sha256(asked).digest())
        self._keep(going)  # not after the masks are on: a site that is killed then gives the answer on its disk, or masks another, once
        down, up = work()
        return going.mask(encode_answer(up, down, self._context, self.site, entries))

    def forget_after(self, step: int) -> None:
        """Once the answer to the last step is on the disk, the secrets of the sum are needed no more. Step 0 is of no sum."""
        if step and step == self._context.steps[-1]:
            self.held.sum_file(self.place).unlink(missing_ok=True)

    @property
    def _context(self) -> SumContext:
        return context_of(self.held, self.place, self.minimum_clients)

    def _going(self) -> SiteSum:
        file = self.held.sum_file(self.place)
        return SiteSum(self._context, self.site, self.key, self.held.box(), file.read_bytes() if file.exists() else None)

    def _keep(self, going: SiteSum) -> None:
        write_atomically(self.held.sum_file(self.place), going.to_bytes(), OWNER_ALONE)
