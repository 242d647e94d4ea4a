"""What a site keeps secret during one sum, all of it from one seed, and the masks that two sites agree on."""

from __future__ import annotations

import hashlib
from functools import cached_property

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from unseen.federation.sums.context import SumContext, derive
from unseen.federation.sums.roster import PublicKeys, Roster
from unseen.federation.sums.shamir import BYTES_OF_SHARE, RANDOM_BYTES, split

__all__ = ["BYTES_OF_BOX", "SiteSecrets", "fits_mask_key", "fits_seal", "pair_key", "seal_of", "self_key"]

BYTES_OF_BOX = 2 * BYTES_OF_SHARE + 16  # both shares, and the tag
_NONCE = bytes(12)  # every key encrypts one box alone


class SiteSecrets:
    """The same seed gives the same secrets, so that a site that was restarted goes on where it was."""

    def __init__(self, context: SumContext, site: str, seed: bytes) -> None:
        self._context, self._site, self._seed = context, site, seed
        self.mask = self._derived("mask key")  # X25519, shared out: given back for a site that gave shares and no words
        self.own = self._derived("own mask")  # a seed, shared out: given back for a site whose words came
        self._box = self._derived("box key")

    def _derived(self, label: str, *context: bytes, length: int = 32) -> bytes:
        return derive(self._seed, label, self._context.digest, self._site.encode(), *context, length=length)

    def public(self, key: Ed25519PrivateKey) -> PublicKeys:
        return PublicKeys.signed(_public(self.mask), _public(self._box), seal_of(self.own), self._context, self._site, key)

    def shares(self, roster: Roster) -> dict[str, bytes]:
        """For each holder its share of the seed of the own mask, then its share of the masking key."""
        holders = {roster.number[name]: name for name in roster.holders(self._site)}
        pairs = [split(secret, holders, roster.threshold, self._coefficients(label, roster)) for label, secret in self._shared]
        return {name: pairs[0][number] + pairs[1][number] for number, name in holders.items()}

    @cached_property
    def _shared(self) -> list[tuple[str, bytes]]:
        return [("own mask's polynomial", self.own), ("mask key's polynomial", self.mask)]

    def _coefficients(self, label: str, roster: Roster) -> bytes:
        return self._derived(label, roster.digest, length=RANDOM_BYTES * (roster.threshold - 1))

    def boxes(self, roster: Roster) -> dict[str, bytes]:
        """The shares of all holders but this site, each encrypted for its holder."""
        return {
            name: self._cipher(roster, name, self._site, name).encrypt(_NONCE, share, None)
            for name, share in self.shares(roster).items()
            if name != self._site
        }

    def open_box(self, roster: Roster, sender: str, box: bytes) -> bytes | None:
        """The shares that another site sent here; None where they are not what that site sent."""
        try:
            return self._cipher(roster, sender, sender, self._site).decrypt(_NONCE, box, None)
        except InvalidTag:
            return None

    def _cipher(self, roster: Roster, partner: str, sender: str, receiver: str) -> ChaCha20Poly1305:
        agreed = _agreed(self._box, roster.keys[partner].box)
        return ChaCha20Poly1305(derive(agreed, "box", roster.digest, sender.encode(), receiver.encode()))


def pair_key(secret: bytes, public: bytes, bound: bytes) -> bytes:
    """The key of the stream that two sites mask with: one adds it, the other takes it off. `bound` is what both must have been shown."""
    return derive(_agreed(secret, public), "pair", bound)


def self_key(own: bytes, bound: bytes) -> bytes:
    return derive(own, "self", bound)


def seal_of(own: bytes) -> bytes:
    return hashlib.sha256(b"unseen sum 1 seal " + own).digest()


def fits_seal(own: bytes, keys: PublicKeys) -> bool:
    return seal_of(own) == keys.seal


def fits_mask_key(secret: bytes, keys: PublicKeys) -> bool:
    return _public(secret) == keys.mask


def _public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def _agreed(secret: bytes, public: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
