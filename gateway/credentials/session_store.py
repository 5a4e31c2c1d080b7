"""The session file: written by the auth services of a home, read by the ``sluice`` command."""

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
"""How much of "last seen" a crash can lose; sessions may then reach their idle timeout this much too early."""


def session_file(home: Home) -> Path:
    """Where the sessions of ``home``'s cluster are kept."""
    return home.gateway / "sessions.json"


def session_snapshot(home: Home) -> CachedFile[SessionBook]:
    """The sessions for a long-running reader, as the auth service last wrote them; without a file there are none."""
    return _file(home).cached()


def read_sessions(home: Home) -> SessionBook:
    """The sessions as the auth service last wrote them; without a file there are none."""
    return _file(home).read()


def _file(home: Home) -> RecordFile[SessionBook]:
    return RecordFile(session_file(home), SessionBook, MAX_SESSION_FILE_BYTES, SessionError)


def revoke_sessions(
    home: Home, wanted: Callable[[SessionRecord], bool], *, by: str = "", now: float | None = None
) -> list[SessionRecord]:
    """Revoke the sessions for which ``wanted`` is true, from outside the auth service; returns them.

    The sessions end at the auth service, and their access tokens end wherever access tokens are checked.
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
    """The sessions of a home, for one of its auth services.

    A session is on disk before the client gets it, and the file is read again when it changes. Several auth services
    share the file: each holds the writers' lock and changes the current content, so a session that one service begins
    or ends has begun or ended for the others from their next request on. The time of last use is kept in memory and
    written periodically; of two services, the later use wins.

    The methods that write (:meth:`begin`, :meth:`end`, :meth:`flush`, :meth:`flush_if_due`) wait for the disk. Call
    them in a thread, not on the event loop.
    """

    def __init__(self, home: Home, limits: SessionLimits, clock: Callable[[], float] = time.time) -> None:
        """Load the sessions of ``home``; raises when they cannot be read."""
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
        """All stored sessions, including ended ones."""
        return tuple(self._with_use(record) for record in self._book().records)

    def authenticate(self, presented: str) -> SessionRecord:
        """The session of the secret ``presented``.

        Raises:
            NoSession: there is no such session, or it has ended.
            SessionError: the sessions cannot be read; also ``StoreError``.
        """
        return self._book().authenticate(presented, self._limits, now=self._clock(), used=self._used)

    def begin(self, subject: Subject, client: Client, address: str = "") -> tuple[SessionRecord, str]:
        """Begin a session; returns its record, and the secret for the client."""
        with self._file.locked():
            known, used = self._with_uses()
            book, record, text = known.begin(subject, client, self._limits, now=self._clock(), address=address)
            self._write(book, used)
        return record, text

    def end(self, identifier: SessionId) -> None:
        """End a session; it is removed from disk on return."""
        with self._file.locked():
            known, used = self._with_uses()
            self._write(known.end(identifier), used)

    def used(self, identifier: SessionId) -> None:
        """Note that a session was used. Does not wait for the disk: :meth:`flush_if_due` writes it."""
        with self._mutex:
            self._used[identifier] = self._clock()

    def flush_if_due(self) -> None:
        """Write the times of last use, at most every :data:`FLUSH_SECONDS`. Waits for the disk: call it in a thread.

        Writes at once when another auth service could soon consider a used session idle.
        """
        if self._clock() - self._written_at >= FLUSH_SECONDS or self._is_urgent():
            self.flush()

    def flush(self) -> None:
        """Write the times of last use that are not on disk yet."""
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
        """The sessions on disk merged with the unwritten uses, and these uses."""
        with self._mutex:
            used = dict(self._used)
        return self._file.read().with_uses(used), used

    def _write(self, book: SessionBook, used: Mapping[SessionId, float]) -> None:
        """Write ``book``, and forget the uses that it contains; later uses stay unwritten."""
        self._file.write(book)
        with self._mutex:
            self._written_at = self._clock()
            for identifier, moment in used.items():
                if self._used.get(identifier) == moment:
                    del self._used[identifier]
