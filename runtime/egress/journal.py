"""The journal of connections out of boxes, kept by the process beside them until the audit log has it.

Brokers write into it from any thread, and never wait: what there is no room for is counted, not kept. Refusals that
are alike become one row with a count, so that a job which tries one port a million times makes one row a second.
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
"""Rows that wait to be recorded; later ones are counted as dropped."""
MAX_OPEN = 20_000
"""Open connections of all boxes beside one process."""
ALIKE_SECONDS = 1.0
"""Refusals that are alike within this time are one row, which is told of when the time is over."""
TELL_AGAIN_SECONDS = 5.0
"""How often the bytes of an open connection are told again."""
_MAX_TEXT = 256
_MAX_ADDRESS = 64
_MAX_WORD = 32

Clock = Callable[[], float]


class TooManyDestinations(SluiceError):
    """There is no room for another open connection in the journal: it must not be made."""


@dataclass(frozen=True, slots=True)
class BoxId:
    """A box: its job, attempt, and process (``driver``, ``executor/3``)."""

    job_id: str
    attempt: int
    process: str


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a job wants to: the ``host`` name it asked for, or else the IP ``address``.

    ``protocol`` is as in :class:`~sluice.core.EgressRow`; ``port`` 0: it has none.
    """

    host: str
    address: str
    port: int
    protocol: str = "tcp"


@dataclass(slots=True)
class _Kept:
    """A row that waits to be recorded; it may still grow until ``ready_at``."""

    row: EgressRow
    ready_at: float


class EgressJournal:
    """What boxes beside this process tried, and which connections are open. Every method returns at once.

    Args:
        clock: epoch seconds.
        monotonic: seconds that never go back.
        unsent: has each row until it is recorded, should this process be killed.

    Attributes:
        wake: called in whatever thread when there is something new to report.
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
        """A connection is about to be made.

        Args:
            box: whose.
            to: where to.
            end: ends it.
            measure: counts its bytes, until it is closed.
            would_refuse: why it would be refused, if connections were not let through only to be recorded.

        Raises:
            TooManyDestinations: it must not be made.
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
        """A connection, or ``count`` packets or look-ups that are alike, did not get out."""
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
            self._targets += Counter()  # without those to which there are none
            self._of_jobs[row.job_id] -= 1
            self._of_jobs += Counter()
            self._keep(row, self._monotonic())
        self.wake()

    # --- for the reporter --------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether there is nothing to tell and nothing open."""
        with self._lock:
            return not self._open and not self._rows and not self._dropped

    def open_of(self, job_id: str) -> int:
        """How many connections of a job are open."""
        with self._lock:
            return self._of_jobs[job_id]

    def restore(self, rows: Iterable[EgressRow]) -> None:
        """Rows of an earlier process of this name."""
        with self._lock:
            for row in rows:
                self._keep(row, self._monotonic())
        self.wake()

    def left(self) -> tuple[EgressRow, ...]:
        """Rows that are not recorded yet; of connections that are open as they are now."""
        with self._lock:
            return self._left()

    def report(self, *, last: bool = False) -> EgressReport:
        """What is to be told now: rows that nobody has recorded yet, and every destination that is open.

        With ``last`` rows are told of that others could still be added to.
        """
        now, moment = self._clock(), self._monotonic()
        rows: list[EgressRow] = []
        with self._lock:
            for kept in self._rows.values():
                if len(rows) < MAX_EGRESS_ROWS and (last or moment >= kept.ready_at):
                    kept.ready_at = min(kept.ready_at, moment)
                    rows.append(kept.row)
            for each in self._open.values():
                due = each.told_at is None or moment - each.told_at >= TELL_AGAIN_SECONDS
                if len(rows) < MAX_EGRESS_ROWS and due:
                    each.told_at = moment
                    rows.append(each.measured(now))
            return EgressReport(rows=tuple(rows), targets=tuple(self._targets), dropped=self._dropped)

    def settle(self, report: EgressReport) -> None:
        """The rows of ``report`` are recorded."""
        with self._lock:
            self._dropped -= report.dropped
            for row in report.rows:
                if not row.open:
                    self._rows.pop(row.id, None)
            if self._unsent is not None and (self._unsent.is_long or not (self._rows or self._open)):
                self._unsent.replace(self._left())

    def end_targets(self, targets: frozenset[EgressTarget], reason: str) -> int:
        """End every open connection to one of ``targets``; returns how many."""
        found = [each for each in self._opened() if each.target in targets]
        for each in found:
            each.end(reason)
        return len(found)

    def end_all(self, reason: str) -> int:
        """End every open connection; returns how many."""
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
