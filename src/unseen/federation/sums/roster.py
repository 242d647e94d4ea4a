"""The sites that sent keys for a sum, and who of them masks with whom and holds shares of whose secrets.

Up to 32 sites everyone does with everyone (Bonawitz et al., CCS 2017). Above that each site has some partners alone (SecAgg+: Bell et
al., CCS 2020), on a ring whose order comes from all sites' keys of this sum.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from unseen.errors import RefusedReply
from unseen.federation.sums.context import SumContext, digest, hex_bytes, pack

__all__ = ["MOST_WITH_EVERYONE", "PublicKeys", "Roster", "partners_of"]

MOST_WITH_EVERYONE = 32
_ENTRIES = ("mask", "box", "seal")
_ANY_KEY = X25519PrivateKey.from_private_bytes(bytes(32))


@dataclass(frozen=True)
class PublicKeys:
    """What a site shows of its secrets for one sum, signed by it."""

    mask: bytes  # X25519: agrees on masks
    box: bytes  # X25519: encrypts shares
    seal: bytes  # SHA-256 of its own mask's seed, by which a wrong share of it is found out
    signature: bytes

    @classmethod
    def signed(cls, mask: bytes, box: bytes, seal: bytes, context: SumContext, site: str, key: Ed25519PrivateKey) -> Self:
        unsigned = cls(mask, box, seal, b"")
        return cls(mask, box, seal, context.sign("keys", unsigned._content(site), key))

    def plain(self) -> dict[str, str]:
        return {name: getattr(self, name).hex() for name in (*_ENTRIES, "signature")}

    @classmethod
    def read(cls, plain: Any, context: SumContext, site: str) -> Self:
        """Of this site, signed for this very sum; else RefusedReply."""
        signature = hex_bytes({"": plain.get("signature")} if isinstance(plain, dict) else None, [""], 64, "keys")[""]
        rest = {name: value for name, value in plain.items() if name != "signature"}
        keys = cls(**hex_bytes(rest, _ENTRIES, 32, "keys"), signature=signature)
        if not context.is_signed("keys", keys._content(site), site, keys.signature):
            raise RefusedReply(f"keys that {site} did not sign for this sum")
        _refuse_weak(keys.mask, keys.box)
        return keys

    def _content(self, site: str) -> bytes:
        return pack([site, *(getattr(self, name).hex() for name in _ENTRIES)])


def _refuse_weak(*keys: bytes) -> None:
    """A key of low order agrees with every other on the same, and the library refuses to: it would stop all who must use it."""
    try:
        for key in keys:
            _ANY_KEY.exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        raise RefusedReply("keys that agree on nothing") from None


class Roster:
    """The sites that sent keys, in name order; at least as many as the threshold, no key twice."""

    def __init__(self, context: SumContext, keys: Mapping[str, PublicKeys]) -> None:
        self.context, self.keys, self.names = context, dict(keys), sorted(keys)
        if len(self.names) < context.threshold:
            raise RefusedReply(
                f"a secure sum with the keys of {len(self.names)} of {len(context.sites)} sites; {context.threshold} are needed"
            )
        shown = [key for one in keys.values() for key in (one.mask, one.box)]
        if len(set(shown)) < len(shown):
            raise RefusedReply("a secure sum in which a key is there twice")
        self.number = {name: number for number, name in enumerate(self.names, start=1)}  # where its shares lie on the polynomials

    @classmethod
    def read(cls, context: SumContext, plain: Any) -> Roster:
        if not isinstance(plain, dict) or not plain.keys() <= context.sites.keys():
            raise RefusedReply("a secure sum with keys of sites that do not take part in it")
        return cls(context, {site: PublicKeys.read(keys, context, site) for site, keys in plain.items()})

    def plain(self) -> dict[str, dict[str, str]]:
        return {name: self.keys[name].plain() for name in self.names}

    @cached_property
    def digest(self) -> bytes:
        return digest(self.context.digest, pack(self.plain()))

    @cached_property
    def partners(self) -> dict[str, list[str]]:
        return partners_of(self.names, self.digest)

    @property
    def threshold(self) -> int:
        """How many shares give a secret back: as many as sites are needed; on a ring, more than two thirds of those who hold one."""
        if len(self.names) <= MOST_WITH_EVERYONE:
            return self.context.threshold
        return 2 * (len(self.partners[self.names[0]]) + 1) // 3 + 1

    def holders(self, site: str) -> list[str]:
        """Who holds shares of this site's secrets: its partners and itself. It holds shares of the same sites."""
        return sorted([site, *self.partners[site]])

    def refuse_too_few(self, site: str, names: Iterable[str], what: str) -> None:
        """RefusedReply unless enough sites are there, and enough of those who share with this one."""
        there = set(names)
        needed = max(self.context.threshold, self.context.fewest)
        if len(there) < needed or len(there.intersection(self.holders(site))) < self.threshold:
            raise RefusedReply(f"a secure sum of {len(there)} {what}; {needed} of {len(self.context.sites)} are needed")


def partners_of(names: list[str], seed: bytes) -> dict[str, list[str]]:
    """For each site, with whom it masks and shares. Every pair knows of each other.

    >>> partners_of(["a", "b", "c"], b"")
    {'a': ['b', 'c'], 'b': ['a', 'c'], 'c': ['a', 'b']}
    """
    number = len(names)
    if number <= MOST_WITH_EVERYONE:
        return {name: [other for other in names if other != name] for name in names}
    ring = sorted(names, key=lambda name: hashlib.sha256(seed + name.encode()).digest())
    reach = 2 * math.ceil(math.log2(number)) + 4  # to either side: 32 partners of 33 to 64 sites, 48 of 1000
    around = [step for step in range(-reach, reach + 1) if step]
    return {name: sorted({ring[(at + step) % number] for step in around} - {name}) for at, name in enumerate(ring)}
