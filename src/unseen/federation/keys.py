"""Keys and certificates: a certificate authority per federation, elliptic curves only, secrets readable by their owner alone."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from unseen.errors import BadInput

__all__ = [
    "Authority",
    "SiteKeys",
    "anybody_can_sign_for",
    "ending_soon",
    "fingerprint",
    "private_bytes",
    "public_hex",
    "read_box",
    "read_curve",
    "read_node_public",
    "read_public",
    "read_public_box",
    "read_signing",
    "refuse_expired",
    "timestamp",
    "valid_until",
    "write_secret",
]

_ORDER_EIGHT = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826  # y of two of the four points of order 8
_PEM, _OPENSSH = serialization.Encoding.PEM, serialization.Encoding.OpenSSH
_RAW, _PLAIN = serialization.Encoding.Raw, serialization.NoEncryption()
_HEX = re.compile(r"[0-9a-f]{64}")  # one way to write a key, so that two keys are the same if and only if their texts are
_SOON = datetime.timedelta(days=30)
_CHANGED = "was a file changed?"


def timestamp() -> str:
    """Now, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def write_secret(path: Path, data: bytes) -> None:
    """A new file that only its owner can read, from its first byte on."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


@dataclass(frozen=True)
class Authority:
    """Signs the certificate under which sites recognise the federation's server."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def make(cls, federation: str, days: int) -> Authority:
        key = ec.generate_private_key(ec.SECP384R1())
        draft = _draft(f"unseen federation {federation}", f"unseen federation {federation}", key.public_key(), days)
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        draft = draft.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True).add_extension(usage, critical=True)
        draft = draft.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return cls(key, draft.sign(key, hashes.SHA384()))

    @classmethod
    def read(cls, certificate: Path, key: Path) -> Authority:
        return cls(read_curve(key), _certificate(certificate))

    def certify(self, server: str, days: int, key: ec.EllipticCurvePrivateKey | None = None) -> tuple[bytes, bytes]:
        """Certificate and key, in PEM, for the machine of that name or address; always for this machine's loopback too."""
        key = key or ec.generate_private_key(ec.SECP384R1())
        issuer = self.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        names = [_general_name(name) for name in dict.fromkeys((server, "localhost", "127.0.0.1"))]
        draft = _draft(server, str(issuer), key.public_key(), days)
        draft = draft.add_extension(x509.SubjectAlternativeName(names), critical=False)
        draft = draft.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        draft = draft.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        draft = draft.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
        return draft.sign(self.key, hashes.SHA384()).public_bytes(_PEM), private_bytes(key)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(_PEM)


def _draft(subject: str, issuer: str, key: ec.EllipticCurvePublicKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


@dataclass(frozen=True)
class SiteKeys:
    """What a site owns: a key for the transport (P-384), one to sign with (Ed25519), one to receive letters with (X25519)."""

    node: ec.EllipticCurvePrivateKey
    signing: Ed25519PrivateKey
    box: X25519PrivateKey

    @classmethod
    def make(cls) -> SiteKeys:
        return cls(ec.generate_private_key(ec.SECP384R1()), Ed25519PrivateKey.generate(), X25519PrivateKey.generate())

    @classmethod
    def read(cls, folder: Path) -> SiteKeys:
        file = folder / "node.key"
        try:
            node = serialization.load_ssh_private_key(file.read_bytes(), None)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise BadInput(f"{file} cannot be read as a key ({type(error).__name__}); {_CHANGED}") from error
        if not isinstance(node, ec.EllipticCurvePrivateKey):
            raise BadInput(f"{file} holds a key of another kind; expected an elliptic curve's")
        return cls(node, read_signing(folder / "signing.key"), read_box(folder / "box.key"))

    @property
    def public(self) -> dict[str, str]:
        node = self.node.public_key().public_bytes(_OPENSSH, serialization.PublicFormat.OpenSSH).decode()
        return {"node": node, "signing": public_hex(self.signing), "box": public_hex(self.box)}

    @property
    def files(self) -> dict[str, bytes]:
        """By name of file. The transport reads its key as OpenSSH writes it."""
        node = self.node.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _PLAIN)
        return {"node.key": node, "signing.key": private_bytes(self.signing), "box.key": private_bytes(self.box)}


def private_bytes(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey | X25519PrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _PLAIN)


def public_hex(key: Ed25519PrivateKey | X25519PrivateKey | Ed25519PublicKey | X25519PublicKey) -> str:
    """A public key, or that of a private one, as 64 hexadecimal digits."""
    public = key if isinstance(key, Ed25519PublicKey | X25519PublicKey) else key.public_key()
    return public.public_bytes(_RAW, serialization.PublicFormat.Raw).hex()


def fingerprint(keys: Mapping[str, str]) -> str:
    """A short form of public keys that two people can compare by telephone: 128 bits of a SHA-256.

    >>> fingerprint({"signing": "aa", "box": "bb"})
    'bfc4 3306 a5c5 340f 5ad8 7602 9ccd 1a09'
    """
    digest = hashlib.sha256(json.dumps(dict(keys), sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return " ".join(digest[start : start + 4] for start in range(0, 32, 4))


def read_curve(file: Path) -> ec.EllipticCurvePrivateKey:
    """The key of a certificate."""
    key = _private_key(file)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise BadInput(f"{file} holds a key of another kind; expected an elliptic curve's")
    return key


def read_signing(file: Path) -> Ed25519PrivateKey:
    """The key with which messages are signed."""
    key = _private_key(file)
    if not isinstance(key, Ed25519PrivateKey):
        raise BadInput(f"{file} holds a key of another kind; expected Ed25519")
    return key


def read_box(file: Path) -> X25519PrivateKey:
    """The key with which letters are opened."""
    key = _private_key(file)
    if not isinstance(key, X25519PrivateKey):
        raise BadInput(f"{file} holds a key of another kind; expected X25519")
    return key


def _private_key(file: Path) -> object:
    try:
        return serialization.load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"{file} cannot be read as a key ({type(error).__name__}); {_CHANGED}") from error


def anybody_can_sign_for(key: str) -> bool:
    """Whether the key is a point of small order, or written in another way than the one that counts (RFC 8032, Section 5.1.3)."""
    prime, y = 2**255 - 19, int.from_bytes(bytes.fromhex(key), "little") % 2**255
    return y >= prime or y in (0, 1, prime - 1, _ORDER_EIGHT, prime - _ORDER_EIGHT)


def read_public(text: str) -> Ed25519PublicKey:
    """A public signing key from its hexadecimal digits."""
    try:
        key = Ed25519PublicKey.from_public_bytes(_bytes(text))
    except ValueError as error:
        raise BadInput(f"{text[:20]!r} is no public key; {_CHANGED}") from error
    if anybody_can_sign_for(text):
        raise BadInput(f"{text[:20]!r} is a key for which anybody can sign")
    return key


def read_public_box(text: str) -> X25519PublicKey:
    """A public key for letters. One with which every secret would be the same (a point of low order) is refused."""
    try:
        key = X25519PublicKey.from_public_bytes(_bytes(text))
        X25519PrivateKey.generate().exchange(key)
    except ValueError as error:
        raise BadInput(f"{text[:20]!r} is no public key for letters; {_CHANGED}") from error
    return key


def read_node_public(text: str) -> ec.EllipticCurvePublicKey:
    """A public key of the transport, as OpenSSH writes it and without a comment."""
    try:
        key = serialization.load_ssh_public_key(text.encode())
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
            raise ValueError("another kind of key")
        if key.public_bytes(_OPENSSH, serialization.PublicFormat.OpenSSH).decode() != text:
            raise ValueError("another way to write it")
    except (ValueError, UnsupportedAlgorithm) as error:
        raise BadInput(f"{text[:40]!r} is no public key of a node; {_CHANGED}") from error
    return key


def _bytes(text: str) -> bytes:
    if not _HEX.fullmatch(text):
        raise ValueError("not 64 hexadecimal digits")
    return bytes.fromhex(text)


def valid_until(file: Path) -> datetime.datetime:
    """When the certificate in this file ends."""
    return _certificate(file).not_valid_after_utc


def refuse_expired(file: Path, mend: str) -> None:
    """Raise BadInput, with what mends it, if the certificate in this file is out of its time."""
    certificate, now = _certificate(file), datetime.datetime.now(datetime.UTC)
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now > ends:
        raise BadInput(f"the certificate in {file} was valid until {ends:%Y-%m-%d}, and it is {now:%Y-%m-%d}; {mend}")
    if now < begins:
        raise BadInput(
            f"the certificate in {file} is valid from {begins:%Y-%m-%d %H:%M} UTC on, and it is {now:%Y-%m-%d %H:%M}; set the clock"
        )


def ending_soon(file: Path, mend: str) -> tuple[str, ...]:
    """A warning, with what mends it, if the certificate in this file ends within 30 days."""
    ends = valid_until(file)
    if ends - datetime.datetime.now(datetime.UTC) > _SOON:
        return ()
    return (f"the certificate in {file} is valid until {ends:%Y-%m-%d}; {mend}",)


def _certificate(file: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(f"{file} cannot be read as a certificate ({type(error).__name__})") from error
