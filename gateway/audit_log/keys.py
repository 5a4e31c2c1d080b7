"""The key that signs an audit log's checkpoints: P-256, made at the log's first use, kept beside it.

The public half is kept there too, and its id is in every checkpoint; whoever wants to trust the log without trusting
its machine keeps the id (or the public key) elsewhere.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from sluice.core import read_bounded, read_secret, write_public, write_secret
from sluice.gateway.errors import AuditLogError
from sluice.pki.x509 import generate_key, key_from_pem, key_to_pem, public_key_der

SIGNING_KEY = "signing-key.pem"
VERIFICATION_KEY = "verification-key.pem"
KEY_ID_CHARACTERS = 32

_ALGORITHM = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """The public half."""

    key: ec.EllipticCurvePublicKey

    @property
    def id(self) -> str:
        """The beginning of the SHA-256 of the public key (DER), in hexadecimal."""
        return hashlib.sha256(public_key_der(self.key)).hexdigest()[:KEY_ID_CHARACTERS]

    def checker(self) -> Checker:
        """A function that verifies signatures, for :class:`~sluice.gateway.audit_log.chain.ChainReader`."""
        return Checker(self.key, self.id)

    @classmethod
    def read(cls, path: Path) -> VerificationKey:
        """From a PEM file; raises :class:`AuditLogError` when it holds no P-256 public key."""
        try:
            key = load_pem_public_key(read_bounded(path))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise AuditLogError(f"{path} is not a public key in PEM") from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise AuditLogError(f"{path} is not a P-256 key")
        return cls(key)


@dataclass(frozen=True, slots=True)
class Checker:
    """Checks signatures of one key."""

    key: ec.EllipticCurvePublicKey
    id: str

    def __call__(self, key_id: str, signature: bytes, data: bytes) -> bool:
        """Whether ``signature`` is this key's over ``data``."""
        if key_id != self.id:
            return False
        try:
            self.key.verify(signature, data, _ALGORITHM)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The private half."""

    key: ec.EllipticCurvePrivateKey
    id: str

    def sign(self, data: bytes) -> bytes:
        """An ECDSA signature (DER)."""
        return self.key.sign(data, _ALGORITHM)

    @property
    def public(self) -> VerificationKey:
        """The public half."""
        return VerificationKey(self.key.public_key())


def open_key(directory: Path, *, first_use: bool) -> SigningKey:
    """The key of the log in ``directory``; made when this is the log's ``first_use``. Only with the writers' lock held.

    Raises:
        AuditLogError: the log has been written before, and its key is gone: another one would hide what happened.
    """
    private = directory / SIGNING_KEY
    if private.exists():
        key = key_from_pem(read_secret(private), str(private))
    elif first_use:
        key = generate_key()
        write_secret(private, key_to_pem(key))
    else:
        raise AuditLogError(
            f"{private}, which signs the audit log, is gone",
            f"restore it; or keep {directory} as it is elsewhere, and a new log begins",
        )
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise AuditLogError(f"{private} is not a P-256 key", "restore the one that was made with the log")
    public = VerificationKey(key.public_key())
    if not (directory / VERIFICATION_KEY).exists():
        pem = public.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        write_public(directory / VERIFICATION_KEY, pem)
    return SigningKey(key, public.id)
