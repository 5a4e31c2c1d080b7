"""The trust domain's JWT signing keys on disk: ``<pki>/jwt/<trust domain>.json`` (0600)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec

from sluice.core import Clock, StoreError, locked, make_private_directory, read_secret, remove_leftovers, write_secret
from sluice.pki.agent.jwt_svid import (
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

MAX_KEYS = 16


class JwtAuthority(Protocol):
    """Signs JWT-SVIDs of a trust domain."""

    def refresh(self) -> bool:
        """Bring the keys up to date; whether the bundle changed. Raises :class:`StoreError`."""

    def jwks(self) -> bytes:
        """The bundle, a JWK Set."""

    def sign(self, spiffe_id: SpiffeId, audience: Sequence[str], lifetime: dt.timedelta) -> str:
        """A JWT-SVID."""

    def validate(self, token: str, audience: str) -> tuple[SpiffeId, dict[str, Any]]:
        """Subject and claims of a token for ``audience``; raises :class:`~sluice.pki.agent.jwt_svid.TokenRejected`."""


class _StoredKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key_id: str
    created: dt.datetime
    key_pem: str


class LocalJwtAuthority:
    """Signs with keys on this machine; several agents of one home share them."""

    def __init__(self, pki: Path, trust_domain: str, clock: Clock) -> None:
        self._file = pki / "jwt" / f"{trust_domain}.json"
        self._trust_domain = trust_domain
        self._clock = clock
        self._ring: KeyRing = ()

    def refresh(self) -> bool:
        """Make the first key, and the next when it is due; whether the bundle changed. Raises :class:`StoreError`."""
        make_private_directory(self._file.parent)
        with locked(self._file.parent):
            remove_leftovers(self._file.parent)
            stored = self._read() if self._file.exists() else ()
            ring = advanced(stored, self._clock())
            if ring != stored:
                self._write(ring)
        changed = [key.key_id for key in ring] != [key.key_id for key in self._ring]
        self._ring = ring
        return changed

    def jwks(self) -> bytes:
        """The bundle, a JWK Set."""
        return jwks(self._ring)

    def sign(self, spiffe_id: SpiffeId, audience: Sequence[str], lifetime: dt.timedelta) -> str:
        """A JWT-SVID; raises :class:`StoreError` without a signing key."""
        now = self._clock()
        if not self._ring:
            raise StoreError("there is no JWT signing key", "see the agent's log")
        return sign_token(signing_key(self._ring, now), spiffe_id, audience, now, lifetime)

    def validate(self, token: str, audience: str) -> tuple[SpiffeId, dict[str, Any]]:
        """Subject and claims of a token for ``audience``; raises :class:`~sluice.pki.agent.jwt_svid.TokenRejected`."""
        return validate_token(
            token, audience, public_keys(self._ring), trust_domain=self._trust_domain, now=self._clock()
        )

    def _read(self) -> KeyRing:
        try:
            stored = msgspec.json.decode(read_secret(self._file), type=list[_StoredKey])
        except (msgspec.DecodeError, UnicodeDecodeError):
            # The library's message may quote the content: leave it out, and out of the traceback.
            raise StoreError(f"{self._file} is damaged", "restore it, or remove it: tokens then verify anew") from None
        if not 0 < len(stored) <= MAX_KEYS:
            raise StoreError(f"{self._file} holds {len(stored)} keys", f"1 to {MAX_KEYS} are possible")
        return tuple(self._key(one) for one in stored)

    def _key(self, stored: _StoredKey) -> JwtKey:
        key = key_from_pem(stored.key_pem.encode(), str(self._file))
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise StoreError(f"{self._file} holds a key that is not P-256", "restore it from a copy")
        if stored.created.tzinfo is None:
            raise StoreError(f"{self._file} holds a time without a zone", "restore it from a copy")
        return JwtKey(stored.key_id, stored.created, key)

    def _write(self, ring: KeyRing) -> None:
        stored = [_StoredKey(key.key_id, key.created, key_to_pem(key.key).decode()) for key in ring]
        write_secret(self._file, msgspec.json.encode(stored))
