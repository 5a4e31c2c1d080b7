"""The open tickets (results not fetched yet) and prepared statements of principals.

Handles are random and only looked up among those of the caller, so a handle of another principal is unknown. A ticket
is valid once, so that no statement runs twice. Pure; the clock is injected.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from grpclib.const import Status

from sluice.gateway.errors import GatewayError

MAX_SQL_BYTES = 1 << 20
MAX_STATEMENTS = 256
"""Tickets and prepared statements of one principal."""
MAX_SQL_BYTES_OF_ONE = 8 << 20
"""Text of all statements of one principal."""
MAX_SQL_BYTES_OF_ALL = 128 << 20
TICKET_SECONDS = 300.0
"""How long a ticket can be redeemed."""
PREPARED_SECONDS = 1800.0
"""How long an unused prepared statement is kept."""
_HANDLE_BYTES = 24


class StatementRefused(GatewayError):
    """The statement is refused, or the handle is unknown; ``status`` is the gRPC status."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(slots=True)
class _Statement:
    sql: str
    size: int
    prepared: bool
    schema: bytes
    until: float


class Statements:
    """The open statements of all principals.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._open: dict[str, dict[bytes, _Statement]] = {}

    def ticket(self, principal: str, sql: str) -> bytes:
        """Issue a handle that lets ``principal`` run ``sql`` once; raises :class:`StatementRefused`."""
        return self._add(principal, sql, b"", prepared=False)

    def prepare(self, principal: str, sql: str, schema: bytes) -> bytes:
        """Issue a handle that lets ``principal`` run ``sql`` repeatedly; raises :class:`StatementRefused`."""
        return self._add(principal, sql, schema, prepared=True)

    def redeem(self, principal: str, handle: bytes) -> str:
        """Return the SQL of a ticket and invalidate the ticket; raises :class:`StatementRefused`."""
        found = self._found(principal, handle, prepared=False)
        self._remove(principal, handle)
        return found.sql

    def prepared(self, principal: str, handle: bytes) -> tuple[str, bytes]:
        """SQL and schema of a prepared statement; raises :class:`StatementRefused`."""
        found = self._found(principal, handle, prepared=True)
        found.until = self._clock() + PREPARED_SECONDS
        return found.sql, found.schema

    def close(self, principal: str, handle: bytes) -> None:
        """Close a prepared statement; unknown handles are ignored."""
        found = self._open.get(principal, {}).get(handle)
        if found is not None and found.prepared:
            self._remove(principal, handle)

    def __len__(self) -> int:
        return sum(len(each) for each in self._open.values())

    def _add(self, principal: str, sql: str, schema: bytes, *, prepared: bool) -> bytes:
        check_length(sql)
        size = len(sql.encode()) + len(schema)
        self._expire()
        mine = self._open.get(principal, {})
        if len(mine) >= MAX_STATEMENTS or sum(each.size for each in mine.values()) + size > MAX_SQL_BYTES_OF_ONE:
            raise StatementRefused(Status.RESOURCE_EXHAUSTED, "too many open statements: close some, or wait")
        if sum(each.size for their in self._open.values() for each in their.values()) + size > MAX_SQL_BYTES_OF_ALL:
            raise StatementRefused(Status.RESOURCE_EXHAUSTED, "the gateway has too many open statements: try again")
        handle = secrets.token_bytes(_HANDLE_BYTES)
        until = self._clock() + (PREPARED_SECONDS if prepared else TICKET_SECONDS)
        self._open.setdefault(principal, {})[handle] = _Statement(sql, size, prepared, schema, until)
        return handle

    def _found(self, principal: str, handle: bytes, *, prepared: bool) -> _Statement:
        found = self._open.get(principal, {}).get(handle)
        if found is None or found.prepared is not prepared or found.until <= self._clock():
            what = "prepared statement" if prepared else "ticket"
            raise StatementRefused(Status.NOT_FOUND, f"no such {what}: it was used, expired, or is not yours")
        return found

    def _remove(self, principal: str, handle: bytes) -> None:
        mine = self._open[principal]
        del mine[handle]
        if not mine:
            del self._open[principal]

    def _expire(self) -> None:
        now = self._clock()
        ended = [
            (who, handle) for who, mine in self._open.items() for handle, each in mine.items() if each.until <= now
        ]
        for who, handle in ended:
            self._remove(who, handle)


def check_length(sql: str) -> None:
    """Raise :class:`StatementRefused` for SQL that is empty or too long."""
    if not sql.strip():
        raise StatementRefused(Status.INVALID_ARGUMENT, "an empty statement")
    if len(sql.encode()) > MAX_SQL_BYTES:
        raise StatementRefused(Status.INVALID_ARGUMENT, f"SQL of more than {MAX_SQL_BYTES} bytes")
