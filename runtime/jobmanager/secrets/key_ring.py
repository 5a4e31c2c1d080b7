"""Key-encryption keys: files with mode 0600 in a directory separate from the encrypted data.

The id of a key is derived from the key, so a file with another key under that name is detected. A cluster on one
machine makes its own keys. JobManagers on several machines need the same keys: an operator distributes them, and no
JobManager makes any.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from sluice.core import Home, StoreError, make_private_directory, read_secret, sync_directory, write_secret
from sluice.runtime.jobmanager.secrets.envelope import KEY_BYTES
from sluice.runtime.jobmanager.secrets.errors import SecretKeyMissing

SUFFIX = ".key"
MAX_KEYS = 64
_ID = re.compile(r"[0-9a-f]{16}")


def keys_directory(home: Home, configured: str) -> Path:
    """The directory of the keys: ``[secrets] keys``, by default a directory in ``home``, beside the encrypted data."""
    return Path(configured).expanduser().absolute() if configured else home.root / "secret-keys"


class KeyRing:
    """The keys in one directory. Blocking. Only :meth:`create` and :meth:`remove` write.

    Args:
        directory: created with the first key.
        makes_keys: whether keys are made here; else an operator distributes them.
    """

    def __init__(self, directory: Path, *, makes_keys: bool) -> None:
        self._directory = directory
        self.makes_keys = makes_keys

    def ids(self) -> tuple[str, ...]:
        """The ids of all keys."""
        try:
            names = sorted(path.name for path in self._directory.iterdir())
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise self._missing(f"the directory {self._directory}: {error.strerror or error}") from error
        return tuple(stem for name in names if _ID.fullmatch(stem := name.removesuffix(SUFFIX)) and name != stem)

    def key(self, key_id: str) -> bytes:
        """The key with this id; raises :class:`SecretKeyMissing`."""
        if not _ID.fullmatch(key_id):
            raise self._missing("the id of the key is not valid")
        try:
            key = read_secret(self._path(key_id), KEY_BYTES)
        except StoreError as error:
            raise self._missing(error.what) from error
        if len(key) != KEY_BYTES or id_of(key) != key_id:
            raise self._missing(f"{self._path(key_id)} contains another key than its name says")
        return key

    def create(self) -> str:
        """Make a key, and return its id; the key is on disk when this returns."""
        if len(self.ids()) >= MAX_KEYS:
            raise self._missing(f"no room for another key, the most are {MAX_KEYS}")
        key = os.urandom(KEY_BYTES)
        make_private_directory(self._directory)
        write_secret(self._path(id_of(key)), key)
        return id_of(key)

    def remove(self, key_id: str) -> None:
        """Remove a key with which nothing is encrypted any more."""
        self._path(key_id).unlink(missing_ok=True)
        sync_directory(self._directory)

    def _path(self, key_id: str) -> Path:
        return self._directory / f"{key_id}{SUFFIX}"

    def _missing(self, what: str) -> SecretKeyMissing:
        return SecretKeyMissing(
            f"a key for secrets is missing on this JobManager: {what}",
            "each JobManager needs the same key files, with mode 0600, in [secrets] keys",
        )


def id_of(key: bytes) -> str:
    """The id of a key; it reveals nothing about the key."""
    return hashlib.sha256(b"sluice key-encryption key\0" + key).hexdigest()[:16]
