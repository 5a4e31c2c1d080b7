"""The trust domain's JWT signing keys on disk: ``<pki>/jwt/<trust domain>.json`` (0600)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.core import (
    LOCK_PATIENCE_SECONDS,
    Clock,
    StoreError,
    locked,
    make_private_directory,
    read_secret,
    remove_leftovers,
    write_secret,
)
from sluice.pki.jwt.svid import (
    DEFAULT_ALGORITHM,
    MAX_KEYS,
    RSA_BITS,
    Algorithm,
    JwtKey,
    KeyRing,
    advanced,
    jwks,
    public_keys,
    sign_token,
    signing_key,
    validate_token,
)
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509 import key_from_pem, key_to_pem


class JwtAuthority(Protocol):
    """Signs JWT-SVIDs of a trust domain."""

    def refresh(self) -> bool:
        """Update the keys; returns whether the bundle changed. Raises :class:`StoreError`."""

    def jwks(self) -> bytes:
        """The bundle, a JWK Set."""

    def sign(self, spiffe_id: SpiffeId, audience: Sequence[str], lifetime: dt.timedelta) -> str:
        """A JWT-SVID."""

    def validate(self, token: str, audience: str) -> tuple[SpiffeId, dict[str, Any]]:
        """Subject and claims of a token for ``audience``; raises :class:`~sluice.pki.jwt.svid.TokenRejected`."""


class _StoredKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key_id: str
    created: dt.datetime
    key_pem: str
    certificate_pem: str = ""


class LocalJwtAuthority:
    """Signs with keys on this machine; the online authority and the agents of one home share them.

    Args:
        pki: below it the keys are kept.
        trust_domain: whose keys they are.
        clock: the present.
        algorithm: of new keys.
        issuer: the claim ``iss`` of its tokens; empty: they have none.
    """

    def __init__(
        self, pki: Path, trust_domain: str, clock: Clock, *, algorithm: Algorithm = DEFAULT_ALGORITHM, issuer: str = ""
    ) -> None:
        self._file = pki / "jwt" / f"{trust_domain}.json"
        self._trust_domain = trust_domain
        self._clock = clock
        self._ring: KeyRing = ()
        self._algorithm = algorithm
        self._issuer = issuer

    def refresh(self) -> bool:
        """Make the first key, or the next when due; returns whether the bundle changed. Raises :class:`StoreError`."""
        make_private_directory(self._file.parent)
        with locked(self._file.parent, patience=LOCK_PATIENCE_SECONDS):
            remove_leftovers(self._file.parent)
            stored = self._read() if self._file.exists() else ()
            ring = advanced(stored, self._clock(), self._algorithm)
            if ring != stored:
                self._write(ring)
        changed = [key.key_id for key in ring] != [key.key_id for key in self._ring]
        self._ring = ring
        return changed

    def jwks(self) -> bytes:
        """The bundle, a JWK Set."""
        return jwks(self._ring)

    def sign(
        self,
        spiffe_id: SpiffeId,
        audience: Sequence[str],
        lifetime: dt.timedelta,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """A JWT-SVID; raises :class:`StoreError` without a signing key. ``extra``: see :func:`sign_token`."""
        now = self._clock()
        if not self._ring:
            raise StoreError("there is no JWT signing key", "see the agent's log")
        key = signing_key(self._ring, now)
        return sign_token(key, spiffe_id, audience, now, lifetime, issuer=self._issuer, extra=extra)

    def validate(self, token: str, audience: str) -> tuple[SpiffeId, dict[str, Any]]:
        """Subject and claims of a token for ``audience``; raises :class:`~sluice.pki.jwt.svid.TokenRejected`."""
        return validate_token(
            token, audience, public_keys(self._ring), trust_domain=self._trust_domain, now=self._clock()
        )

    def _read(self) -> KeyRing:
        try:
            stored = msgspec.json.decode(read_secret(self._file), type=list[_StoredKey])
        except (msgspec.DecodeError, UnicodeDecodeError):
            # The library's message may quote the content: keep it out of the message and the traceback.
            raise StoreError(f"{self._file} is damaged", "restore it, or remove it: tokens then verify again") from None
        if not 0 < len(stored) <= MAX_KEYS:
            raise StoreError(f"{self._file} holds {len(stored)} keys", f"1 to {MAX_KEYS} are possible")
        return tuple(self._key(one) for one in stored)

    def _key(self, stored: _StoredKey) -> JwtKey:
        key = key_from_pem(stored.key_pem.encode(), str(self._file))
        ours = (
            isinstance(key.curve, ec.SECP256R1)
            if isinstance(key, ec.EllipticCurvePrivateKey)
            else isinstance(key, rsa.RSAPrivateKey) and key.key_size >= RSA_BITS
        )
        if not ours or not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
            raise StoreError(f"{self._file} holds a key that is neither P-256 nor RSA", "restore it from a copy")
        if stored.created.tzinfo is None:
            raise StoreError(f"{self._file} holds a time without a zone", "restore it from a copy")
        return JwtKey(stored.key_id, stored.created, key, self._certificate(stored.certificate_pem))

    def _certificate(self, pem: str) -> x509.Certificate | None:
        try:
            return x509.load_pem_x509_certificate(pem.encode()) if pem else None
        except ValueError as error:
            raise StoreError(f"{self._file} holds a damaged certificate", "restore it from a copy") from error

    def _write(self, ring: KeyRing) -> None:
        stored = [
            _StoredKey(
                key.key_id,
                key.created,
                key_to_pem(key.key).decode(),
                "" if key.certificate is None else key.certificate.public_bytes(Encoding.PEM).decode(),
            )
            for key in ring
        ]
        write_secret(self._file, msgspec.json.encode(stored))
