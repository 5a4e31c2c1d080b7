"""What a worker has beside the memory for data: for what it knows of them, for connections, and its open files.

Peers decide how many shuffles, maps, segments and requests there are, so each of them is charged to its job before it
is made. An eighth is set aside so that each job gets a little, however many there are. Of the rest a job may use three
times as much as it leaves free: alone about two thirds of all, beside others less.
"""

from __future__ import annotations

import threading
from typing import Self

from sluice.runtime.shuffle.data_plane import QuotaExceeded

SET_ASIDE = 8
"""One part in so many is for jobs that have little."""
LITTLE = 128
"""A job that has less than one part in so many has little."""
SHARE_OF_FREE = 3
"""Other jobs may use so many times as much as is left free beside what is set aside."""

# What things take of memory at most, in bytes: measured, and rounded up.
SHUFFLE_BYTES = 8 << 10
"""A shuffle, and the kernel's part of its files."""
SHUFFLE_FILES = 2
MAP_BYTES = 512
"""An attempt of a map."""
ANNOUNCED_BYTES = 64
"""That a map is announced, beside :data:`MAP_BYTES`."""
SHARE_BYTES = 1 << 10
"""A share of a shuffle: how far it is, or why it never will be complete."""
FRAME_BYTES = 1 << 10
"""A frame without its data and its table, and a run that has nothing else."""
ROW_BYTES = 16
"""A segment's part of the index: of a frame's, until it is written, and of a run's, if no other has its partition."""
RUN_MAP_BYTES = 128
"""A map's part of the index of a run."""
CONNECTION_BYTES = 256 << 10
"""A connection: its thread, its TLS, its buffers for what is received, and the table of a usual frame."""
PUSHED_ROW_BYTES = 256
"""A row of the table of a frame that is being received."""
REQUEST_BYTES = 4 << 10
"""A request for data."""
PLANNED_ROW_BYTES = 96
"""A segment of the part of a read that is being planned or sent."""
LOCATED_ROW_BYTES = 256
"""A segment of those that are sent next, beside :data:`PLANNED_ROW_BYTES`."""


class NoRoomYet(QuotaExceeded):
    """There is no room now, and will be when others have given some back."""


class Budget:
    """So much of something for all jobs of a worker; safe for use by many threads.

    Args:
        name: what it is, as messages say it.
        capacity: for all jobs together; what :meth:`Holding.charge` adds may exceed it.
        remedy: what messages advise.
    """

    def __init__(self, name: str, capacity: int, remedy: str = "") -> None:
        self.name = name
        self.capacity = capacity
        self.remedy = remedy
        self.used = 0
        self.changed = threading.Condition()

    def fits(self, used: int, more: int) -> bool:
        """Whether a job that uses ``used`` may use ``more``; for use under :attr:`changed`."""
        if used + more <= self.capacity // LITTLE:
            return self.used + more <= self.capacity
        return used + more <= self._most(self.used + more)

    def is_possible(self, size: int) -> bool:
        """Whether a job may use ``size`` when nobody uses anything."""
        return size <= self._most(size)

    def _most(self, used: int) -> int:
        return SHARE_OF_FREE * (self.capacity - self.capacity // SET_ASIDE - used)

    def wait(self, seconds: float) -> None:
        """Until something was given back, or the time is over."""
        with self.changed:
            self.changed.wait(seconds)


class Account:
    """What one job uses of a budget, and what it stores elsewhere; both count towards its quota.

    Args:
        budget: shared with other jobs.
        job_id: whose it is.
        quota: most that the job may use and store; 0: no limit.
    """

    def __init__(self, budget: Budget, job_id: str = "", quota: int = 0) -> None:
        self.budget = budget
        self.job_id = job_id
        self.quota = quota
        self.used = 0
        self.stored = 0

    def check_quota(self, more: int) -> None:
        """Raises :class:`QuotaExceeded` when the job would have more than its quota with ``more``."""
        if self.quota and self.used + self.stored + more > self.quota:
            raise QuotaExceeded(f"job {self.job_id} would have more than {self.quota} bytes on this worker")

    def holding(self) -> Holding:
        """A part of it that is given back as a whole in the end."""
        return Holding(self)


class Holding:
    """What one shuffle, connection or request uses of its job's account; a context manager that gives it back."""

    __slots__ = ("_account", "_closed", "_stored", "held")

    def __init__(self, account: Account) -> None:
        self._account = account
        self._stored = 0
        self._closed = False
        self.held = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take(self, size: int, store: int = 0) -> None:
        """Use ``size`` more, and store ``store`` more.

        Raises:
            QuotaExceeded: that is more than the job's quota, or than there ever is.
            NoRoomYet: the job uses its part of the budget.
        """
        account, budget = self._account, self._account.budget
        with budget.changed:
            account.check_quota(size + store)
            if not budget.fits(account.used, size):
                raise (NoRoomYet if budget.is_possible(size) else QuotaExceeded)(
                    f"job {account.job_id} needs {size} of this worker's {budget.name} and uses {account.used}, "
                    f"and {max(0, budget.capacity - budget.used)} of {budget.capacity} are free",
                    budget.remedy,
                )
            self._add(size)
            self._store(store)

    def charge(self, size: int) -> None:
        """Account for ``size`` more (less, when negative) that is in use already, whatever the limits."""
        with self._account.budget.changed:
            self._add(size)

    def store(self, size: int) -> None:
        """Count ``size`` more (less, when negative) that is stored elsewhere."""
        with self._account.budget.changed:
            self._store(size)

    def close(self) -> None:
        """Give all of it back; what comes later is not counted."""
        with self._account.budget.changed:
            self._add(-self.held)
            self._store(-self._stored)
            self._closed = True

    def _store(self, size: int) -> None:
        if not self._closed:
            self._stored += size
            self._account.stored += size

    def _add(self, size: int) -> None:
        if not self._closed:
            budget = self._account.budget
            self.held += size
            self._account.used += size
            budget.used += size
            if size < 0:
                budget.changed.notify_all()


def unlimited() -> Holding:
    """Of a budget that is never used up."""
    return Account(Budget("memory", 1 << 62)).holding()
