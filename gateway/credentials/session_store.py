"""The session file: written by the auth services of a home, read by the command."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from sluice.core import CachedFile, Home
from sluice.gateway.credentials.record_file import RecordFile
from sluice.gateway.credentials.revocations import Revocations
from sluice.gateway.credentials.sessions import Client, SessionBook, SessionLimits, SessionRecord
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
    """The sessions of a home, for one of its auth services: on disk before a client gets one, and read when changed.

    Several auth services share the file: each changes it with the writers' lock, from what is in it then, so a session
    that one begins or ends is begun or ended at the others with their next request. When sessions were last used is
    kept in memory and written now and then; of two services the later use counts.

    What writes (:meth:`begin`, :meth:`end`, :meth:`flush`, :meth:`flush_if_due`) waits for the disk, and is for threads
    beside the event loop.
    """

    def __init__(self, home: Home, limits: SessionLimits, clock: Callable[[], float] = time.time) -> None:
        """Continue with the sessions of ``home``; raises when they cannot be read."""
        self._file = _file(home)
        self._limits = limits
        self._clock = clock
        self._written_at = clock()
        self._cached = self._file.cached()
        self._mutex = threading.Lock()
        self._used: dict[SessionId, float] = {}
        self._book()

    @property
    def records(self) -> tuple[SessionRecord, ...]:
        """Every session that is kept, ended ones among them."""
        return tuple(self._with_use(record) for record in self._book().records)

    def authenticate(self, presented: str) -> SessionRecord:
        """The session that ``presented`` is; raises :class:`~sluice.gateway.credentials.sessions.NoSession`.

        Raises :class:`~sluice.gateway.errors.SessionError` or ``StoreError`` when the sessions cannot be read.
        """
        return self._book().authenticate(presented, self._limits, now=self._clock(), used=self._used)

    def begin(self, subject: Subject, client: Client, address: str = "") -> tuple[SessionRecord, str]:
        """A new session, and what its client is to hold."""
        with self._file.locked():
            known, used = self._with_uses()
            book, record, text = known.begin(subject, client, self._limits, now=self._clock(), address=address)
            self._write(book, used)
        return record, text

    def end(self, identifier: SessionId) -> None:
        """End a session: it is gone from the disk when this returns."""
        with self._file.locked():
            known, used = self._with_uses()
            self._write(known.end(identifier), used)

    def used(self, identifier: SessionId) -> None:
        """A session was used. Waits for no disk: :meth:`flush_if_due` writes it."""
        with self._mutex:
            self._used[identifier] = self._clock()

    def flush_if_due(self) -> None:
        """Write when sessions were last used, every :data:`FLUSH_SECONDS`; for a thread, for it waits for the disk.

        At once when another auth service might soon take one for idle.
        """
        if self._clock() - self._written_at >= FLUSH_SECONDS or self._is_urgent():
            self.flush()

    def flush(self) -> None:
        """Write what has not been written."""
        with self._mutex:
            if not self._used:
                return
        with self._file.locked():
            book, used = self._with_uses()
            self._write(book, used)

    def _is_urgent(self) -> bool:
        with self._mutex:
            used = dict(self._used)
        book = self._book() if used else SessionBook()
        return any(
            record is not None and moment - record.seen_at > self._limits.idle / 2
            for record, moment in ((book.get(identifier), moment) for identifier, moment in used.items())
        )

    def _book(self) -> SessionBook:
        with self._mutex:
            return self._cached.get()

    def _with_use(self, record: SessionRecord) -> SessionRecord:
        moment = self._used.get(record.id, 0.0)
        return msgspec.structs.replace(record, seen_at=moment) if moment > record.seen_at else record

    def _with_uses(self) -> tuple[SessionBook, dict[SessionId, float]]:
        """The sessions on disk, with the uses that are not there yet, and these."""
        with self._mutex:
            used = dict(self._used)
        return self._file.read().with_uses(used), used

    def _write(self, book: SessionBook, used: Mapping[SessionId, float]) -> None:
        """Write ``book``; the uses in it are written then, and those since are not."""
        self._file.write(book)
        with self._mutex:
            self._written_at = self._clock()
            for identifier, moment in used.items():
                if self._used.get(identifier) == moment:
                    del self._used[identifier]
