"""What a job leaves behind from attempt to attempt: attempts, exceptions, executors. Bounded; no I/O.

A JobMaster masters one attempt. It begins with the log of the attempts before, and hands on its own.
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
"""Latest attempts of a job that are remembered."""
MAX_EXECUTORS_KEPT = 100
"""Latest executors of earlier attempts that are remembered."""
MAX_PROCESSES_KEPT = 300
"""Latest processes whose certificates are remembered."""
MAX_SERIALS_KEPT = 8
"""Latest certificates of one process."""
LOST = "LOST"
"""Outcome of an attempt whose JobManager did not live to see its end, or whose driver's TaskManager was lost."""


@dataclass
class HistoryLog:
    """The past of one job, as its attempts add to it. Times are epoch milliseconds.

    Attributes:
        attempts: the latest, the present one last.
        exceptions: see :mod:`sluice.runtime.jobmanager.exceptions`.
        executors: of earlier attempts.
        processes: the certificates of drivers and executors.
        processes_dropped: how many earlier ones are not among them.
    """

    attempts: tuple[AttemptView, ...] = ()
    exceptions: tuple[ExceptionEntry, ...] = ()
    executors: tuple[ExecutorView, ...] = ()
    processes: tuple[ProcessIdentity, ...] = ()
    processes_dropped: int = 0

    @classmethod
    def of(cls, record: JobRecord) -> HistoryLog:
        """What the attempts before have left."""
        return cls(
            record.detail.attempts,
            record.exceptions,
            record.detail.executors[-MAX_EXECUTORS_KEPT:],
            record.processes,
            record.processes_dropped,
        )

    @property
    def next_executor(self) -> int:
        """The first number that no executor of the job has had: their logs have their numbers in their names."""
        return max((each.id for each in self.executors), default=0) + 1

    @property
    def taskmanagers_lost(self) -> int:
        """How many attempts were lost with the TaskManager on which their driver ran."""
        return sum(each.outcome == LOST and bool(each.taskmanager) for each in self.attempts)

    def begin(self, number: int, now: int) -> None:
        """Attempt ``number`` begins."""
        self.attempts = (*self.attempts, AttemptView(number=number, started_at=now))[-MAX_ATTEMPTS_KEPT:]

    def placed(self, taskmanager: str) -> None:
        """The driver of the present attempt runs on ``taskmanager``."""
        if self.attempts:
            present = msgspec.structs.replace(self.attempts[-1], taskmanager=taskmanager)
            self.attempts = (*self.attempts[:-1], present)

    def certified(
        self, identity: str, leaf: x509.Certificate, *, taskmanager: str, isolation: str, egress: str
    ) -> None:
        """A process of the present attempt has got its certificate, or the next one."""
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
        """The present attempt is over."""
        if self.attempts and not self.attempts[-1].outcome:
            ended = msgspec.structs.replace(
                self.attempts[-1], ended_at=now, outcome=outcome, error=error[:MAX_ERROR_CHARACTERS]
            )
            self.attempts = (*self.attempts[:-1], ended)

    def lost(self, number: int, now: int, error: str) -> None:
        """Attempt ``number`` went with its JobManager, unless its end is known; nobody saw when."""
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
        """Something went wrong in the present attempt."""
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
