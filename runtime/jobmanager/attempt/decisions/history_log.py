"""The history of a job across its attempts: attempts, exceptions, executors. Bounded; no I/O.

A JobMaster runs one attempt. It starts with the history of the earlier attempts, and adds its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from cryptography import x509

from sluice.runtime.jobmanager.exceptions import (
    MAX_ERROR_CHARACTERS,
    MAX_TRACEBACK_CHARACTERS,
    headline,
    last_characters,
    root_cause,
    with_entry,
)
from sluice.runtime.jobmanager.views import AttemptView, ExceptionEntry, ExecutorView, JobRecord, ProcessIdentity

MAX_ATTEMPTS_KEPT = 50
"""Most attempts that are kept, the latest ones."""
MAX_EXECUTORS_KEPT = 100
"""Most executors of earlier attempts that are kept, the latest ones."""
MAX_PROCESSES_KEPT = 300
"""Most processes whose certificates are kept, the latest ones."""
MAX_SERIALS_KEPT = 8
"""Most serial numbers per process that are kept, the latest ones."""
LOST = "LOST"
"""Outcome of an attempt whose JobManager was lost before its end, or whose driver's TaskManager was lost."""


@dataclass
class HistoryLog:
    """The history of one job, to which its attempts add. Times are in epoch milliseconds.

    Attributes:
        attempts: the latest attempts, the current one last.
        exceptions: see :mod:`sluice.runtime.jobmanager.exceptions`.
        executors: the executors of earlier attempts.
        processes: the certificates of drivers and executors.
        processes_dropped: how many earlier processes are not kept.
    """

    attempts: tuple[AttemptView, ...] = ()
    exceptions: tuple[ExceptionEntry, ...] = ()
    executors: tuple[ExecutorView, ...] = ()
    processes: tuple[ProcessIdentity, ...] = ()
    processes_dropped: int = 0

    @classmethod
    def of(cls, record: JobRecord) -> HistoryLog:
        """The history in a job's record."""
        return cls(
            record.detail.attempts,
            record.exceptions,
            record.detail.executors[-MAX_EXECUTORS_KEPT:],
            record.processes,
            record.processes_dropped,
        )

    @property
    def next_executor(self) -> int:
        """The first number that no executor of the job has had; the names of logs contain these numbers."""
        return max((each.id for each in self.executors), default=0) + 1

    @property
    def taskmanagers_lost(self) -> int:
        """How many attempts were lost with the TaskManager on which their driver ran."""
        return sum(each.outcome == LOST and bool(each.taskmanager) for each in self.attempts)

    def begin(self, number: int, now: int) -> None:
        """Add attempt ``number``, which begins."""
        self.attempts = (*self.attempts, AttemptView(number=number, started_at=now))[-MAX_ATTEMPTS_KEPT:]

    def placed(self, taskmanager: str) -> None:
        """Note that the driver of the current attempt runs on ``taskmanager``."""
        if self.attempts:
            present = msgspec.structs.replace(self.attempts[-1], taskmanager=taskmanager)
            self.attempts = (*self.attempts[:-1], present)

    def certified(
        self, identity: str, leaf: x509.Certificate, *, taskmanager: str, isolation: str, egress: str
    ) -> None:
        """Add a certificate, new or renewed, of a process of the current attempt."""
        attempt = self.attempts[-1].number if self.attempts else 1
        known = next(
            (
                each
                for each in self.processes
                if (each.identity, each.attempt, each.taskmanager) == (identity, attempt, taskmanager)
            ),
            None,
        )
        serial, start = f"{leaf.serial_number:x}", int(leaf.not_valid_before_utc.timestamp())
        entry = ProcessIdentity(
            identity=identity,
            attempt=attempt,
            taskmanager=taskmanager,
            isolation=isolation or (known.isolation if known else ""),
            egress=egress or (known.egress if known else ""),
            serials=((*known.serials, serial) if known else (serial,))[-MAX_SERIALS_KEPT:],
            certificates=(known.certificates if known else 0) + 1,
            not_before=known.not_before if known else start,
            not_after=int(leaf.not_valid_after_utc.timestamp()),
        )
        others = tuple(each for each in self.processes if each is not known)
        self.processes_dropped += max(0, len(others) + 1 - MAX_PROCESSES_KEPT)
        self.processes = (*others, entry)[-MAX_PROCESSES_KEPT:]

    def end(self, outcome: str, now: int, error: str = "") -> None:
        """Note the end of the current attempt."""
        if self.attempts and not self.attempts[-1].outcome:
            ended = msgspec.structs.replace(
                self.attempts[-1], ended_at=now, outcome=outcome, error=error[:MAX_ERROR_CHARACTERS]
            )
            self.attempts = (*self.attempts[:-1], ended)

    def lost(self, number: int, now: int, error: str) -> None:
        """Mark attempt ``number`` as lost with its JobManager, unless its end is known. When it ended is unknown."""
        known = [each for each in self.attempts if each.number != number]
        entry = next(
            (each for each in self.attempts if each.number == number), AttemptView(number=number, started_at=now)
        )
        if not entry.outcome:
            entry = msgspec.structs.replace(entry, ended_at=entry.started_at, outcome=LOST, error=error)
        self.attempts = (*known, entry)[-MAX_ATTEMPTS_KEPT:]

    def note(
        self,
        now: int,
        error: str,
        traceback: str = "",
        *,
        task: str = "",
        executor: int | None = None,
        taskmanager: str = "",
        ended_attempt: bool = False,
    ) -> None:
        """Add an exception of the current attempt."""
        self.exceptions = with_entry(
            self.exceptions,
            ExceptionEntry(
                attempt=self.attempts[-1].number if self.attempts else 1,
                time=now,
                error=headline(error, traceback),
                root_cause=root_cause(error, traceback),
                traceback=last_characters(traceback, MAX_TRACEBACK_CHARACTERS),
                task=task,
                executor=executor,
                taskmanager=taskmanager,
                ended_attempt=ended_attempt,
            ),
        )
