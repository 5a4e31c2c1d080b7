"""SQLite databases that only their owner can read: mode 0600, marked with their kind and format."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.core.errors import StoreError
from sluice.core.files.trusted_files import SECRET_MODE


@dataclass(frozen=True, slots=True)
class DatabaseKind:
    """What a program keeps in such a file.

    Attributes:
        content: in words, as in "a store of identities".
        application_id: marks the file as ours (``PRAGMA application_id``).
        format: the version of the schema (``PRAGMA user_version``).
        schema: statements that make the tables.
        when_foreign: what to do about a file of another kind or format.
        when_damaged: what to do about one that SQLite cannot read.
    """

    content: str
    application_id: int
    format: int
    schema: Sequence[str]
    when_foreign: str
    when_damaged: str

    def prepare(self, database: sqlite3.Connection, path: Path, *, create: bool) -> None:
        """Create the tables (with ``create``) in an empty database, in the open transaction.

        Raises:
            StoreError: it is of another kind or format.
        """
        with self.reporting(path):
            (marked,) = database.execute("PRAGMA application_id").fetchone()
            (version,) = database.execute("PRAGMA user_version").fetchone()
            (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if create and not tables and not marked:
                marks = (f"PRAGMA application_id = {self.application_id}", f"PRAGMA user_version = {self.format}")
                for statement in (*self.schema, *marks):
                    database.execute(statement)
                return
        if (marked, version) != (self.application_id, self.format):
            raise StoreError(f"{path} is not {self.content} (format {version})", self.when_foreign)

    @contextlib.contextmanager
    def reporting(self, path: Path) -> Iterator[None]:
        """Turn errors of SQLite within the block into :class:`StoreError`."""
        try:
            yield
        except sqlite3.OperationalError as error:
            remedy = "another process is writing it: try again" if "locked" in str(error) else "nothing was changed"
            raise StoreError(f"cannot use {path}: {error}", remedy) from error
        except sqlite3.Error as error:
            raise StoreError(f"{path} is damaged: {error}", self.when_damaged) from error


def make_database(path: Path) -> None:
    """Make the file of a database, unless there is one; SQLite gives its journal the mode of the database."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        os.close(os.open(path, flags, SECRET_MODE))
    except FileExistsError:
        pass
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error


def check_database(path: Path) -> None:
    """Refuse a database that others can read."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    if mode & 0o077:
        raise StoreError(f"{path} has mode {mode:04o}: others can read it", f"chmod 600 {path}")
