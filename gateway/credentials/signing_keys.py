"""The signing keys of access tokens: created here, never sent to other machines, rotated without interruption.

A key is published before it signs, and stays published until the last token that it signed has expired. Verifiers
(Envoy with an inline key set, REST with a file) therefore never see an access token of an unknown key. :func:`plan`
decides what to do, from the ages of the keys only.
"""

from __future__ import annotations

import datetime as dt
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import jwt
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sluice.core import Home, make_private_directory, read_secret, remove_leftovers, write_secret
from sluice.gateway.errors import AccessTokenKeyError
from sluice.gateway.shared_store import writers_lock

ALGORITHM = "ES256"
ROTATE_AFTER = dt.timedelta(hours=24)
PUBLISH_AHEAD = dt.timedelta(seconds=60)
"""How long a key is published before it signs."""
RETAIN = dt.timedelta(minutes=15)
"""How long a key stays published after its successor started signing: longer than the lifetime of any access token."""
MAX_KEY_BYTES = 4096

_FILE = re.compile(r"([0-9]{10,12})-([0-9a-f]{16})\.pem")
_KID_BYTES = 8


@dataclass(frozen=True, slots=True)
class AccessTokenKey:
    """One signing key; ``created`` in seconds since the epoch."""

    kid: str
    created: float
    private: ec.EllipticCurvePrivateKey

    def __repr__(self) -> str:
        return f"AccessTokenKey({self.kid!r}, created={self.created})"

    def jwk(self) -> dict[str, object]:
        """The public half (RFC 7517)."""
        public = jwt.algorithms.ECAlgorithm.to_jwk(self.private.public_key(), as_dict=True)
        return {**public, "kid": self.kid, "use": "sig", "alg": ALGORITHM}


@dataclass(frozen=True, slots=True)
class KeyPlan:
    """The key that signs, the keys to retire, and whether to create a new key."""

    signing: str | None
    retired: tuple[str, ...]
    make: bool


def plan(ages: Iterable[tuple[str, float]], now: float) -> KeyPlan:
    """Plan the rotation of keys given as (kid, created); pure."""
    ordered = sorted(ages, key=lambda entry: (entry[1], entry[0]))
    if not ordered:
        return KeyPlan(None, (), make=True)
    # The newest key that all verifiers have had time to load. The very first key signs at once.
    known = [entry for entry in ordered if now - entry[1] >= PUBLISH_AHEAD.total_seconds()]
    signing = known[-1] if known else ordered[0]
    began = signing[1] + PUBLISH_AHEAD.total_seconds()
    over = now - began >= RETAIN.total_seconds()
    retired = tuple(kid for kid, created in ordered if over and (created, kid) < (signing[1], signing[0]))
    # A key from the future counts as new, so that a clock set back does not create keys endlessly.
    return KeyPlan(signing[0], retired, make=now - ordered[-1][1] >= ROTATE_AFTER.total_seconds())


class AccessTokenKeys:
    """The keys of one home. The auth service writes them; other processes of the same home may read them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._keys: dict[str, AccessTokenKey] = {}

    @classmethod
    def of(cls, home: Home) -> AccessTokenKeys:
        """The keys of ``home``; nothing is read before :meth:`refresh` or :meth:`load`."""
        return cls(home.gateway / "pass-keys")

    def refresh(self, now: float) -> bool:
        """Create, retire and read keys as due; returns whether the published set changed."""
        make_private_directory(self._directory)
        before = set(self._keys)
        with writers_lock(self._directory.parent):
            remove_leftovers(self._directory)
            keys = self._read()
            due = plan(((key.kid, key.created) for key in keys.values()), now)
            for kid in due.retired:
                self._file(keys.pop(kid)).unlink(missing_ok=True)
            if due.make:
                key = AccessTokenKey(
                    secrets.token_hex(_KID_BYTES), float(int(now)), ec.generate_private_key(ec.SECP256R1())
                )
                write_secret(self._file(key), _pem(key.private))
                keys[key.kid] = key
        # Replaced as a whole, because another thread may be reading it.
        self._keys = keys
        return set(self._keys) != before

    def load(self) -> None:
        """Read the keys without changing any, for processes other than the auth service."""
        self._keys = self._read() if self._directory.is_dir() else {}

    def signing(self, now: float) -> AccessTokenKey:
        """The key that signs at ``now``; raises :class:`AccessTokenKeyError` before the first :meth:`refresh`."""
        kid = plan(((key.kid, key.created) for key in self._keys.values()), now).signing
        if kid is None:
            raise AccessTokenKeyError(
                "there is no key to sign access tokens with", "start the auth service: it creates keys"
            )
        return self._keys[kid]

    def find(self, kid: str) -> AccessTokenKey | None:
        """The loaded key with this id. Ids come from callers, so they never become part of a file name."""
        return self._keys.get(kid)

    def jwks(self) -> dict[str, object]:
        """The public key set (RFC 7517 section 5), for Envoy, REST and other verifiers."""
        ordered = sorted(self._keys.values(), key=lambda key: (key.created, key.kid))
        return {"keys": [key.jwk() for key in ordered]}

    def _file(self, key: AccessTokenKey) -> Path:
        return self._directory / f"{int(key.created)}-{key.kid}.pem"

    def _read(self) -> dict[str, AccessTokenKey]:
        keys: dict[str, AccessTokenKey] = {}
        for path in sorted(self._directory.glob("*.pem")):
            match = _FILE.fullmatch(path.name)
            if match is None:
                continue
            try:
                private = serialization.load_pem_private_key(read_secret(path, MAX_KEY_BYTES), password=None)
            except ValueError as error:
                raise AccessTokenKeyError(f"{path} is damaged", "remove it; another is made") from error
            if not isinstance(private, ec.EllipticCurvePrivateKey) or private.curve.name != "secp256r1":
                raise AccessTokenKeyError(f"{path} is not a P-256 key", "remove it; another is made")
            keys[match[2]] = AccessTokenKey(match[2], float(match[1]), private)
        return keys


def encode_jwks(keys: AccessTokenKeys) -> bytes:
    """The public key set as JSON, as it is served and written to a file."""
    return msgspec.json.encode(keys.jwks())


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
