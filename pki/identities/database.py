"""Many identities in one file, for whole clusters: an SQLite database of mode 0600, changed in one transaction.

A directory with five files per identity costs more than making the identity. Here a thousand identities are one
sequential write, a failed or killed run leaves the file unchanged (https://sqlite.org/atomiccommit.html), and two
processes take turns. ``write_identity`` makes a directory of one when it is needed.
"""

from __future__ import annotations

import base64
import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from sluice.core import DatabaseKind, check_database, make_database
from sluice.pki.identities.directory import IdentityMaterial, parse_identity
from sluice.pki.spiffe_id import SpiffeId

BATCH = 200
"""How many identities to collect before passing them to SQLite."""
LOCK_SECONDS = 60.0
"""How long a second writer waits for the first."""

_SCHEMA = (
    "CREATE TABLE authority (id INTEGER PRIMARY KEY, der BLOB NOT NULL UNIQUE)",
    """CREATE TABLE identity (
        spiffe_id TEXT PRIMARY KEY, key BLOB NOT NULL, leaf BLOB NOT NULL,
        authority INTEGER NOT NULL REFERENCES authority (id), accept TEXT NOT NULL)""",
)
_KIND = DatabaseKind(
    "a store of identities",
    application_id=0x534C5543,  # "SLUC"
    format=1,
    schema=_SCHEMA,
    when_foreign="name another file",
    when_damaged="restore it from a copy",
)
_SELECT = "SELECT key, leaf, der, accept FROM identity JOIN authority ON authority.id = authority WHERE spiffe_id = ?"
_INSERT = "INSERT INTO identity VALUES (?, ?, ?, ?, ?) ON CONFLICT (spiffe_id) DO UPDATE SET \
key = excluded.key, leaf = excluded.leaf, authority = excluded.authority, accept = excluded.accept"


class IdentityStore:
    """One open store: a transaction that :meth:`commit` ends; closing without it changes nothing.

    Args:
        path: the file; made (mode 0600) when it is missing and ``create`` is set.
        create: open for writing, as the only writer.
        lock_seconds: how long to wait for another writer.

    Raises:
        StoreError: from every method: missing, damaged, readable by others, in use, or the disk is full.
    """

    def __init__(self, path: Path, *, create: bool = False, lock_seconds: float = LOCK_SECONDS) -> None:
        self._path = path
        self._authorities: dict[bytes, int] = {}
        self._pending: dict[str, tuple[str, bytes, bytes, int, str]] = {}
        if create:
            make_database(path)
        check_database(path)
        with self._reporting():
            # Readers too may have to roll back the transaction of a dead writer.
            self._database = sqlite3.connect(
                f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=lock_seconds, isolation_level=None
            )
        try:
            self._begin(create=create)
        except BaseException:
            self._database.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # An open transaction is rolled back by closing (https://sqlite.org/c3ref/close.html).
        self._database.close()

    def __len__(self) -> int:
        self._flush()
        with self._reporting():
            (count,) = self._database.execute("SELECT count(*) FROM identity").fetchone()
        return int(count)

    def identities(self) -> Iterator[SpiffeId]:
        """All identities, sorted."""
        self._flush()
        with self._reporting():
            for (spiffe_id,) in self._database.execute("SELECT spiffe_id FROM identity ORDER BY spiffe_id"):
                yield SpiffeId.parse(spiffe_id)

    def get(self, spiffe_id: SpiffeId) -> tuple[IdentityMaterial, tuple[str, ...]] | None:
        """The identity and its accepted peers, checked to belong together; None when it is not in here."""
        if str(spiffe_id) in self._pending:
            self._flush()
        with self._reporting():
            row = self._database.execute(_SELECT, (str(spiffe_id),)).fetchone()
        if row is None:
            return None
        key, leaf, authority, accept = row
        ca_pem = _pem("CERTIFICATE", authority)
        material = parse_identity(
            _pem("PRIVATE KEY", key), _pem("CERTIFICATE", leaf) + ca_pem, ca_pem, f"{self._path}: {spiffe_id}"
        )
        return material, tuple(str(accept).split())

    def put(
        self,
        spiffe_id: SpiffeId,
        *,
        key: bytes,
        leaf: bytes,
        authority: bytes,
        accept: tuple[str, ...] = (),
    ) -> None:
        """Add or replace an identity whose key (PKCS#8) and leaf have just been made for each other; all in DER."""
        number = self._authorities.get(authority)
        if number is None:
            number = self._authorities[authority] = self._authority(authority)
        name = str(spiffe_id)
        self._pending[name] = (name, key, leaf, number, "\n".join(accept))
        if len(self._pending) >= BATCH:
            self._flush()

    def commit(self) -> None:
        """Commit everything since opening, flushed to disk."""
        self._flush()
        with self._reporting():
            self._database.execute("COMMIT")
            self._database.execute("BEGIN")

    def _flush(self) -> None:
        with self._reporting():
            self._database.executemany(_INSERT, self._pending.values())
        self._pending.clear()

    def _authority(self, der: bytes) -> int:
        with self._reporting():
            self._database.execute("INSERT INTO authority (der) VALUES (?) ON CONFLICT (der) DO NOTHING", (der,))
            (number,) = self._database.execute("SELECT id FROM authority WHERE der = ?", (der,)).fetchone()
        return int(number)

    def _begin(self, *, create: bool) -> None:
        with self._reporting():
            self._database.execute("PRAGMA trusted_schema = OFF")
            self._database.execute("PRAGMA cell_size_check = ON")
            if create:
                # Large pages: a leaf with its key is most of a kilobyte. Only a new file takes the size.
                self._database.execute("PRAGMA page_size = 16384")
                # Keys that are replaced are overwritten, not only forgotten.
                self._database.execute("PRAGMA secure_delete = ON")
                self._database.execute("BEGIN IMMEDIATE")
            else:
                self._database.execute("PRAGMA query_only = ON")
                self._database.execute("BEGIN")
        _KIND.prepare(self._database, self._path, create=create)

    def _reporting(self) -> AbstractContextManager[None]:
        return _KIND.reporting(self._path)


def _pem(label: str, der: bytes) -> bytes:
    body = base64.b64encode(der)
    lines = b"\n".join(body[start : start + 64] for start in range(0, len(body), 64))
    return b"-----BEGIN %b-----\n%b\n-----END %b-----\n" % (label.encode(), lines, label.encode())
