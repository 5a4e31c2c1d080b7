"""Encrypts the values of the shared store, so that access to the database is not enough to read or forge them.

AES-256-GCM with a random nonce per value. The value's context is authenticated with it, so that values cannot be
swapped. Names are HMAC-SHA-256 values. Both keys are derived from one key with HKDF (RFC 5869).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sluice.core import StoreError, read_deployed_secret
from sluice.gateway.errors import SharedStoreError

KEY_BYTES = 32
_NONCE_BYTES = 12
_MAX_FILE_BYTES = 1024


def new_key() -> bytes:
    """The content of a new key file."""
    return base64.b64encode(os.urandom(KEY_BYTES)) + b"\n"


class StoreCipher:
    """Encrypts and decrypts with ``key`` (32 bytes)."""

    def __init__(self, key: bytes) -> None:
        self._values = AESGCM(_derived(key, b"sluice shared store: values"))
        self._names = _derived(key, b"sluice shared store: names")

    @classmethod
    def from_file(cls, path: Path) -> StoreCipher:
        """A cipher with the key in ``path``; raises :class:`~sluice.gateway.errors.SharedStoreError`."""
        remedy = "create one with `sluice shared-store create-key` and copy it to all machines"
        try:
            key = base64.b64decode(read_deployed_secret(path, _MAX_FILE_BYTES).strip(), validate=True)
        except StoreError as error:
            raise SharedStoreError(error.what, error.remedy or remedy) from error
        except binascii.Error:
            key = b""
        if len(key) != KEY_BYTES:
            raise SharedStoreError(f"{path} is not a base64 key of {KEY_BYTES} bytes", remedy)
        return cls(key)

    def encrypted(self, value: bytes, context: str) -> bytes:
        """Encrypt ``value`` for the database; :meth:`decrypted` needs the same ``context``."""
        nonce = os.urandom(_NONCE_BYTES)
        return nonce + self._values.encrypt(nonce, value, context.encode())

    def decrypted(self, value: bytes, context: str) -> bytes:
        """Decrypt ``value``; raises :class:`~sluice.gateway.errors.SharedStoreError` for another key or a forgery."""
        try:
            return self._values.decrypt(value[:_NONCE_BYTES], value[_NONCE_BYTES:], context.encode())
        except (InvalidTag, ValueError) as error:
            raise SharedStoreError(
                "a value in the database was encrypted with another key, or changed",
                "check that each machine has the same encryption_key_file; see `sluice shared-store status`",
            ) from error

    def name(self, *parts: str) -> bytes:
        """The pseudonym of ``parts`` in the database: 32 bytes, equal for equal parts."""
        return hmac.digest(self._names, "\0".join(parts).encode(), "sha256")


def _derived(key: bytes, purpose: bytes) -> bytes:
    return HKDF(hashes.SHA256(), KEY_BYTES, None, purpose).derive(key)
