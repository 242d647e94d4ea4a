"""A site's side of one sum: two steps, or four where sites may be lost, each answered once.

    1 keys      the site shows keys for this sum, signed, and shares its secrets among all sites, encrypted for each
    2 words     it sends its answer in fixed point under masks
    3 consent   it signs who survived, that is, whose words the server has
    4 unmask    with enough signatures over the same survivors, it gives shares: of a survivor's own mask, of a lost site's masking key

A server that lies gets nothing by it. A site signs one set of survivors and gives shares for that set alone, so that it never
gives both kinds for one site. Two sets cannot both have the signatures of two thirds of the sites, unless a third of them lies too.
Masks depend on everything that the sites must have been shown alike: the keys, the question. A server that shows one site something
else gets words whose masks do not cancel.

Where every site is needed (there are three, or not all sites allow a sum to lose some), a sum of fewer is none, and nobody who is lost
is made up for. So a site masks its words with its partners alone, shares no secret, and is asked no third and fourth step: in the sum of
all sites, and only there, the masks cancel.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from unseen.errors import RefusedReply
from unseen.federation.sums.context import STEPS, SumContext, digest, hex_bytes, pack, unpack
from unseen.federation.sums.roster import Roster
from unseen.federation.sums.shamir import BYTES_OF_SHARE
from unseen.federation.sums.site_secrets import BYTES_OF_BOX, SiteSecrets, pair_key, self_key
from unseen.federation.sums.words import Words, add_streams

__all__ = ["SiteSum", "bound_to", "names_in"]

_NOTHING_YET = {"roster": {}, "boxes": {}, "bound": "", "words": "", "survivors": []}


class SiteSum:
    """Made anew for step 1, and from its own bytes after a restart. What must not be forgotten is written before an answer leaves."""

    def __init__(self, context: SumContext, site: str, key: Ed25519PrivateKey, box: bytes, state: bytes | None = None) -> None:
        """`key` signs; `box` is the site's private key of this study, which opens the shares that are meant for it."""
        self._context, self._site, self._key = context, site, key
        if site not in context.sites:
            raise RefusedReply(f"a secure sum in which {site} does not take part")
        self._state: dict[str, Any] = {"context": context.digest.hex(), "seed": secrets.token_hex(32), **_NOTHING_YET, "asked": {}}
        if state is not None:
            self._state = unpack(state, *self._state)
            if self._state["context"] != context.digest.hex():
                raise RefusedReply("a secure sum, and what this site kept is of another one")
        self._secrets = SiteSecrets(context, site, bytes.fromhex(self._state["seed"]), box)
        self._roster = Roster.read(context, self._state["roster"]) if self._state["roster"] else None

    def to_bytes(self) -> bytes:
        """All that a restarted site needs. It holds secrets until the sum is done; then it is to be deleted."""
        return pack(self._state)

    def keys(self) -> bytes:
        """Step 1: the question has no content, the answer this site's keys and a box for each partner."""
        self._once(1, b"")
        keys = self._secrets.public(self._key)
        return pack({"keys": keys.plain(), "boxes": {name: box.hex() for name, box in self._secrets.boxes(keys).items()}})

    def take_keys(self, question: bytes, asked: bytes) -> None:
        """Step 2, before the work: the question holds the signed keys of all sites in the sum, and the boxes for this one.

        `asked` is the SHA-256 of what is to be answered: the bytes of the method's question.
        """
        self._refuse_out_of_order(2, question + asked)
        held = unpack(question, "keys", "boxes")
        roster = Roster.read(self._context, held["keys"])
        if self._site not in roster.keys or roster.keys[self._site] != self._secrets.public(self._key):
            raise RefusedReply("a secure sum with other keys of this site than it gave")
        roster.refuse_too_few(self._site, roster.names, "sites with keys")
        senders = [name for name in self._context.receivers(self._site) if name in roster.keys]
        boxes = hex_bytes(held["boxes"], senders, BYTES_OF_BOX, "boxes")
        self._once(2, question + asked)
        self._roster = roster
        plain = {name: box.hex() for name, box in boxes.items()}
        self._state |= {"roster": roster.plain(), "boxes": plain, "bound": bound_to(roster, asked).hex()}

    def mask(self, words: Words) -> bytes:
        """Step 2, after the work: the answer. `words` are masked in place.

        Masks are used once: other words under the same masks would tell the difference. So after an answer only the same one is given.
        """
        roster, bound = self._known(), bytes.fromhex(self._state["bound"])
        plus, minus = [] if self._context.all_needed else [self_key(self._secrets.own, bound)], list[bytes]()
        for partner in roster.partners(self._site):
            key = pair_key(self._secrets.mask, roster.keys[partner].mask, bound)
            (plus if self._site < partner else minus).append(key)
        add_streams(words, plus, minus)
        answer = words.to_bytes()
        given = hashlib.sha256(answer).hexdigest()
        if self._state["words"] not in ("", given):
            raise RefusedReply("a secure sum to which this site gave another answer before")
        self._state["words"] = given
        return answer

    def consent(self, question: bytes) -> bytes:
        """Step 3: the question holds the survivors, the answer this site's signature of them."""
        self._refuse_out_of_order(3, question)
        roster = self._known()
        survivors = names_in(unpack(question, "survivors")["survivors"], roster.names, self._site)
        roster.refuse_too_few(self._site, survivors, "survivors")
        self._once(3, question)
        self._state["survivors"] = survivors
        return pack({"signature": self._context.sign("consent", self._consented(roster), self._key).hex()})

    def unmask(self, question: bytes) -> bytes:
        """Step 4: the question holds signatures of the same survivors, the answer one share of each site that this one holds shares of."""
        self._refuse_out_of_order(4, question)
        roster, signed = self._known(), unpack(question, "signatures")["signatures"]
        survivors = set(self._state["survivors"])
        self._refuse_unsigned(roster, survivors, signed)
        self._once(4, question)
        own: dict[str, str] = {}
        masking: dict[str, str] = {}
        for name, shares in self._held(roster).items():
            if name in survivors:
                own[name] = shares[:BYTES_OF_SHARE].hex()
            else:
                masking[name] = shares[BYTES_OF_SHARE:].hex()
        return pack({"own": own, "masking": masking})

    def _refuse_unsigned(self, roster: Roster, survivors: set[str], signed: Any) -> None:
        """RefusedReply unless enough of the survivors signed that they are the survivors."""
        if not isinstance(signed, dict) or not signed.keys() <= survivors:
            raise RefusedReply("a secure sum with signatures of others than its survivors")
        if len(signed) < self._context.threshold:
            raise RefusedReply(f"a secure sum whose survivors {len(signed)} sites signed; {self._context.threshold} must")
        for name, signature in hex_bytes(signed, signed, 64, "signatures").items():
            if not self._context.is_signed("consent", self._consented(roster), name, signature):
                raise RefusedReply(f"a secure sum whose survivors {name} did not sign as they were shown here")

    def _held(self, roster: Roster) -> Mapping[str, bytes]:
        """The shares that lie here, of this site's secrets and of its partners'. What was changed on its way is left out."""
        opened = {n: self._secrets.open_box(n, roster.keys[n], bytes.fromhex(box)) for n, box in self._state["boxes"].items()}
        return {self._site: self._secrets.shares[self._site]} | {n: shares for n, shares in opened.items() if shares is not None}

    def _consented(self, roster: Roster) -> bytes:
        return pack([roster.digest.hex(), self._state["bound"], self._state["survivors"]])

    def _known(self) -> Roster:
        if self._roster is None:
            raise RefusedReply("a secure sum whose step 2 (words) was not asked")
        return self._roster

    def _refuse_out_of_order(self, step: int, question: bytes) -> None:
        asked: dict[str, str] = self._state["asked"]
        if step not in self._context.steps:
            sites = len(self._context.sites)
            raise RefusedReply(f"step {step} ({STEPS[step]}), which a secure sum that needs all of its {sites} sites does not have")
        if asked.get(str(step), digest(question).hex()) != digest(question).hex():
            raise RefusedReply(f"step {step} ({STEPS[step]}) of a secure sum, which was asked in another way before")
        if str(step) not in asked and len(asked) != self._context.steps.index(step):
            raise RefusedReply(f"step {step} ({STEPS[step]}) of a secure sum after step {max(asked, default=0)}")

    def _once(self, step: int, question: bytes) -> None:
        self._refuse_out_of_order(step, question)
        self._state["asked"][str(step)] = digest(question).hex()


def names_in(names: Any, among: list[str], site: str) -> list[str]:
    """A list of names in order, this site's among them, each one of those that may be there; else RefusedReply."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise RefusedReply("a secure sum with names that cannot be read")
    if names != sorted(set(names)) or not set(names) <= set(among) or site not in names:
        raise RefusedReply("a secure sum whose sites are not those of the step before, or not with this one")
    return list(names)


def bound_to(roster: Roster, asked: bytes) -> bytes:
    """What all masks depend on: the keys of all sites in the sum, and the SHA-256 of the question."""
    return digest(roster.digest, asked)
