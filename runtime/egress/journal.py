"""The journal of connections that leave sandboxes. The TaskManager keeps each row until the audit log has recorded it.

Brokers write to it from any thread and never block. When the journal is full, further rows are only counted as dropped.
Equal refusals share one row with a count, so a job that tries one port a million times makes one row per second.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from sluice.core import (
    MAX_EGRESS_ROWS,
    MAX_EGRESS_TARGETS,
    EgressReport,
    EgressRow,
    EgressTarget,
    EgressVerdict,
    SluiceError,
)
from sluice.runtime.egress.open_connection import End, Measure, OpenConnection, unmeasured
from sluice.runtime.egress.unsent_rows import UnsentRows

MAX_KEPT_ROWS = 10_000
"""Maximum number of rows that wait to be recorded. Further rows are counted as dropped."""
MAX_OPEN = 20_000
"""Maximum number of open connections of all sandboxes of one process."""
ALIKE_SECONDS = 1.0
"""Equal refusals within this time share one row, which is reported when the time is over."""
REPORT_AGAIN_SECONDS = 5.0
"""How often the byte counts of an open connection are reported again."""
_MAX_TEXT = 256
_MAX_ADDRESS = 64
_MAX_WORD = 32

Clock = Callable[[], float]


class TooManyDestinations(SluiceError):
    """The journal has no room for another open connection, so the connection must not be opened."""


@dataclass(frozen=True, slots=True)
class BoxId:
    """Identifies a sandbox: its job, attempt, and process (``driver``, ``executor/3``)."""

    job_id: str
    attempt: int
    process: str


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of a connection: the ``host`` name that the job asked for, or else the IP ``address``.

    ``protocol`` is as in :class:`~sluice.core.EgressRow`. ``port`` is 0 for a protocol without ports.
    """

    host: str
    address: str
    port: int
    protocol: str = "tcp"


@dataclass(slots=True)
class _Kept:
    """A row that waits to be recorded. Its count may still grow until ``ready_at``."""

    row: EgressRow
    ready_at: float


class EgressJournal:
    """The connections that the sandboxes of this process tried to open, and those that are open. No method blocks.

    Args:
        clock: wall clock, in epoch seconds.
        monotonic: monotonic clock, in seconds.
        unsent: stores each row on disk until it is recorded, in case this process is killed.

    Attributes:
        wake: called in any thread when there is something new to report.
    """

    def __init__(
        self, *, clock: Clock = time.time, monotonic: Clock = time.monotonic, unsent: UnsentRows | None = None
    ) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._unsent = unsent
        self.wake: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self._rows: dict[str, _Kept] = {}
        self._alike: dict[tuple[BoxId, Destination, str], _Kept] = {}
        self._open: dict[str, OpenConnection] = {}
        self._targets: Counter[EgressTarget] = Counter()
        self._of_jobs: Counter[str] = Counter()
        self._dropped = 0

    def opened(
        self, box: BoxId, to: Destination, *, end: End, measure: Measure = unmeasured, would_refuse: str = ""
    ) -> OpenConnection:
        """Record a connection that is about to be opened.

        Args:
            box: the sandbox that opens it.
            to: its destination.
            end: ends the connection.
            measure: returns its byte counts until it is closed.
            would_refuse: why the policy would refuse it, if the policy were enforced and not only recorded.

        Raises:
            TooManyDestinations: the journal is full; the connection must not be opened.
        """
        verdict = EgressVerdict.WOULD_REFUSE if would_refuse else EgressVerdict.ALLOWED
        row = msgspec.structs.replace(self._row(box, to, verdict, would_refuse), open=True)
        connection = OpenConnection(self, row, end, measure)
        with self._lock:
            room = connection.target in self._targets or len(self._targets) < MAX_EGRESS_TARGETS
            if len(self._open) >= MAX_OPEN or not room:
                raise TooManyDestinations(
                    f"{len(self._open)} connections to {len(self._targets)} destinations are open",
                    "close some before others are made",
                )
            self._open[row.id] = connection
            self._targets[connection.target] += 1
            self._of_jobs[row.job_id] += 1
            self._write_down(row)
        self.wake()
        return connection

    def refused(self, box: BoxId, to: Destination, reason: str, *, count: int = 1) -> None:
        """Record a refused connection, or ``count`` equal packets or lookups that were refused."""
        key, now = (box, to, reason), self._monotonic()
        with self._lock:
            alike = self._alike.get(key)
            if alike is not None and now < alike.ready_at:
                alike.row = msgspec.structs.replace(alike.row, count=alike.row.count + count)
                return
            row = msgspec.structs.replace(self._row(box, to, EgressVerdict.REFUSED, reason), count=count)
            kept = self._keep(row, now + ALIKE_SECONDS)
            if kept is None:
                return
            if len(self._alike) >= MAX_KEPT_ROWS:
                self._alike = {each: one for each, one in self._alike.items() if now < one.ready_at}
            self._alike[key] = kept
        self.wake()

    def close(self, connection: OpenConnection, reason: str, *, refused: bool) -> None:
        """See :meth:`OpenConnection.closed`."""
        row = connection.measured(self._clock())
        verdict = EgressVerdict.REFUSED if refused else row.verdict
        row = msgspec.structs.replace(row, open=False, verdict=verdict, reason=_cut(reason) or row.reason)
        with self._lock:
            if self._open.pop(row.id, None) is None:
                return
            self._targets[connection.target] -= 1
            self._targets += Counter()  # drops the targets with a count of 0
            self._of_jobs[row.job_id] -= 1
            self._of_jobs += Counter()
            self._keep(row, self._monotonic())
        self.wake()

    # --- for the reporter --------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether there is nothing to report and no open connection."""
        with self._lock:
            return not self._open and not self._rows and not self._dropped

    def open_of(self, job_id: str) -> int:
        """The number of open connections of a job."""
        with self._lock:
            return self._of_jobs[job_id]

    def restore(self, rows: Iterable[EgressRow]) -> None:
        """Add rows that an earlier process of this name left."""
        with self._lock:
            for row in rows:
                self._keep(row, self._monotonic())
        self.wake()

    def left(self) -> tuple[EgressRow, ...]:
        """The rows that are not recorded yet, with the current state of open connections."""
        with self._lock:
            return self._left()

    def report(self, *, last: bool = False) -> EgressReport:
        """The next report: rows that are not recorded yet, and every destination with an open connection.

        With ``last``, it includes rows whose count could still grow.
        """
        now, moment = self._clock(), self._monotonic()
        rows: list[EgressRow] = []
        with self._lock:
            for kept in self._rows.values():
                if len(rows) < MAX_EGRESS_ROWS and (last or moment >= kept.ready_at):
                    kept.ready_at = min(kept.ready_at, moment)
                    rows.append(kept.row)
            for each in self._open.values():
                due = each.reported_at is None or moment - each.reported_at >= REPORT_AGAIN_SECONDS
                if len(rows) < MAX_EGRESS_ROWS and due:
                    each.reported_at = moment
                    rows.append(each.measured(now))
            return EgressReport(rows=tuple(rows), targets=tuple(self._targets), dropped=self._dropped)

    def settle(self, report: EgressReport) -> None:
        """Forget the rows of ``report``, which the audit log has recorded."""
        with self._lock:
            self._dropped -= report.dropped
            for row in report.rows:
                if not row.open:
                    self._rows.pop(row.id, None)
            if self._unsent is not None and (self._unsent.is_long or not (self._rows or self._open)):
                self._unsent.replace(self._left())

    def end_targets(self, targets: frozenset[EgressTarget], reason: str) -> int:
        """End every open connection to one of ``targets`` and return their number."""
        found = [each for each in self._opened() if each.target in targets]
        for each in found:
            each.end(reason)
        return len(found)

    def end_all(self, reason: str) -> int:
        """End every open connection and return their number."""
        found = self._opened()
        for each in found:
            each.end(reason)
        return len(found)

    # --- the rest ------------------------------------------------------------------------------------------

    def _opened(self) -> list[OpenConnection]:
        with self._lock:
            return list(self._open.values())

    def _keep(self, row: EgressRow, ready_at: float) -> _Kept | None:
        if len(self._rows) >= MAX_KEPT_ROWS:
            self._dropped += row.count
            return None
        kept = self._rows[row.id] = _Kept(row, ready_at)
        self._write_down(row)
        return kept

    def _write_down(self, row: EgressRow) -> None:
        if self._unsent is not None:
            self._unsent.add(row)

    def _left(self) -> tuple[EgressRow, ...]:
        now = self._clock()
        still = (msgspec.structs.replace(each.measured(now), open=False) for each in self._open.values())
        return (*(kept.row for kept in self._rows.values()), *still)

    def _row(self, box: BoxId, to: Destination, verdict: EgressVerdict, reason: str) -> EgressRow:
        return EgressRow(
            id=secrets.token_hex(16),
            job_id=box.job_id,
            attempt=box.attempt,
            process=box.process[:_MAX_WORD],
            protocol=to.protocol[:_MAX_WORD],
            host=_cut(to.host),
            address=to.address[:_MAX_ADDRESS],
            port=to.port,
            verdict=verdict,
            reason=_cut(reason),
            opened_at=self._clock(),
        )


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…"
