"""The P-256 key that signs an audit log's checkpoints. It is made when the log is created, in a file or in a token.

The public key is always stored beside the log, and every checkpoint contains its id. To verify the log without trusting
its machine, store the id (or the public key) elsewhere.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from sluice.core import StoreError, read_bounded, read_secret, write_public, write_secret
from sluice.gateway.errors import AuditLogError
from sluice.pki.pkcs11 import TOKEN_KEYS, TokenKey, TokenKeys, TokenUri, format_reference, read_reference
from sluice.pki.x509 import PrivateKey, generate_key, key_from_pem, key_to_pem, public_key_der

SIGNING_KEY = "signing-key.pem"
SIGNING_REFERENCE = "signing-key.uri"
"""Replaces :data:`SIGNING_KEY` if the key is in a token: the PKCS #11 URI of the key (RFC 7512), without a PIN."""
VERIFICATION_KEY = "verification-key.pem"
KEY_ID_CHARACTERS = 32

_ALGORITHM = ec.ECDSA(hashes.SHA256())


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """The public key."""

    key: ec.EllipticCurvePublicKey

    @property
    def id(self) -> str:
        """The first characters of the SHA-256 of the public key (DER), in hexadecimal."""
        return hashlib.sha256(public_key_der(self.key)).hexdigest()[:KEY_ID_CHARACTERS]

    def checker(self) -> Checker:
        """A function that verifies signatures, for :class:`~sluice.gateway.audit_log.chain.ChainReader`."""
        return Checker(self.key, self.id)

    @classmethod
    def read(cls, path: Path) -> VerificationKey:
        """Read a PEM file. Raises :class:`AuditLogError` if it contains no P-256 public key."""
        try:
            key = load_pem_public_key(read_bounded(path))
        except (ValueError, UnsupportedAlgorithm) as error:
            raise AuditLogError(f"{path} is not a public key in PEM") from error
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise AuditLogError(f"{path} is not a P-256 key")
        return cls(key)


@dataclass(frozen=True, slots=True)
class Checker:
    """Verifies signatures of one key."""

    key: ec.EllipticCurvePublicKey
    id: str

    def __call__(self, key_id: str, signature: bytes, data: bytes) -> bool:
        """Whether ``signature`` over ``data`` is valid for this key."""
        if key_id != self.id:
            return False
        try:
            self.key.verify(signature, data, _ALGORITHM)
        except InvalidSignature:
            return False
        return True


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The private key."""

    key: ec.EllipticCurvePrivateKey
    id: str

    def sign(self, data: bytes) -> bytes:
        """An ECDSA signature (DER). Raises :class:`AuditLogError` if the token with the key does not sign."""
        try:
            return self.key.sign(data, _ALGORITHM)
        except StoreError as error:
            raise AuditLogError(f"the audit log cannot be signed: {error.what}", error.remedy) from error

    @property
    def public(self) -> VerificationKey:
        """The public key."""
        return VerificationKey(self.key.public_key())


@dataclass(frozen=True, slots=True)
class KeyInToken:
    """The token in which to generate the key of a new log."""

    place: TokenUri
    label: str
    tokens: TokenKeys = TOKEN_KEYS

    def make(self, reference: Path) -> TokenKey:
        """Generate the key and store its URI in ``reference``. If that fails, the key is removed again."""
        key = self.tokens.generate(self.place, "ecdsa-p256", self.label)
        try:
            write_secret(reference, format_reference(key.uri))
        except BaseException:
            with contextlib.suppress(StoreError):
                self.tokens.destroy(key.uri)
            raise
        return key


def key_place(directory: Path) -> TokenUri | None:
    """The token with the key of the log in ``directory``; None if the key is in a file or the log is not begun."""
    reference = directory / SIGNING_REFERENCE
    return read_reference(reference).place if reference.exists() else None


def open_key(directory: Path, *, first_use: bool, in_token: KeyInToken | None = None) -> SigningKey:
    """The key of the log in ``directory``. It is generated on ``first_use``. The caller must hold the writers' lock.

    Args:
        directory: the log's directory.
        first_use: whether nothing has been written yet.
        in_token: the token in which to generate the key, if any.

    Raises:
        AuditLogError: the log exists but its key is missing (a new key would hide manipulation), or the token with
            the key does not answer.
    """
    try:
        key, name = _read_or_make(directory, in_token, first_use=first_use)
    except StoreError as error:
        raise AuditLogError(f"the key of the audit log in {directory}: {error.what}", error.remedy) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise AuditLogError(f"{name} is not a P-256 key", "restore the one that was made with the log")
    public = VerificationKey(key.public_key())
    if not (directory / VERIFICATION_KEY).exists():
        pem = public.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        write_public(directory / VERIFICATION_KEY, pem)
    return SigningKey(key, public.id)


def _read_or_make(directory: Path, in_token: KeyInToken | None, *, first_use: bool) -> tuple[PrivateKey, Path]:
    private, reference = directory / SIGNING_KEY, directory / SIGNING_REFERENCE
    if reference.exists():
        tokens = TOKEN_KEYS if in_token is None else in_token.tokens
        return tokens.load(read_reference(reference)), reference
    if private.exists():
        return key_from_pem(read_secret(private), str(private)), private
    if not first_use:
        raise AuditLogError(
            f"{private}, which signs the audit log, is missing",
            f"restore it, or move {directory} elsewhere so that a new log begins",
        )
    if in_token is not None:
        return in_token.make(reference), reference
    key = generate_key()
    write_secret(private, key_to_pem(key))
    return key, private
