"""The sites that are in a sum, with the keys that each made for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from unseen.errors import RefusedReply
from unseen.federation.sums.context import SumContext, digest, hex_bytes, pack

__all__ = ["PublicKeys", "Roster"]

_ENTRIES = ("mask", "seal")
_ANY_KEY = X25519PrivateKey.from_private_bytes(bytes(32))


@dataclass(frozen=True)
class PublicKeys:
    """What a site shows of its secrets for one sum, signed by it."""

    mask: bytes  # X25519: agrees on masks
    seal: bytes  # SHA-256 of its own mask's seed, by which a wrong share of it is found out
    signature: bytes

    @classmethod
    def signed(cls, mask: bytes, seal: bytes, context: SumContext, site: str, key: Ed25519PrivateKey) -> Self:
        unsigned = cls(mask, seal, b"")
        return cls(mask, seal, context.sign("keys", unsigned.content(site), key))

    def plain(self) -> dict[str, str]:
        return {name: getattr(self, name).hex() for name in (*_ENTRIES, "signature")}

    @classmethod
    def read(cls, plain: Any, context: SumContext, site: str) -> Self:
        """Of this site, signed for this very sum; else RefusedReply."""
        signature = hex_bytes({"": plain.get("signature")} if isinstance(plain, dict) else None, [""], 64, "keys")[""]
        rest = {name: value for name, value in plain.items() if name != "signature"}
        keys = cls(**hex_bytes(rest, _ENTRIES, 32, "keys"), signature=signature)
        if not context.is_signed("keys", keys.content(site), site, keys.signature):
            raise RefusedReply(f"keys that {site} did not sign for this sum")
        _refuse_weak(keys.mask)
        return keys

    def content(self, site: str) -> bytes:
        """What is signed, and what the boxes of this site are bound to."""
        return pack([site, *(getattr(self, name).hex() for name in _ENTRIES)])


def _refuse_weak(key: bytes) -> None:
    """A key of low order agrees with every other on the same, and the library refuses to: it would stop all who must use it."""
    try:
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
        if len({one.mask for one in keys.values()}) < len(keys):
            raise RefusedReply("a secure sum in which a key is there twice")

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

    def partners(self, site: str) -> list[str]:
        """Those of a site's partners that are in the sum."""
        return [name for name in self.context.partners[site] if name in self.keys]

    def refuse_too_few(self, site: str, names: Iterable[str], what: str) -> None:
        """RefusedReply unless enough sites are there, and enough of those who share with this one."""
        there = set(names)
        needed = max(self.context.threshold, self.context.fewest)
        if len(there) < needed or len(there.intersection(self.context.holders(site))) < self.context.shares_needed:
            raise RefusedReply(f"a secure sum of {len(there)} {what}; {needed} of {len(self.context.sites)} are needed")
