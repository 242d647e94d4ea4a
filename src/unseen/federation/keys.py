"""Keys and certificates: a certificate authority per federation, elliptic curves only, secrets readable by their owner alone."""

from __future__ import annotations

import datetime
import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from unseen.errors import BadInput

__all__ = ["Authority", "node_key", "private_bytes", "read_public", "read_signing", "refuse_expired", "write_secret"]

_PEM, _OPENSSH = serialization.Encoding.PEM, serialization.Encoding.OpenSSH
_PLAIN = serialization.NoEncryption()


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

    def certify(self, server: str, days: int) -> tuple[bytes, bytes]:
        """Certificate and key, in PEM, for the machine of that name or address; always for this machine's loopback too."""
        key = ec.generate_private_key(ec.SECP384R1())
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


def node_key() -> tuple[bytes, bytes]:
    """A node's key for the transport (P-384): private and public, as OpenSSH writes them."""
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(_OPENSSH, serialization.PublicFormat.OpenSSH)
    return key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _PLAIN), public


def private_bytes(key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _PLAIN)


def read_signing(file: Path) -> Ed25519PrivateKey:
    """The key with which messages are signed."""
    try:
        key = serialization.load_pem_private_key(file.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise BadInput(f"{file} cannot be read as a key ({type(error).__name__}); was the federation's folder or kit changed?") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise BadInput(f"{file} holds a key of another kind; expected Ed25519")
    return key


def read_public(text: str) -> Ed25519PublicKey:
    """A public signing key from its hexadecimal digits."""
    try:
        return Ed25519PublicKey.from_public_bytes(bytes.fromhex(text))
    except ValueError as error:
        raise BadInput(f"{text[:20]!r} is no public key; was the federation's folder or kit changed?") from error


def refuse_expired(file: Path) -> None:
    """Raise BadInput if the certificate in this file is out of its time."""
    try:
        certificate = x509.load_pem_x509_certificate(file.read_bytes())
    except (OSError, ValueError) as error:
        raise BadInput(f"{file} cannot be read as a certificate ({type(error).__name__})") from error
    now = datetime.datetime.now(datetime.UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        until = f"{certificate.not_valid_after_utc:%Y-%m-%d}"
        raise BadInput(f"the certificate in {file} is valid until {until}, and it is {now:%Y-%m-%d}; ask the server for a new kit")
