"""The latest outgoing connections of each job, in memory, for display. The gateway's audit log is the durable record.

Rows arrive at least once. A repeated row replaces the earlier one, and counts once.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from prometheus_client import Counter, Gauge

from sluice.core import REGISTRY, TRACING, EgressJob, EgressRow, EgressVerdict

MAX_JOB_ROWS = 1000
"""Most rows of one job; the latest are kept."""
MAX_JOBS = 500
"""Most jobs; those with no report for the longest time are forgotten first."""
MAX_FORGOTTEN = 10_000
"""Most forgotten jobs whose ids are remembered; beyond that, any job may have been forgotten."""

CONNECTIONS = Counter(
    "sluice_egress_connections_total",
    "Connections of jobs to the outside that have ended or were refused, by verdict.",
    ["verdict"],
    registry=REGISTRY,
)
BYTES = Counter(
    "sluice_egress_bytes_total",
    "Bytes of ended connections of jobs to the outside; up: sent by the job.",
    ["direction"],
    registry=REGISTRY,
)
OPEN = Gauge("sluice_egress_open", "Destinations to which jobs have open connections.", registry=REGISTRY)
DROPPED = Counter(
    "sluice_egress_rows_dropped_total",
    "Rows about connections to the outside that were lost because too many waited.",
    registry=REGISTRY,
)


class EgressLedger:
    """The rows that this JobManager knows. Not thread-safe: for use on the event loop only."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock``: epoch seconds."""
        self.since = clock()
        """The time from which rows are known, in epoch seconds."""
        self._clock = clock
        self._jobs: OrderedDict[str, OrderedDict[str, EgressRow]] = OrderedDict()
        self._left_out: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._too_many_forgotten = False

    def began_leading(self) -> None:
        """Note that this JobManager now leads: earlier reports may have gone to another leader."""
        self.since = self._clock()

    def note(self, rows: Iterable[EgressRow], traces: dict[str, str]) -> None:
        """Add reported rows; ``traces`` has the trace of each job that has one."""
        for row in rows:
            self._note(row, traces.get(row.job_id, ""))

    def note_open(self, reporter: str, targets: int) -> None:
        """Note how many destinations have open connections at ``reporter``."""
        self._open.pop(reporter, None)
        if targets:
            self._open[reporter] = targets
        OPEN.set(sum(self._open.values()))

    def forget_open(self) -> None:
        """Forget which connections are open."""
        self._open.clear()
        OPEN.set(0)

    def note_lost(self, count: int) -> None:
        """Count rows that were dropped before they were reported."""
        DROPPED.inc(count)

    def rows_of(self, job_id: str) -> tuple[EgressRow, ...]:
        """The rows of a job, the oldest first."""
        return tuple(sorted(self._jobs.get(job_id, {}).values(), key=lambda row: row.opened_at))

    def left_out(self, job_id: str) -> int:
        """How many earlier rows of a job are not kept."""
        return self._left_out.get(job_id, 0)

    def may_have_forgotten(self, job_id: str) -> bool:
        """Whether rows of the job may have been known and forgotten."""
        return self.left_out(job_id) > 0 or job_id in self._forgotten or self._too_many_forgotten

    def all_rows(self) -> tuple[EgressRow, ...]:
        """The rows of all jobs."""
        return tuple(row for rows in self._jobs.values() for row in rows.values())

    def _note(self, row: EgressRow, trace: str) -> None:
        kept = self._jobs.setdefault(row.job_id, OrderedDict())
        self._jobs.move_to_end(row.job_id)
        before = kept.get(row.id)
        if before is not None and not before.open:
            return  # a repeated row
        kept[row.id] = row
        if not row.open:
            _count(row)
            _trace(row, trace)
        while len(kept) > MAX_JOB_ROWS:
            kept.popitem(last=False)
            self._left_out[row.job_id] = self._left_out.get(row.job_id, 0) + 1
        while len(self._jobs) > MAX_JOBS:
            job_id, _ = self._jobs.popitem(last=False)
            self._left_out.pop(job_id, None)
            self._forgotten[job_id] = None
        if len(self._forgotten) > MAX_FORGOTTEN:
            self._forgotten.popitem(last=False)
            self._too_many_forgotten = True


def _count(row: EgressRow) -> None:
    CONNECTIONS.labels(row.verdict.value).inc(row.count)
    BYTES.labels("up").inc(row.bytes_up)
    BYTES.labels("down").inc(row.bytes_down)


def _trace(row: EgressRow, trace: str) -> None:
    """Emit a span of the connection, as a child of the job's trace."""
    TRACING.past(
        "egress connection",
        trace,
        row.opened_at,
        row.opened_at + row.duration_ms / 1000,
        error=row.reason if row.verdict is EgressVerdict.REFUSED else "",
        job=row.job_id,
        attempt=row.attempt,
        process=row.process,
        target=row.target,
        protocol=row.protocol,
        verdict=row.verdict.value,
        bytes_up=row.bytes_up,
        bytes_down=row.bytes_down,
        count=row.count,
    )


def unknown_job(job_id: str) -> EgressJob:
    """A job that this JobManager does not know: it has no owner, and no policy rule applies to it."""
    return EgressJob(id=job_id, name="", owner="")
