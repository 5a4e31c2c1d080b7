"""The latest connections of each job to the outside, to be shown; what lasts is the audit log of the gateway.

Rows come at least once: one that is told again takes the place of the earlier one and is counted once.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from prometheus_client import Counter, Gauge

from sluice.core import REGISTRY, TRACING, EgressJob, EgressRow, EgressVerdict

MAX_JOB_ROWS = 1000
"""Rows of one job; the latest are kept."""
MAX_JOBS = 500
"""Jobs; those that told of nothing for longest are forgotten first."""
MAX_FORGOTTEN = 10_000
"""Jobs of which it is remembered that their rows were forgotten; with more of them any may have been."""

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
    """What a JobManager knows; for the event loop alone."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """``clock``: epoch seconds."""
        self.since = clock()
        """Since when it knows."""
        self._clock = clock
        self._jobs: OrderedDict[str, OrderedDict[str, EgressRow]] = OrderedDict()
        self._left_out: dict[str, int] = {}
        self._open: dict[str, int] = {}
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._too_many_forgotten = False

    def lead(self) -> None:
        """This JobManager leads from now on: what went on meanwhile another one was told."""
        self.since = self._clock()

    def note(self, rows: Iterable[EgressRow], traces: dict[str, str]) -> None:
        """Rows that somebody told of; ``traces`` has the trace of jobs that have one."""
        for row in rows:
            self._note(row, traces.get(row.job_id, ""))

    def note_open(self, reporter: str, targets: int) -> None:
        """So many destinations are open beside ``reporter``."""
        self._open.pop(reporter, None)
        if targets:
            self._open[reporter] = targets
        OPEN.set(sum(self._open.values()))

    def note_lost(self, count: int) -> None:
        """So many rows were dropped before they came here."""
        DROPPED.inc(count)

    def of(self, job_id: str) -> tuple[EgressRow, ...]:
        """The rows of a job, the oldest first."""
        return tuple(sorted(self._jobs.get(job_id, {}).values(), key=lambda row: row.opened_at))

    def left_out(self, job_id: str) -> int:
        """How many earlier rows of it are not kept."""
        return self._left_out.get(job_id, 0)

    def may_have_forgotten(self, job_id: str) -> bool:
        """Whether rows of it may have been here and are not any more."""
        return self.left_out(job_id) > 0 or job_id in self._forgotten or self._too_many_forgotten

    def all(self) -> tuple[EgressRow, ...]:
        """The rows of all jobs."""
        return tuple(row for rows in self._jobs.values() for row in rows.values())

    def _note(self, row: EgressRow, trace: str) -> None:
        kept = self._jobs.setdefault(row.job_id, OrderedDict())
        self._jobs.move_to_end(row.job_id)
        before = kept.get(row.id)
        if before is not None and not before.open:
            return  # told again
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
    """A span of the connection, below the job's."""
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
    """A job that nobody knows here: it belongs to nobody, and no rule of a policy is for it."""
    return EgressJob(id=job_id, name="", owner="")
