"""Envelope encryption: each version of a secret has a data key, and a key-encryption key wraps the data keys.

Both layers use AES-256-GCM (NIST SP 800-38D) with random nonces. A data key encrypts once; a key-encryption key at most
some ten thousand times, far below the limit of 2^32 in section 8.3. Each ciphertext is bound to its place: trust
domain, name, incarnation and version are authenticated, so write access to the storage is not enough to swap values.
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
    """The place of a ciphertext. ``incarnation`` is new each time a secret of this name is created."""

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
    """An encrypted value, without its data key."""

    nonce: bytes
    data: bytes


def seal(value: bytes, place: Place, key_id: str, key: bytes) -> tuple[Sealed, WrappedKey]:
    """Encrypt ``value`` with a new data key, and the data key with ``key``."""
    data_key = AESGCM.generate_key(KEY_BYTES * 8)
    nonce = os.urandom(NONCE_BYTES)
    sealed = Sealed(nonce=nonce, data=AESGCM(data_key).encrypt(nonce, value, _bound("value", place)))
    return sealed, wrap(data_key, place, key_id, key)


def unseal(sealed: Sealed, wrapped: WrappedKey, place: Place, key: bytes) -> bytes:
    """Decrypt a value; raises ``EntryDamaged`` when it was altered, or was encrypted for another place."""
    return _decrypt(unwrap(wrapped, place, key), sealed.nonce, sealed.data, _bound("value", place), place)


def wrap(data_key: bytes, place: Place, key_id: str, key: bytes) -> WrappedKey:
    """Encrypt a data key with a key-encryption key."""
    nonce = os.urandom(NONCE_BYTES)
    data = AESGCM(key).encrypt(nonce, data_key, _bound("key", place, key_id))
    return WrappedKey(key_id=key_id, nonce=nonce, data=data)


def unwrap(wrapped: WrappedKey, place: Place, key: bytes) -> bytes:
    """Decrypt a data key; raises ``EntryDamaged``."""
    return _decrypt(key, wrapped.nonce, wrapped.data, _bound("key", place, wrapped.key_id), place)


def _decrypt(key: bytes, nonce: bytes, data: bytes, bound: bytes, place: Place) -> bytes:
    try:
        return AESGCM(key).decrypt(nonce, data, bound)
    except (InvalidTag, ValueError):
        raise EntryDamaged(
            f"version {place.version} of secret {place.name} is damaged", "store it again: `sluice secret put`"
        ) from None


def _bound(what: str, place: Place, key_id: str = "") -> bytes:
    return msgspec.json.encode(["sluice secret 1", what, place, key_id])
