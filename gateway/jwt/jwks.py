"""An issuer's public keys: selects the key for a token, and caches and refreshes the key set.

Source: RFC 7517.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

from sluice.core import InvalidJwt, end_tasks
from sluice.gateway.errors import IssuerError

_LOG = logging.getLogger(__name__)

MAX_KEYS = 100
MIN_RSA_BITS = 2048
REFRESH_SECONDS = 600.0
"""Age at which a key set is fetched again."""
UNKNOWN_KEY_SECONDS = 30.0
"""Minimum time between fetches caused by an unknown key id, because anybody can invent key ids."""
STALE_SECONDS = 86400.0
"""How long a key set stays valid while its issuer cannot be reached."""

_CURVES = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}


class KeyNotKnown(Exception):
    """The set has no key with this id. The id may be new, or invented."""


@dataclass(frozen=True, slots=True)
class KeySet:
    """The usable keys of one issuer: (key id, the algorithm to which it is bound or None, key)."""

    keys: tuple[tuple[str | None, str | None, Any], ...] = ()

    @classmethod
    def of(cls, document: object) -> KeySet:
        """Read a JWK set. Keys of unsupported kinds are ignored. Raises :class:`IssuerError` if it is not a key set."""
        entries = document.get("keys") if isinstance(document, dict) else None
        if not isinstance(entries, list) or len(entries) > MAX_KEYS:
            raise IssuerError(f"the issuer's key set is not a list of at most {MAX_KEYS} keys")
        found = []
        for entry in entries:
            if isinstance(entry, dict) and entry.get("use", "sig") == "sig" and (key := _public_key(entry)) is not None:
                kid, alg = entry.get("kid"), entry.get("alg")
                found.append((kid if isinstance(kid, str) else None, alg if isinstance(alg, str) else None, key))
        return cls(tuple(found))

    def find(self, kid: str | None, algorithm: str) -> Any:  # noqa: ANN401  one of several classes of keys
        """The key for a token. A token without a key id needs a set with exactly one suitable key.

        Raises :class:`KeyNotKnown` or :class:`~sluice.core.jws.InvalidJwt`.
        """
        named = [entry for entry in self.keys if kid is None or entry[0] == kid]
        if not named:
            raise KeyNotKnown
        fitting = [key for _, bound, key in named if bound in {None, algorithm} and _fits(key, algorithm)]
        if len(fitting) != 1:
            raise InvalidJwt("the issuer has no suitable key for the token")
        return fitting[0]


@dataclass
class KeyCache:
    """Caches one issuer's keys. Fetches them on first use, when old, and for an unknown key id, one fetch at a time."""

    fetch: Callable[[], Awaitable[object]]
    clock: Callable[[], float] = time.monotonic
    _keys: KeySet | None = None
    _fetched_at: float = 0.0
    _asked_at: float = field(default=float("-inf"))
    _asking: asyncio.Task[None] | None = None

    async def get(self) -> KeySet:
        """The keys. Raises :class:`IssuerError` if there are none that are recent enough."""
        now = self.clock()
        if self._keys is None:
            await self._ask()
        elif now - self._fetched_at > REFRESH_SECONDS:
            self._start()
        if self._keys is None or now - self._fetched_at > STALE_SECONDS:
            raise IssuerError("the keys of the issuer are not available", "see the log of the auth service")
        return self._keys

    async def renewed(self) -> KeySet:
        """The keys after a token with an unknown key id. They are fetched again, unless that was just done."""
        await self._ask()
        return await self.get()

    async def close(self) -> None:
        """Cancel a running fetch."""
        if self._asking is not None:
            await end_tasks(self._asking)

    async def _ask(self) -> None:
        self._start()
        if self._asking is not None:
            # A cancelled caller does not cancel the fetch; the next caller uses its result.
            await asyncio.shield(self._asking)

    def _start(self) -> None:
        if self._asking is not None and not self._asking.done():
            return
        self._asking = None
        if self.clock() - self._asked_at >= UNKNOWN_KEY_SECONDS:
            self._asked_at = self.clock()
            self._asking = asyncio.create_task(self._fetch())

    async def _fetch(self) -> None:
        try:
            self._keys = KeySet.of(await self.fetch())
            self._fetched_at = self.clock()
        except IssuerError as error:
            _LOG.warning("cannot get an issuer's keys: %s", error)


def _public_key(entry: Mapping[str, Any]) -> Any:  # noqa: ANN401  one of several classes of keys
    if entry.get("kty") not in {"RSA", "EC", "OKP"} or "d" in entry:
        return None
    try:
        key = jwt.PyJWK.from_dict(dict(entry)).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < MIN_RSA_BITS:
        return None
    return key


def _fits(key: object, algorithm: str) -> bool:
    if algorithm[:2] in {"RS", "PS"}:
        return isinstance(key, rsa.RSAPublicKey)
    if algorithm == "EdDSA":
        return isinstance(key, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey)
    return isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == _CURVES.get(algorithm)
