"""What all who take part in one sum must agree on, and how its parts are signed, derived and written down."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from unseen.errors import BadInput, RefusedReply
from unseen.federation.sums.partners import MOST_WITH_EVERYONE, partners_of

__all__ = ["FEWEST_SITES", "STEPS", "SumContext", "derive", "digest", "hex_bytes", "pack", "unpack"]

FEWEST_SITES = 3
STEPS = {1: "keys", 2: "words", 3: "consent", 4: "unmask"}
_LARGEST_NOTE = 64 * 2**20  # bytes of keys, shares, survivors and signatures
_HEX = re.compile(r"(?:[0-9a-f]{2})*")


@dataclass(frozen=True)
class SumContext:
    """One sum: its place in the study, the sites that are asked with their keys, and the samples that each site announced.

    All of it comes from the study and its approvals, never from a question. What a site signs or derives holds for this context alone.
    """

    study: str
    round: int
    ask: int
    sites: Mapping[str, Ed25519PublicKey]
    boxes: Mapping[str, bytes]  # X25519, of this study alone: shares for a site are encrypted with it
    counts: Mapping[str, int]  # the most that each site may weigh, where answers are weighed by samples
    may_lose: bool = False  # all sites approved that a sum may leave sites out; otherwise the sum is of all of them, or there is none
    fewest: int = FEWEST_SITES  # that a site wants in the sum: its own rule, so not part of what all agree on

    def __post_init__(self) -> None:
        if len(self.sites) < FEWEST_SITES:
            raise BadInput(
                f"a secure sum of {len(self.sites)} sites; it takes {FEWEST_SITES}, or a site could work out the others' answers"
            )
        if len(self.sites) < self.fewest:
            raise BadInput(f"a secure sum of {len(self.sites)} sites; this site's minimum_clients asks for {self.fewest}")
        if self.boxes.keys() != self.sites.keys():
            raise BadInput("a secure sum needs a key of each of its sites to encrypt shares with")
        if self.counts.keys() != self.sites.keys() or any(count < 0 for count in self.counts.values()):
            raise BadInput("a secure sum needs the number of samples of each of its sites")

    @property
    def threshold(self) -> int:
        """So many sites must go through every step: all of them, or more than two thirds where sites may be lost.

        Two sums of nearly equal answers that differ in a site tell its answer, and no site can see how equal answers are.
        """
        return 2 * len(self.sites) // 3 + 1 if self.may_lose else len(self.sites)

    @property
    def all_needed(self) -> bool:
        """Whether there is no sum without every site. Then the masks of pairs are enough, and no secret is shared out."""
        return self.threshold == len(self.sites)

    @property
    def steps(self) -> list[int]:
        """The steps of this sum. Where every site is needed, all masks cancel in the sum: nothing is to be consented to or unmasked."""
        return [1, 2] if self.all_needed else [*STEPS]

    def receivers(self, site: str) -> list[str]:
        """To whom a site gives shares of its secrets, and who give it theirs."""
        return [] if self.all_needed else self.partners[site]

    @cached_property
    def number(self) -> dict[str, int]:
        """Where a site's shares lie on the polynomials."""
        return {name: number for number, name in enumerate(sorted(self.sites), start=1)}

    @cached_property
    def partners(self) -> dict[str, list[str]]:
        """With whom each site masks and shares."""
        return partners_of(sorted(self.sites), self.digest)

    def holders(self, site: str) -> list[str]:
        """Who holds shares of this site's secrets: its partners and itself. It holds shares of the same sites."""
        return sorted([site, *self.partners[site]])

    @property
    def shares_needed(self) -> int:
        """How many shares give a secret back: as many as sites are needed; on a ring, more than two thirds of those who hold one."""
        if len(self.sites) <= MOST_WITH_EVERYONE:
            return self.threshold
        return 2 * (len(self.partners[min(self.sites)]) + 1) // 3 + 1

    def total(self, weighed: bool) -> int:
        """At least the sum of all sites' weights."""
        return max(1, sum(self.counts.values())) if weighed else len(self.sites)

    @cached_property
    def digest(self) -> bytes:
        keys = {site: key.public_bytes_raw().hex() for site, key in self.sites.items()}
        boxes = {site: box.hex() for site, box in self.boxes.items()}
        return digest(pack([self.study, self.round, self.ask, keys, boxes, dict(self.counts), self.may_lose]))

    def sign(self, purpose: str, content: bytes, key: Ed25519PrivateKey) -> bytes:
        return key.sign(self._signed(purpose, content))

    def is_signed(self, purpose: str, content: bytes, site: str, signature: bytes) -> bool:
        try:
            self.sites[site].verify(signature, self._signed(purpose, content))
        except (InvalidSignature, KeyError):
            return False
        return True

    def _signed(self, purpose: str, content: bytes) -> bytes:
        return f"unseen sum 3 {purpose} ".encode() + self.digest + digest(content)


def derive(secret: bytes, label: str, *context: bytes, length: int = 32) -> bytes:
    """Bytes for one use, from a secret and everything that they are to hold for."""
    return HKDF(SHA256(), length, salt=None, info=f"unseen sum 3 {label} ".encode() + digest(*context)).derive(secret)


def digest(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).digest()


def pack(value: Any) -> bytes:
    """Plain values as JSON, the same bytes for the same values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def unpack(data: bytes | memoryview, *keys: str) -> dict[str, Any]:
    """The object that `pack` wrote, with exactly these keys; RefusedReply for anything else."""
    try:
        value = json.loads(bytes(data)) if len(data) <= _LARGEST_NOTE else None
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or value.keys() != set(keys):
        raise RefusedReply(f"a step of a secure sum that does not hold {', '.join(keys)}")
    return value


def hex_bytes(table: Any, names: Iterable[str], size: int, what: str) -> dict[str, bytes]:
    """The bytes that a table holds in hexadecimal under exactly these names."""
    wanted = set(names)
    fits = isinstance(table, dict) and table.keys() == wanted
    if not fits or not all(isinstance(text, str) and len(text) == 2 * size and _HEX.fullmatch(text) for text in table.values()):
        raise RefusedReply(f"{what} of a secure sum that are missing, too many or of another form")
    return {name: bytes.fromhex(text) for name, text in table.items()}
