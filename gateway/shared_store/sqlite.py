"""The shared store of auth services on one machine: an SQLite database in the home.

The database uses a write-ahead log and syncs every commit, so that neither a killed process nor a power failure makes a
used code usable again. Each transaction checks whether the file was replaced, so that two processes never use different
databases.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sluice.core import SECRET_MODE, Home, locked, make_private_directory
from sluice.gateway.errors import SharedStoreError
from sluice.gateway.shared_store.store import MAX_KEY_CHARACTERS, MAX_VALUE_BYTES, Entry

BUSY_SECONDS = 2.0
"""How long a transaction waits for transactions of other processes."""
MAX_PAGES = 32 << 10
"""Maximum number of 4 KiB pages; bounds the disk space, whatever requests the gateway gets."""
_VERSION = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    space TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    since REAL NOT NULL,
    until REAL NOT NULL,
    grouping TEXT NOT NULL,
    PRIMARY KEY (space, key)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_end ON entries (space, until);
CREATE INDEX IF NOT EXISTS by_group ON entries (space, grouping, since);
CREATE INDEX IF NOT EXISTS by_age ON entries (space, since);
"""
_SELECT = "SELECT key, value, since, until, grouping FROM entries WHERE space = ?"
_COUNT = "SELECT count(*) FROM entries WHERE space = ?"
_OF_GROUP = " AND grouping = ?"
_BY_AGE = " ORDER BY since, key"


def shared_store_file(home: Home) -> Path:
    """The database file of ``home``'s auth services."""
    return home.gateway / "shared.sqlite"


class SqliteStore:
    """The store at ``path``, created when missing; safe to use from several threads and processes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mutex = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._inode = (0, 0)

    @classmethod
    def of(cls, home: Home) -> SqliteStore:
        """The store of ``home``; nothing is opened before the first transaction."""
        return cls(shared_store_file(home))

    @contextlib.contextmanager
    def transaction(self, space: str, now: float) -> Iterator[SqliteTransaction]:
        """See :meth:`~sluice.gateway.shared_store.store.SharedStore.transaction`."""
        with self._mutex:
            connection = self._opened()
            with _failing(self._path):
                connection.execute("BEGIN IMMEDIATE")
            try:
                with _failing(self._path):
                    connection.execute("DELETE FROM entries WHERE space = ? AND until < ?", (space, now))
                yield SqliteTransaction(connection, space, self._path)
                with _failing(self._path):
                    connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the database."""
        with self._mutex:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _opened(self) -> sqlite3.Connection:
        """The connection to the file that is currently at the path; reopens it when the file was replaced."""
        if self._connection is not None and self._found() == self._inode:
            return self._connection
        self._close()
        make_private_directory(self._path.parent)
        # One process at a time: SQLite does not wait for another process that changes the journal mode.
        with locked(self._path.parent, patience=BUSY_SECONDS):
            self._make_file()
            with _failing(self._path):
                self._connection = self._connected()
            self._inode = self._found()
        return self._connection

    def _connected(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            self._check_version(version)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA max_page_count = {MAX_PAGES}")
            connection.execute("PRAGMA trusted_schema = OFF")
            if version == 0:
                connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
        except BaseException:
            connection.close()
            raise
        return connection

    def _check_version(self, version: int) -> None:
        if version not in {0, _VERSION}:
            raise SharedStoreError(
                f"{self._path} has version {version}, which this program does not support",
                "stop every auth service and remove it; pending sign-ins must start again",
            )

    def _found(self) -> tuple[int, int]:
        try:
            info = self._path.lstat()
        except FileNotFoundError:
            return 0, 0
        except OSError as error:
            raise SharedStoreError(f"cannot read {self._path}: {error.strerror}", "check its permissions") from error
        return info.st_dev, info.st_ino

    def _make_file(self) -> None:
        """Create the file so that others can never read it; SQLite gives its other files the same mode."""
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self._path, flags, SECRET_MODE)
            try:
                info = os.fstat(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise SharedStoreError(
                f"cannot open {self._path}: {error.strerror}", "check space and permissions"
            ) from error
        if info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
            raise SharedStoreError(f"others can use {self._path}", f"chmod 600 {self._path}")


class SqliteTransaction:
    """One space within a transaction of the database at ``path``."""

    def __init__(self, connection: sqlite3.Connection, space: str, path: Path) -> None:
        self._connection = connection
        self._space = space
        self._path = path

    def get(self, key: str) -> Entry | None:
        """The entry with this key, if there is one."""
        return next(iter(self._select(" AND key = ?", key)), None)

    def put(self, entry: Entry) -> None:
        """Add ``entry``; replaces an entry with the same key."""
        if not entry.key or len(entry.key) > MAX_KEY_CHARACTERS or len(entry.value) > MAX_VALUE_BYTES:
            raise SharedStoreError(f"an entry of {self._space} is too large")
        row = (self._space, entry.key, entry.value, entry.since, entry.until, entry.group)
        self._do(
            "INSERT OR REPLACE INTO entries (space, key, value, since, until, grouping) VALUES (?,?,?,?,?,?)", *row
        )

    def remove(self, key: str) -> None:
        """Remove an entry; an unknown key is ignored."""
        self._do("DELETE FROM entries WHERE space = ? AND key = ?", self._space, key)

    def count(self, group: str | None = None) -> int:
        """The number of entries, in one group or in total."""
        restriction, given = _restricted(group)
        ((number,),) = self._do(_COUNT + restriction, self._space, *given)
        return int(number)

    def oldest(self, group: str | None = None) -> Entry | None:
        """The oldest entry, of one group or of all."""
        restriction, given = _restricted(group)
        return next(iter(self._select(f"{restriction}{_BY_AGE} LIMIT 1", *given)), None)

    def entries(self, group: str | None = None) -> list[Entry]:
        """All entries, or those of one group, the oldest first."""
        restriction, given = _restricted(group)
        return self._select(f"{restriction}{_BY_AGE}", *given)

    def _select(self, restriction: str, *given: str) -> list[Entry]:
        return [Entry(*row) for row in self._do(_SELECT + restriction, self._space, *given)]

    def _do(self, statement: str, *given: object) -> list[tuple[Any, ...]]:
        with _failing(self._path):
            return self._connection.execute(statement, given).fetchall()


def _restricted(group: str | None) -> tuple[str, tuple[str, ...]]:
    return ("", ()) if group is None else (_OF_GROUP, (group,))


@contextlib.contextmanager
def _failing(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise SharedStoreError(
            f"cannot use {path}: {error}", "check the space on the disk, and that no other program has it open"
        ) from error
    except sqlite3.Error as error:
        raise SharedStoreError(
            f"{path} is damaged: {error}",
            "stop every auth service and remove it; pending sign-ins must start again",
        ) from error
