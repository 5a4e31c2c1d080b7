"""Key-encryption keys: a directory of 0600 files, apart from what they encrypt.

A key's id is derived from the key, so that a file with another key under its name is found out. One machine's cluster
makes its keys itself. Where JobManagers are on several machines, each has to have the same keys: somebody distributes
them, and none is made here.
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
    """Where the keys of ``home`` are: ``[secrets] keys``, by default in the home, beside what they encrypt."""
    return Path(configured).expanduser().absolute() if configured else home.root / "secret-keys"


class KeyRing:
    """The keys in one directory. Blocks; every method but :meth:`create` and :meth:`remove` only reads.

    Args:
        directory: made when the first key is.
        makes_keys: whether keys are made here; else they are distributed by somebody.
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
        """The key of this id; raises :class:`SecretKeyMissing`."""
        if not _ID.fullmatch(key_id):
            raise self._missing("a key without an id")
        try:
            key = read_secret(self._path(key_id), KEY_BYTES)
        except StoreError as error:
            raise self._missing(error.what) from error
        if len(key) != KEY_BYTES or id_of(key) != key_id:
            raise self._missing(f"{self._path(key_id)} is another key than its name says")
        return key

    def create(self) -> str:
        """Make a key; it is on disk when this returns its id."""
        if len(self.ids()) >= MAX_KEYS:
            raise self._missing(f"room for another key: there are {MAX_KEYS}")
        key = os.urandom(KEY_BYTES)
        make_private_directory(self._directory)
        write_secret(self._path(id_of(key)), key)
        return id_of(key)

    def remove(self, key_id: str) -> None:
        """Remove a key that nothing is encrypted with any more."""
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
    """The id of a key, which tells nothing of it."""
    return hashlib.sha256(b"sluice key-encryption key\0" + key).hexdigest()[:16]
