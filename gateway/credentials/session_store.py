"""The session file: written by the auth service alone, read by the command."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sluice.core import CachedFile, Home
from sluice.gateway.credentials.record_file import RecordFile
from sluice.gateway.credentials.revocations import Revocations
from sluice.gateway.credentials.sessions import (
    Client,
    SessionBook,
    SessionLimits,
    SessionRecord,
)
from sluice.gateway.errors import SessionError
from sluice.gateway.principal import Subject
from sluice.pki.assertions import SessionId

MAX_SESSION_FILE_BYTES = 16 << 20
FLUSH_SECONDS = 60.0
"""How much of "last seen" a crash may lose: sessions may then end for idleness this much too early."""


def session_file(home: Home) -> Path:
    """Where the sessions of ``home``'s cluster are kept."""
    return home.gateway / "sessions.json"


def session_snapshot(home: Home) -> CachedFile[SessionBook]:
    """The sessions for a reader that runs for long, as the auth service last wrote them; no file means none."""
    return _file(home).cached()


def read_sessions(home: Home) -> SessionBook:
    """The sessions as the auth service last wrote them; no file means none."""
    return _file(home).read()


def _file(home: Home) -> RecordFile[SessionBook]:
    return RecordFile(session_file(home), SessionBook, MAX_SESSION_FILE_BYTES, SessionError)


def revoke_sessions(
    home: Home, wanted: Callable[[SessionRecord], bool], *, by: str = "", now: float | None = None
) -> list[SessionRecord]:
    """Revoke the sessions that are ``wanted``, from outside of the auth service; returns them.

    They end at the auth service, and the passes got for them wherever those are checked.
    """
    moment = time.time() if now is None else now
    revocations = Revocations.of(home)
    known = revocations.current()
    found = [
        record
        for record in read_sessions(home).records
        if wanted(record) and moment < record.expires_at and not known.is_revoked(("session", record.id), now=moment)
    ]
    for record in found:
        revocations.revoke(("session", record.id), until=record.expires_at, by=by)
    return found


class SessionStore:
    """The sessions of a running auth service: in memory, and on disk before a client gets one.

    What writes (:meth:`begin`, :meth:`end`, :meth:`flush`, :meth:`flush_if_due`) waits for the disk, and is for threads
    beside the event loop; the rest waits for nothing.
    """

    def __init__(self, home: Home, limits: SessionLimits, clock: Callable[[], float] = time.time) -> None:
        """Continue with the sessions of ``home``; raises when they cannot be read."""
        self._file = _file(home)
        self._limits = limits
        self._clock = clock
        self._book = self._file.read()
        self._written = self._book
        self._written_at = clock()
        self._writer = threading.Lock()
        self._mutex = threading.Lock()

    @property
    def records(self) -> tuple[SessionRecord, ...]:
        """Every session that is kept, ended ones among them."""
        return self._book.records

    def authenticate(self, presented: str) -> SessionRecord:
        """The session that ``presented`` is; raises :class:`~sluice.gateway.credentials.sessions.NoSession`."""
        return self._book.authenticate(presented, self._limits, now=self._clock())

    def begin(self, subject: Subject, client: Client, address: str = "") -> tuple[SessionRecord, str]:
        """A new session, and what its client is to hold."""
        with self._changing() as known:
            book, record, text = known.begin(subject, client, self._limits, now=self._clock(), address=address)
            self._change(known, book)
        return record, text

    def end(self, identifier: SessionId) -> None:
        """End a session: it is gone from the disk when this returns."""
        with self._changing() as known:
            self._change(known, known.end(identifier))

    def used(self, identifier: SessionId) -> None:
        """A session was used. Waits for no disk: :meth:`flush_if_due` writes it."""
        with self._mutex:
            if self._book.get(identifier) is not None:  # it may have ended meanwhile
                self._book = self._book.seen(identifier, now=self._clock())

    def flush_if_due(self) -> None:
        """Write when sessions were last used, every :data:`FLUSH_SECONDS`; for a thread, for it waits for the disk."""
        if self._clock() - self._written_at >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write what has not been written."""
        with self._writer:
            book = self._book
            if book is not self._written:
                self._write(book)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[SessionBook]:
        """One change at a time; yields what it starts from."""
        with self._writer:
            yield self._book

    def _change(self, known: SessionBook, book: SessionBook) -> None:
        """Write ``book``, made of ``known``; only then does it count. What was used meanwhile stays used."""
        self._write(book)
        with self._mutex:
            for record in self._book.records if self._book is not known else ():
                kept = book.get(record.id)
                if kept is not None and kept.seen_at < record.seen_at:
                    book = book.seen(record.id, now=record.seen_at)
            self._book = book

    def _write(self, book: SessionBook) -> None:
        self._file.write(book)
        self._written, self._written_at = book, self._clock()
