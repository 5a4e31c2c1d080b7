"""Envelope encryption: each version of a secret has a data key, and a key-encryption key wraps the data keys.

AES-256-GCM both times (NIST SP 800-38D), with random nonces: a data key encrypts once, a key-encryption key some ten
thousand times at most, far below the 2^32 of section 8.3. What is encrypted is bound to where it belongs: domain, name,
incarnation and version are authenticated, so that nobody who may write to the storage can put one in another's place.
"""

from __future__ import annotations

import os

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from sluice.runtime.ha import EntryDamaged

KEY_BYTES = 32
NONCE_BYTES = 12
MAX_VALUE_BYTES = 64 << 10
"""Largest value of a secret."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a ciphertext belongs. ``incarnation`` is new each time that a secret of this name is made."""

    trust_domain: str
    name: str
    incarnation: str
    version: int


class WrappedKey(msgspec.Struct, frozen=True, kw_only=True):
    """A data key, encrypted with the key-encryption key ``key_id``."""

    key_id: str
    nonce: bytes
    data: bytes


class Sealed(msgspec.Struct, frozen=True, kw_only=True):
    """An encrypted value, apart from its data key."""

    nonce: bytes
    data: bytes


def seal(value: bytes, place: Place, key_id: str, key: bytes) -> tuple[Sealed, WrappedKey]:
    """Encrypt ``value`` with a new data key, and that with ``key``."""
    data_key = AESGCM.generate_key(KEY_BYTES * 8)
    nonce = os.urandom(NONCE_BYTES)
    sealed = Sealed(nonce=nonce, data=AESGCM(data_key).encrypt(nonce, value, _bound("value", place)))
    return sealed, wrap(data_key, place, key_id, key)


def unseal(sealed: Sealed, wrapped: WrappedKey, place: Place, key: bytes) -> bytes:
    """The value; raises ``EntryDamaged`` when it is not what was encrypted there."""
    return _decrypt(unwrap(wrapped, place, key), sealed.nonce, sealed.data, _bound("value", place), place)


def wrap(data_key: bytes, place: Place, key_id: str, key: bytes) -> WrappedKey:
    """Encrypt a data key."""
    nonce = os.urandom(NONCE_BYTES)
    data = AESGCM(key).encrypt(nonce, data_key, _bound("key", place, key_id))
    return WrappedKey(key_id=key_id, nonce=nonce, data=data)


def unwrap(wrapped: WrappedKey, place: Place, key: bytes) -> bytes:
    """The data key; raises ``EntryDamaged``."""
    return _decrypt(key, wrapped.nonce, wrapped.data, _bound("key", place, wrapped.key_id), place)


def _decrypt(key: bytes, nonce: bytes, data: bytes, bound: bytes, place: Place) -> bytes:
    try:
        return AESGCM(key).decrypt(nonce, data, bound)
    except (InvalidTag, ValueError):
        raise EntryDamaged(
            f"version {place.version} of secret {place.name} is not what was stored", "put it again"
        ) from None


def _bound(what: str, place: Place, key_id: str = "") -> bytes:
    return msgspec.json.encode(["sluice secret 1", what, place, key_id])
