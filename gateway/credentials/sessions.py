"""Sessions as values: of browsers (cookie) and of the ``sluice`` command (bearer). No files, no clocks, no sockets.

The client holds ``sls_<id>_<secret>``; only its SHA-256 is stored. Times are seconds since the epoch.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from sluice.gateway.errors import SessionError
from sluice.gateway.principal import Subject
from sluice.pki.assertions import Method, SessionId, TokenId

MAX_SESSIONS = 10_000
MAX_SESSIONS_PER_NAME = 50
"""Maximum number of sessions of one principal; beyond it, a new session ends the oldest."""
CSRF_BYTES = 16

_ID_BYTES = 6
_SECRET_BYTES = 32
_SESSION = re.compile(r"sls_([0-9a-f]{12})_([0-9a-f]{64})")
_NO_DIGEST = hashlib.sha256(b"no such session").hexdigest()

Client = Literal["browser", "command"]


class NoSession(Exception):
    """There is no such session, or it has ended. The message is for the log."""


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The stored part of a session. It does not contain the secret."""

    id: SessionId
    name: str
    method: Method
    client: Client
    sha256: str
    csrf: str
    created_at: float
    seen_at: float
    expires_at: float
    groups: tuple[str, ...] = ()
    address: str = ""
    issuer: str = ""
    token: TokenId = TokenId("")
    """Id of the API token that the session began with; the session ends when this token is revoked."""


class _SessionFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: Literal[1] = 1
    sessions: tuple[SessionRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Maximum lifetime and idle timeout of sessions, in seconds."""

    lifetime: float
    idle: float

    def is_active(self, record: SessionRecord, now: float) -> bool:
        """Whether a session has not expired at ``now``."""
        # Uses the current limits: a shorter lifetime applies to existing sessions, a longer one does not.
        return now < min(record.expires_at, record.created_at + self.lifetime, record.seen_at + self.idle)


class SessionBook:
    """All sessions of a cluster. Immutable: changes return a new book."""

    def __init__(self, records: Iterable[SessionRecord] = ()) -> None:
        self._records: Mapping[SessionId, SessionRecord] = {record.id: record for record in records}

    @property
    def records(self) -> tuple[SessionRecord, ...]:
        """All sessions, in the order they began."""
        return tuple(self._records.values())

    @classmethod
    def decode(cls, data: bytes) -> SessionBook:
        """Decode the file format; raises :class:`SessionError`."""
        try:
            return cls(msgspec.json.decode(data, type=_SessionFile).sessions)
        except msgspec.MsgspecError as error:
            raise SessionError(
                f"the session file is damaged: {error}", "remove it; all users then sign in again"
            ) from error

    def encode(self) -> bytes:
        """Encode to the file format."""
        return msgspec.json.encode(_SessionFile(sessions=self.records))

    def get(self, identifier: SessionId) -> SessionRecord | None:
        """The session with this id."""
        return self._records.get(identifier)

    def begin(
        self, subject: Subject, client: Client, limits: SessionLimits, *, now: float, address: str = ""
    ) -> tuple[SessionBook, SessionRecord, str]:
        """Begin a session with a random id and secret; returns the new book, the record and the secret."""
        kept = [record for record in self.records if limits.is_active(record, now)]
        own = [record.id for record in kept if record.name == subject.name]
        surplus = set(own[: max(0, len(own) - MAX_SESSIONS_PER_NAME + 1)])
        kept = [record for record in kept if record.id not in surplus]
        if len(kept) >= MAX_SESSIONS:
            raise SessionError(f"there are {len(kept)} sessions already", "wait, or end some: `sluice session revoke`")
        identifier = SessionId(secrets.token_hex(_ID_BYTES))
        while identifier in self._records:
            identifier = SessionId(secrets.token_hex(_ID_BYTES))
        token = subject.credential.token_id if subject.credential is not None else None
        text = f"sls_{identifier}_{secrets.token_hex(_SECRET_BYTES)}"
        # From the authentication on: a password that was changed since then must not have begun a session.
        began = min(now, subject.authenticated_at)
        record = SessionRecord(
            id=identifier,
            name=subject.name,
            method=subject.method,
            client=client,
            sha256=_digest(text),
            csrf=secrets.token_hex(CSRF_BYTES),
            created_at=began,
            seen_at=now,
            expires_at=min(began + limits.lifetime, subject.expires_at),
            groups=subject.groups,
            address=address,
            issuer=subject.issuer,
            token=token or TokenId(""),
        )
        return SessionBook([*kept, record]), record, text

    def authenticate(
        self, presented: str, limits: SessionLimits, *, now: float, used: Mapping[SessionId, float] | None = None
    ) -> SessionRecord:
        """The session of the secret ``presented``; raises :class:`NoSession`. ``used`` has uses newer than the book."""
        match = _SESSION.fullmatch(presented)
        if match is None:
            raise NoSession("not of a session's shape")
        # Compare in constant time, and compare even when the id is unknown.
        record = self._records.get(SessionId(match[1]))
        expected = _NO_DIGEST if record is None else record.sha256
        if not hmac.compare_digest(_digest(presented), expected) or record is None:
            raise NoSession("not known, or ended")
        if (moment := (used or {}).get(record.id, 0.0)) > record.seen_at:
            record = msgspec.structs.replace(record, seen_at=moment)
        if not limits.is_active(record, now):
            raise NoSession("expired")
        return record

    def seen(self, identifier: SessionId, *, now: float) -> SessionBook:
        """A book in which this session was used at ``now``."""
        return self.with_uses({identifier: now})

    def with_uses(self, uses: Mapping[SessionId, float]) -> SessionBook:
        """A book with these times of last use. Later known times stay; unknown ids are ignored."""
        later = {
            identifier: msgspec.structs.replace(record, seen_at=moment)
            for identifier, moment in uses.items()
            if (record := self._records.get(identifier)) is not None and record.seen_at < moment
        }
        return SessionBook({**self._records, **later}.values()) if later else self

    def end(self, identifier: SessionId) -> SessionBook:
        """A book without this session; an unknown id is ignored."""
        return SessionBook(record for record in self.records if record.id != identifier)


def is_session(text: str) -> bool:
    """Whether ``text`` has the format of a session secret."""
    return _SESSION.fullmatch(text) is not None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
