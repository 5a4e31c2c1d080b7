"""The binding of a home to a shared store. The home records it for commands that change its credential files."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sluice.core import FileStamp, Home, file_stamp, locked, make_private_directory, read_secret, write_secret
from sluice.gateway.config import SharedStoreConfig
from sluice.gateway.errors import SharedStoreError
from sluice.gateway.shared_store.cipher import StoreCipher
from sluice.gateway.shared_store.record import MAX_RECORD_BYTES, RECORD, STATE, read_record
from sluice.gateway.shared_store.sqlite import SqliteStore
from sluice.gateway.shared_store.store import SharedStore

if TYPE_CHECKING:
    from sluice.gateway.shared_store.shared_files import SharedFiles

_known: dict[Path, tuple[FileStamp, SharedFiles]] = {}
_mutex = threading.Lock()


def bind(home: Home, config: SharedStoreConfig) -> SharedFiles:
    """Bind ``home`` to the shared store and bring its files up to date.

    Raises:
        SharedStoreError: the database is unavailable, or its content conflicts with files of the home.
    """
    files = open_files(home, config)
    files.pull()
    return files


def open_files(home: Home, config: SharedStoreConfig) -> SharedFiles:
    """Bind ``home`` to the shared store without updating its files, and record this in the home."""
    StoreCipher.from_file(Path(config.encryption_key_file))
    make_private_directory(home.gateway)
    path, data = home.gateway / RECORD, msgspec.json.encode(config)
    if not path.exists() or read_secret(path, MAX_RECORD_BYTES) != data:
        write_secret(path, data)
    files = shared_files_in(home.gateway)
    if files is None:
        raise SharedStoreError(
            f"{path} was removed", "check whether another auth service uses this home without shared_store"
        )
    return files


def leave(home: Home) -> None:
    """Unbind ``home`` from a shared store. Its files stay, for this machine only."""
    (home.gateway / RECORD).unlink(missing_ok=True)
    (home.gateway / STATE).unlink(missing_ok=True)


def shared_files_in(directory: Path) -> SharedFiles | None:
    """The files that the home with this ``gateway`` directory shares with other machines; None when it shares none."""
    path = directory / RECORD
    stamp = file_stamp(path)
    if stamp is None:
        return None
    # Imported late: most homes share nothing and need no database driver.
    from sluice.gateway.shared_store.shared_files import SharedFiles

    with _mutex:
        known = _known.get(directory)
        if known is None or known[0] != stamp:
            config = read_record(path)
            cipher = StoreCipher.from_file(Path(config.encryption_key_file))
            known = _known[directory] = stamp, SharedFiles(directory, config, cipher)
        return known[1]


def open_store(home: Home) -> SharedStore:
    """The store for short-lived state of the auth services of ``home``: the shared database, or a file."""
    path = home.gateway / RECORD
    if not path.exists():
        return SqliteStore.of(home)
    from sluice.gateway.shared_store.database import Database
    from sluice.gateway.shared_store.postgres import PostgresStore

    config = read_record(path)
    return PostgresStore(Database(config), StoreCipher.from_file(Path(config.encryption_key_file)))


@contextlib.contextmanager
def writers_lock(directory: Path, *, patience: float | None = None) -> Iterator[None]:
    """Hold the writers' lock of the credential files in a home's ``gateway`` directory, on all machines that share it.

    Raises:
        StoreError: another process does not release the lock within ``patience`` seconds.
        SharedStoreError: the database is unavailable; the files are unchanged.
    """
    files = shared_files_in(directory)
    with locked(directory, patience=patience) if files is None else files.writing():
        yield
