"""One connection out of a box that was made and is not over."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

import msgspec

from sluice.core import EgressRow, EgressTarget

_LOG = logging.getLogger(__name__)

End = Callable[[str], None]
"""Ends a connection at once, for this reason; called in any thread, and must not wait."""
Measure = Callable[[], tuple[int, int]]
"""Bytes that the job has sent and got so far; called in any thread, and must not wait."""


def unmeasured() -> tuple[int, int]:
    """For whoever cannot count."""
    return 0, 0


class Closing(Protocol):
    """Who is told of the end of a connection."""

    def close(self, connection: OpenConnection, reason: str, *, refused: bool) -> None:
        """It is over."""
        ...


class OpenConnection:
    """Whoever made the connection says when it is over.

    Attributes:
        row: as it was when the connection was made.
        target: what the policy is asked about.
        told_at: when it was last told of, by a clock that never goes back; None: not yet.
        ending: why it is being ended; empty: it is not.
    """

    def __init__(self, journal: Closing, row: EgressRow, end: End, measure: Measure) -> None:
        self._journal = journal
        self._end = end
        self._measure = measure
        self.row = row
        self.target = EgressTarget(job_id=row.job_id, host=row.host or row.address, port=row.port)
        self.told_at: float | None = None
        self.ending = ""

    def closed(self, reason: str = "", *, refused: bool = False) -> None:
        """It is over; ``refused``: somebody farther out did not let it through. Only the first call counts."""
        self._journal.close(self, self.ending or reason, refused=refused)

    def end(self, reason: str) -> None:
        """Have it ended; its maker then says that it is over."""
        if self.ending:
            return
        self.ending = reason
        try:
            self._end(reason)
        except Exception:  # noqa: BLE001  of whichever broker: the others must end all the same
            _LOG.exception("a connection of job %s to %s cannot be ended", self.row.job_id, self.row.target)
            self.ending = ""  # so that it is tried again

    def measured(self, now: float) -> EgressRow:
        """Its row as it is at ``now`` (epoch seconds)."""
        up, down = 0, 0
        with contextlib.suppress(OSError):  # the socket is gone
            up, down = self._measure()
        took = max(0, int((now - self.row.opened_at) * 1000))
        return msgspec.structs.replace(self.row, bytes_up=max(0, up), bytes_down=max(0, down), duration_ms=took)
