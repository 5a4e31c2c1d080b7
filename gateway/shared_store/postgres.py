"""The shared store of auth services on several machines: a table in PostgreSQL.

A transaction holds the advisory lock of its space, so that no other process reads or changes the space at the same
time. Keys and groups are HMAC values, and keys and values are encrypted: the database sees only times and counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from sluice.gateway.errors import SharedStoreError
from sluice.gateway.shared_store.cipher import StoreCipher
from sluice.gateway.shared_store.database import Database, Statements
from sluice.gateway.shared_store.store import MAX_KEY_CHARACTERS, MAX_VALUE_BYTES, Entry

MAX_ENTRIES = 100_000
"""Maximum number of entries in one space; bounds the database, whatever requests the gateway gets."""
_OF_GROUP = " AND grouping = :grouping"
_SELECT = "SELECT key, value, since, until FROM sluice_entries WHERE space = :space"
_COUNT = "SELECT count(*) FROM sluice_entries WHERE space = :space"


class _Content(msgspec.Struct, frozen=True, array_like=True):
    """The encrypted part of an entry."""

    key: str
    group: str
    value: bytes


class PostgresStore:
    """The store in ``database``; safe to use from several threads, processes and machines."""

    def __init__(self, database: Database, cipher: StoreCipher) -> None:
        self._database = database
        self._cipher = cipher

    @contextlib.contextmanager
    def transaction(self, space: str, now: float) -> Iterator[PostgresTransaction]:
        """See :meth:`~sluice.gateway.shared_store.store.SharedStore.transaction`."""
        with self._database.transaction() as statements:
            statements.run("SELECT pg_advisory_xact_lock(hashtextextended(:name, 0))", name=f"sluice {space}")
            statements.run("DELETE FROM sluice_entries WHERE space = :space AND until < :now", space=space, now=now)
            yield PostgresTransaction(statements, space, self._cipher)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()


class PostgresTransaction:
    """One space within a transaction."""

    def __init__(self, statements: Statements, space: str, cipher: StoreCipher) -> None:
        self._statements = statements
        self._space = space
        self._cipher = cipher

    def get(self, key: str) -> Entry | None:
        """The entry with this key, if there is one."""
        return next(iter(self._select(" AND key = :key", key=self._key(key))), None)

    def put(self, entry: Entry) -> None:
        """Add ``entry``; replaces an entry with the same key."""
        if not entry.key or len(entry.key) > MAX_KEY_CHARACTERS or len(entry.value) > MAX_VALUE_BYTES:
            raise SharedStoreError(f"an entry of {self._space} is too large")
        if self.count() >= MAX_ENTRIES and self.get(entry.key) is None:
            raise SharedStoreError(f"{self._space} has the maximum of {MAX_ENTRIES} entries")
        key = self._key(entry.key)
        content = msgspec.msgpack.encode(_Content(entry.key, entry.group, entry.value))
        self._statements.run(
            "INSERT INTO sluice_entries (space, key, value, since, until, grouping)"
            " VALUES (:space, :key, :value, :since, :until, :grouping) ON CONFLICT (space, key) DO UPDATE"
            " SET value = EXCLUDED.value, since = EXCLUDED.since, until = EXCLUDED.until, grouping = EXCLUDED.grouping",
            space=self._space,
            key=key,
            value=self._cipher.encrypted(content, self._context(key, entry.since, entry.until)),
            since=entry.since,
            until=entry.until,
            grouping=self._group(entry.group),
        )

    def remove(self, key: str) -> None:
        """Remove an entry; an unknown key is ignored."""
        self._statements.run(
            "DELETE FROM sluice_entries WHERE space = :space AND key = :key", space=self._space, key=self._key(key)
        )

    def count(self, group: str | None = None) -> int:
        """The number of entries, in one group or in total."""
        restriction, given = self._restricted(group)
        [[number]] = self._statements.run(_COUNT + restriction, space=self._space, **given)
        return int(number)

    def oldest(self, group: str | None = None) -> Entry | None:
        """The oldest entry, of one group or of all."""
        restriction, given = self._restricted(group)
        return next(iter(self._select(f"{restriction} ORDER BY since, key LIMIT 1", **given)), None)

    def entries(self, group: str | None = None) -> list[Entry]:
        """All entries, or those of one group, the oldest first."""
        restriction, given = self._restricted(group)
        return self._select(f"{restriction} ORDER BY since, key", **given)

    def _select(self, restriction: str, **given: object) -> list[Entry]:
        rows = self._statements.run(_SELECT + restriction, space=self._space, **given)
        return [self._entry(bytes(key), bytes(value), since, until) for key, value, since, until in rows]

    def _entry(self, key: bytes, value: bytes, since: float, until: float) -> Entry:
        plain = self._cipher.decrypted(value, self._context(key, since, until))
        content = msgspec.msgpack.decode(plain, type=_Content)
        return Entry(content.key, content.value, since, until, content.group)

    def _restricted(self, group: str | None) -> tuple[str, dict[str, object]]:
        return ("", {}) if group is None else (_OF_GROUP, {"grouping": self._group(group)})

    def _key(self, key: str) -> bytes:
        return self._cipher.name("key", self._space, key)

    def _group(self, group: str) -> bytes:
        return self._cipher.name("group", self._space, group)

    def _context(self, key: bytes, since: float, until: float) -> str:
        return f"entry {self._space} {key.hex()} {since!r} {until!r}"
