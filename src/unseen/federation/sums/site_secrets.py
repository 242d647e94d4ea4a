"""What a site keeps secret during one sum, all of it from one seed, and the masks that two sites agree on."""

from __future__ import annotations

import hashlib
from functools import cached_property

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from unseen.federation.sums.context import SumContext, derive
from unseen.federation.sums.roster import PublicKeys
from unseen.federation.sums.shamir import BYTES_OF_SHARE, RANDOM_BYTES, split

__all__ = ["BYTES_OF_BOX", "SiteSecrets", "fits_mask_key", "fits_seal", "pair_key", "seal_of", "self_key"]

BYTES_OF_BOX = 2 * BYTES_OF_SHARE + 16  # both shares, and the tag
_NONCE = bytes(12)  # every key encrypts one box alone


class SiteSecrets:
    """The same seed gives the same secrets, so that a site that was restarted goes on where it was.

    `box` is the site's private key of this study, with which shares for it were encrypted.
    """

    def __init__(self, context: SumContext, site: str, seed: bytes, box: bytes) -> None:
        self._context, self._site, self._seed, self._box = context, site, seed, box
        self.mask = self._derived("mask key")  # X25519, shared out: given back for a site that gave shares and no words
        self.own = self._derived("own mask")  # a seed, shared out: given back for a site whose words came

    def _derived(self, label: str, *context: bytes, length: int = 32) -> bytes:
        return derive(self._seed, label, self._context.digest, self._site.encode(), *context, length=length)

    def public(self, key: Ed25519PrivateKey) -> PublicKeys:
        return PublicKeys.signed(_public(self.mask), seal_of(self.own), self._context, self._site, key)

    @cached_property
    def shares(self) -> dict[str, bytes]:
        """For each holder its share of the seed of the own mask, then its share of the masking key."""
        context = self._context
        holders = {context.number[name]: name for name in context.holders(self._site)}
        secrets = (("own mask's polynomial", self.own), ("mask key's polynomial", self.mask))
        pairs = [split(secret, holders, context.shares_needed, self._coefficients(label)) for label, secret in secrets]
        return {name: pairs[0][number] + pairs[1][number] for number, name in holders.items()}

    def _coefficients(self, label: str) -> bytes:
        return self._derived(label, length=RANDOM_BYTES * (self._context.shares_needed - 1))

    def boxes(self, keys: PublicKeys) -> dict[str, bytes]:
        """The shares for each receiver, encrypted for it, and bound to the keys that they go with."""
        return {
            name: self._cipher(name, keys, self._site, name).encrypt(_NONCE, self.shares[name], None)
            for name in self._context.receivers(self._site)
        }

    def open_box(self, sender: str, keys: PublicKeys, box: bytes) -> bytes | None:
        """The shares that another site sent here with these keys; None where they are not what that site sent."""
        try:
            return self._cipher(sender, keys, sender, self._site).decrypt(_NONCE, box, None)
        except InvalidTag:
            return None

    def _cipher(self, partner: str, keys: PublicKeys, sender: str, receiver: str) -> ChaCha20Poly1305:
        """Of one box alone: `keys` are drawn anew whenever the sender's secrets are."""
        agreed = _agreed(self._box, self._context.boxes[partner])
        about = (self._context.digest, keys.content(sender), receiver.encode())
        return ChaCha20Poly1305(derive(agreed, "box", *about))


def pair_key(secret: bytes, public: bytes, bound: bytes) -> bytes:
    """The key of the stream that two sites mask with: one adds it, the other takes it off. `bound` is what both must have been shown.

    Both keys go in: many keys agree on the same secret (X25519 ignores a bit, and points of small order), so a site could show a key that
    is another's in disguise. The site between the two would add one stream and take off the same.
    """
    return derive(_agreed(secret, public), "pair", bound, *sorted([_public(secret), public]))


def self_key(own: bytes, bound: bytes) -> bytes:
    return derive(own, "self", bound)


def seal_of(own: bytes) -> bytes:
    return hashlib.sha256(b"unseen sum 3 seal " + own).digest()


def fits_seal(own: bytes, keys: PublicKeys) -> bool:
    return seal_of(own) == keys.seal


def fits_mask_key(secret: bytes, keys: PublicKeys) -> bool:
    return _public(secret) == keys.mask


def _public(secret: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def _agreed(secret: bytes, public: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
