"""The server's side of one sum: it passes on what the sites tell each other, adds up masked words, and takes the masks off the sum.

A step is asked with `questions`, each answer goes to `take` (or `miss` says why there is none), and `advance` ends it. A site that
fails in steps 1 and 2 is left out of the sum. One that fails later is in it: its masks come off by the shares that others hold.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from functools import cached_property
from typing import Any

from unseen.errors import NoReplies, RefusedReply
from unseen.federation.activity import printable
from unseen.federation.sums.context import STEPS, SumContext, hex_bytes, pack, unpack
from unseen.federation.sums.roster import PublicKeys, Roster
from unseen.federation.sums.shamir import BYTES_OF_SHARE, PRIME, recover
from unseen.federation.sums.site import bound_to
from unseen.federation.sums.site_secrets import BYTES_OF_BOX, fits_mask_key, fits_seal, pair_key, self_key
from unseen.federation.sums.words import Form, Words, add_streams

__all__ = ["DONE", "ServerSum"]

DONE = max(STEPS) + 1
_WORDS = 2  # the step that brings answers


class ServerSum:
    """One sum, from its first question or from its own bytes: a restarted server asks again what it asked, and goes on."""

    def __init__(self, context: SumContext, asked: bytes, state: bytes | None = None, words: bytes = b"", fewest: int = 0) -> None:
        """`asked` is the SHA-256 of what the sites are asked in step 2; so many at the `fewest` must be in the sum."""
        self._context, self._asked, self._fewest = context, asked, fewest
        self.step = 1  # the one that is being asked; above the last: the sum is there
        self.missing: dict[str, str] = {}  # who is not in the sum, or failed later, and why
        self._keys: dict[str, Any] = {}
        self._boxes: dict[str, dict[str, str]] = {}  # by sender and receiver
        self._survivors: list[str] = []
        self._signatures: dict[str, str] = {}
        self._shares: dict[str, dict[str, dict[str, bytes]]] = {}  # by who gave them
        self._sums: dict[Form, Words] = {}  # by layout and number: sites that differ in them cannot be added
        self._forms: dict[str, Form] = {}  # by site
        if state is not None:
            self._restore(state, words)

    @property
    def expected(self) -> list[str]:
        """Whose answer to this step is still to come: those who answered all steps before it."""
        asked: Collection[str] = {1: self._context.sites, _WORDS: self._keys, 3: self._survivors, 4: self._signatures}.get(self.step, ())
        return sorted(set(asked) - set(self._answered()))

    def questions(self) -> dict[str, bytes]:
        """What to ask whom in this step; the same after a restart. In step 2 the question itself goes along, the same for everyone."""
        return {site: self._question(site) for site in self.expected}

    def _question(self, site: str) -> bytes:
        if self.step == 1:
            return b""
        if self.step == _WORDS:
            inbox = {sender: boxes[site] for sender, boxes in self._boxes.items() if site in boxes}
            return pack({"keys": self._keys, "boxes": inbox})
        if self.step == 3:
            return pack({"survivors": self._survivors})
        return pack({"signatures": self._signatures})

    def take(self, site: str, answer: bytes | memoryview) -> None:
        """An answer to this step. Whatever is wrong with it, only its sender is left out."""
        if site not in self.expected:
            return
        steps = {1: self._take_keys, _WORDS: self._take_words, 3: self._take_consent, 4: self._take_unmasking}
        try:
            steps[self.step](site, answer)
            self.missing.pop(site, None)
        except RefusedReply as refusal:
            self.miss(site, str(refusal))

    def miss(self, site: str, reason: str) -> None:
        """No answer came from this site, or one that does not count."""
        self.missing[site] = printable(reason)  # it may quote what the site sent

    def _take_keys(self, site: str, answer: bytes | memoryview) -> None:
        given = unpack(answer, "keys", "boxes")
        keys = PublicKeys.read(given["keys"], self._context, site)
        if keys.mask.hex() in {other["mask"] for other in self._keys.values()}:
            raise RefusedReply("keys that another site showed")
        boxes = hex_bytes(given["boxes"], self._context.receivers(site), BYTES_OF_BOX, "boxes")
        self._keys[site], self._boxes[site] = keys.plain(), {name: box.hex() for name, box in boxes.items()}

    def _take_words(self, site: str, answer: bytes | memoryview) -> None:
        words = Words.from_bytes(answer)
        if words.form in self._sums:
            self._sums[words.form].add(words)
        else:
            self._sums[words.form] = words.own()  # the answer is read nowhere else
        self._forms[site] = words.form

    def _take_consent(self, site: str, answer: bytes | memoryview) -> None:
        signature = hex_bytes(unpack(answer, "signature"), ["signature"], 64, "signatures")["signature"]
        if not self._context.is_signed("consent", self._consented(), site, signature):
            raise RefusedReply("a signature that does not fit the survivors")
        self._signatures[site] = signature.hex()

    def _take_unmasking(self, site: str, answer: bytes | memoryview) -> None:
        given, held = unpack(answer, "own", "masking"), set(self._context.holders(site))
        survived = held.intersection(self._survivors)
        shares = {}
        for kind, fitting in (("own", survived), ("masking", held.intersection(self._keys) - survived)):
            names = fitting.intersection(given[kind]) if isinstance(given[kind], dict) else ()  # some of those sent to it may not open
            shares[kind] = hex_bytes(given[kind], names, BYTES_OF_SHARE, "shares")
            if any(int.from_bytes(share, "big") >= PRIME for share in shares[kind].values()):
                raise RefusedReply("shares that are no numbers of the field")
        self._shares[site] = shares

    def advance(self) -> None:
        """End this step: what came is what the sum goes on with. NoReplies where it is too little; more may be asked for and taken then."""
        if self.step == _WORDS:
            self._survivors = self._alike()
        self._refuse_too_few(len(self._survivors if self.step == _WORDS else self._answered()))
        if self.step == _WORDS:
            self._sums = {kind: words for kind, words in self._sums.items() if kind == self._forms[self._survivors[0]]}
        elif self.step == 4:
            self._unmask()
        self.step = next((step for step in self._context.steps if step > self.step), DONE)

    @property
    def survivors(self) -> list[str]:
        """The sites that are in the sum: known after step 2."""
        return list(self._survivors)

    @property
    def result(self) -> Words:
        """The sum of the survivors' words, without masks."""
        if self.step != DONE:
            raise RuntimeError(f"a secure sum that is at step {self.step}")
        return next(iter(self._sums.values()))

    def _answered(self) -> Collection[str]:
        return {1: self._keys, _WORDS: self._forms, 3: self._signatures, 4: self._shares}.get(self.step, {})

    def _alike(self) -> list[str]:
        """The sites whose answers have the layout that most have: which fields are there, and of which shapes."""
        usual = Counter(self._forms.values()).most_common(1)
        for site, kind in self._forms.items():
            if kind != usual[0][0]:
                self.missing[site] = "its answer differs from the others' in the fields that are there, or in their shapes or types"
        return sorted(site for site, kind in self._forms.items() if kind == usual[0][0]) if usual else []

    def _refuse_too_few(self, good: int) -> None:
        needed, sites = self._context.threshold, len(self._context.sites)
        if self.step <= _WORDS:  # who fails later is in the sum
            needed = max(needed, min(self._fewest, sites))
        if good < needed:
            reasons = "; ".join(f"{site}: {reason}" for site, reason in sorted(self.missing.items()))
            what = f"step {self.step} ({STEPS[self.step]}) of a secure sum"
            rule = "" if self._context.may_lose else "; no site may be left out of it, since not every site's sums_may_lose_sites is true"
            raise NoReplies(f"{good} of {sites} sites gave a usable answer to {what}, {needed} are needed ({reasons}){rule}")

    @cached_property
    def _roster(self) -> Roster:  # after step 1
        return Roster.read(self._context, self._keys)

    @cached_property
    def _bound(self) -> bytes:
        return bound_to(self._roster, self._asked)

    def _consented(self) -> bytes:
        return pack([self._roster.digest.hex(), self._bound.hex(), self._survivors])

    def _unmask(self) -> None:
        """Take off each survivor's own mask, and the masks that survivors share with a site whose words never came."""
        roster, bound, survived = self._roster, self._bound, set(self._survivors)
        plus, minus = list[bytes](), [self_key(self._secret(site, "own", roster), bound) for site in self._survivors]
        for lost in sorted(set(self._keys) - survived):
            with_words = survived.intersection(roster.partners(lost))
            secret = self._secret(lost, "masking", roster) if with_words else b""
            for site in sorted(with_words):
                key = pair_key(secret, roster.keys[site].mask, bound)
                (minus if site < lost else plus).append(key)
        add_streams(next(iter(self._sums.values())), plus, minus)

    def _secret(self, site: str, kind: str, roster: Roster) -> bytes:
        shares = {self._context.number[holder]: given[kind][site] for holder, given in self._shares.items() if site in given[kind]}
        fits = fits_seal if kind == "own" else fits_mask_key
        secret = recover(shares, self._context.shares_needed, lambda found: fits(found, roster.keys[site]))
        if secret is None:
            raise NoReplies(f"the shares that came do not give back the secret of {site} in a secure sum ({len(shares)} shares)")
        return secret

    def to_bytes(self) -> bytes:
        """To be written after each `advance`, but for the words: what came within a step is asked for again."""
        kept = {
            "context": self._context.digest.hex(), "asked": self._asked.hex(), "step": self.step, "missing": self.missing,
            "keys": self._keys if self.step > 1 else {}, "boxes": self._boxes if self.step > 1 else {}, "survivors": self._survivors,
            "signatures": self._signatures if self.step > 3 else {},
        }  # fmt: skip
        return pack(kept)

    def words_in_parts(self) -> tuple[bytes | memoryview, ...]:
        """The sum so far, in bytes. It changes when step 2 ends and when step 4 does, and may have gigabytes."""
        return next(iter(self._sums.values())).in_parts()

    def _restore(self, state: bytes, words: bytes) -> None:
        kept = unpack(state, "context", "asked", "step", "missing", "keys", "boxes", "survivors", "signatures")
        if (kept["context"], kept["asked"]) != (self._context.digest.hex(), self._asked.hex()):
            raise RefusedReply("what the server kept of another secure sum")
        self.step, self.missing, self._keys, self._boxes = kept["step"], kept["missing"], kept["keys"], kept["boxes"]
        self._survivors, self._signatures = kept["survivors"], kept["signatures"]
        if self.step > _WORDS:
            total = Words.from_bytes(words).copy()
            self._sums, self._forms = {total.form: total}, dict.fromkeys(self._survivors, total.form)
