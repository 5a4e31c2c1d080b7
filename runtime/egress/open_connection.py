"""One open connection that leaves a sandbox."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from sluice.core import EgressRow, EgressTarget

_LOG = logging.getLogger(__name__)

End = Callable[[str], None]
"""Ends a connection at once, with a reason. Called in any thread; must not block."""
Measure = Callable[[], tuple[int, int]]
"""Returns the bytes that the job has sent and received so far. Called in any thread; must not block."""


def unmeasured() -> tuple[int, int]:
    """The :data:`Measure` of a connection whose bytes cannot be counted."""
    return 0, 0


class Closing(Protocol):
    """Receives the end of a connection."""

    def close(self, connection: OpenConnection, reason: str, *, refused: bool) -> None:
        """Record that the connection has closed."""
        ...


class OpenConnection:
    """An open connection. Its maker calls :meth:`closed` when it is closed.

    Attributes:
        row: the journal row as it was when the connection was opened.
        target: the destination that the policy decides about.
        reported_at: when it was last reported, by a monotonic clock; None if it was not reported yet.
        ending: why it is being ended; empty if it is not.
    """

    def __init__(self, journal: Closing, row: EgressRow, end: End, measure: Measure) -> None:
        self._journal = journal
        self._end = end
        self._measure = measure
        self.row = row
        self.target = EgressTarget(job_id=row.job_id, host=row.host or row.address, port=row.port)
        self.reported_at: float | None = None
        self.ending = ""

    def closed(self, reason: str = "", *, refused: bool = False) -> None:
        """Record that it has closed. ``refused``: a later hop refused it. Only the first call has an effect."""
        self._journal.close(self, self.ending or reason, refused=refused)

    def end(self, reason: str) -> None:
        """Ask its maker to end it. The maker then calls :meth:`closed`."""
        if self.ending:
            return
        self.ending = reason
        try:
            self._end(reason)
        except Exception:  # noqa: BLE001  any broker's error: the other connections must still be ended
            _LOG.exception("a connection of job %s to %s cannot be ended", self.row.job_id, self.row.target)
            self.ending = ""  # so that it is tried again

    def measured(self, now: float) -> EgressRow:
        """Its row with byte counts and duration at ``now`` (epoch seconds)."""
        up, down = 0, 0
        with contextlib.suppress(OSError):  # the socket is gone
            up, down = self._measure()
        took = max(0, int((now - self.row.opened_at) * 1000))
        return msgspec.structs.replace(self.row, bytes_up=max(0, up), bytes_down=max(0, down), duration_ms=took)
