"""The budgets of a worker besides the memory for data: memory for metadata and connections, connections, open files.

Peers decide how many shuffles, maps, segments and requests there are, so each of them is charged to its job before it
is created. An eighth of a budget is set aside, so that each job gets a little even if there are many jobs. Of the rest,
a job may use three times as much as it leaves free: about two thirds of the budget if it is alone, less beside others.
"""

from __future__ import annotations

import threading
from typing import Self

from sluice.runtime.shuffle.data_plane import QuotaExceeded

RESERVED_DIVISOR = 8
"""The part that is set aside for jobs that use little is 1 / RESERVED_DIVISOR of the capacity."""
SMALL_USE_DIVISOR = 128
"""A job that uses at most 1 / SMALL_USE_DIVISOR of the capacity uses little."""
SHARE_OF_FREE = 3
"""Any other job may use this many times what is free beside the part that is set aside."""

# The maximum memory of each object in bytes, measured and rounded up.
SHUFFLE_BYTES = 8 << 10
"""A shuffle, including the kernel's memory for its files."""
SHUFFLE_FILES = 2
MAP_BYTES = 512
"""An attempt of a map."""
ANNOUNCED_BYTES = 64
"""An announced map, in addition to :data:`MAP_BYTES`."""
SHARE_BYTES = 1 << 10
"""A share of a shuffle: its progress, or the error that keeps it from being complete."""
READER_BYTES = 256
"""A reader of a share, or the progress of one that left early."""
FRAME_BYTES = 1 << 10
"""A frame without its data and table, or a run without its maps and rows."""
ROW_BYTES = 16
"""An index entry: one per segment of a frame that is not written yet, and one per partition of a run."""
RUN_MAP_BYTES = 128
"""A map in the index of a run."""
CONNECTION_BYTES = 256 << 10
"""A connection: its thread, TLS state and receive buffers, and the table of a frame of the usual size."""
PUSHED_ROW_BYTES = 256
"""A row of the table of a frame that is being received."""
REQUEST_BYTES = 4 << 10
"""A request for data."""
PLANNED_ROW_BYTES = 96
"""A segment of the part of a read that is being planned or sent."""
LOCATED_ROW_BYTES = 256
"""A segment of the window that is sent next, in addition to :data:`PLANNED_ROW_BYTES`."""


class RetryableQuotaExceeded(QuotaExceeded):
    """There is no room now, but there will be when others give some back."""


class Budget:
    """The capacity of one resource, shared by all jobs of a worker; thread-safe.

    Args:
        name: the name of the resource in messages.
        capacity: the limit for all jobs together. :meth:`Holding.charge` may exceed it.
        remedy: the remedy in messages.
    """

    def __init__(self, name: str, capacity: int, remedy: str = "") -> None:
        self.name = name
        self.capacity = capacity
        self.remedy = remedy
        self.used = 0
        self.changed = threading.Condition()

    def fits(self, used: int, more: int) -> bool:
        """Whether a job that uses ``used`` may use ``more``; the caller must hold :attr:`changed`."""
        if used + more <= self.capacity // SMALL_USE_DIVISOR:
            return self.used + more <= self.capacity
        return used + more <= self._most(self.used + more)

    def is_possible(self, size: int) -> bool:
        """Whether a job could use ``size`` if nothing else were in use."""
        return size <= self._most(size)

    def _most(self, used: int) -> int:
        return SHARE_OF_FREE * (self.capacity - self.capacity // RESERVED_DIVISOR - used)

    def wait(self, seconds: float) -> None:
        """Wait until something is given back, at most ``seconds``."""
        with self.changed:
            self.changed.wait(seconds)


class Account:
    """What one job uses of a budget, and what it stores elsewhere; both count towards its quota.

    Args:
        budget: the budget, which is shared with other jobs.
        job_id: the job.
        quota: maximum that the job may use and store; 0: no limit.
    """

    def __init__(self, budget: Budget, job_id: str = "", quota: int = 0) -> None:
        self.budget = budget
        self.job_id = job_id
        self.quota = quota
        self.used = 0
        self.stored = 0

    def check_quota(self, more: int) -> None:
        """Raise :class:`QuotaExceeded` if the job would exceed its quota with ``more``."""
        if self.quota and self.used + self.stored + more > self.quota:
            raise QuotaExceeded(f"job {self.job_id} would have more than {self.quota} bytes on this worker")

    def holding(self) -> Holding:
        """Return a new holding of this account, which is given back as a whole."""
        return Holding(self)


class Holding:
    """What one shuffle, connection or request uses of its job's account. As a context manager, it gives all back."""

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
            QuotaExceeded: this exceeds the job's quota, or the capacity of the budget.
            RetryableQuotaExceeded: the job uses its part of the budget already.
        """
        account, budget = self._account, self._account.budget
        with budget.changed:
            account.check_quota(size + store)
            if not budget.fits(account.used, size):
                raise (RetryableQuotaExceeded if budget.is_possible(size) else QuotaExceeded)(
                    f"job {account.job_id} needs {size} of this worker's {budget.name} and uses {account.used}, "
                    f"and {max(0, budget.capacity - budget.used)} of {budget.capacity} are free",
                    budget.remedy,
                )
            self._add(size)
            self._store(store)

    def charge(self, size: int) -> None:
        """Count ``size`` more (less if negative) that is in use already, without regard to the limits."""
        with self._account.budget.changed:
            self._add(size)

    def store(self, size: int) -> None:
        """Count ``size`` more (less if negative) that is stored elsewhere."""
        with self._account.budget.changed:
            self._store(size)

    def close(self) -> None:
        """Give all of it back. Later changes are not counted."""
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
    """Return a holding of a budget that is practically unlimited."""
    return Account(Budget("memory", 1 << 62)).holding()
