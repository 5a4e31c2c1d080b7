"""Reservations: slots that were taken from jobs, and are kept for the jobs that they were taken for.

Decisions only; the time is passed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sluice.runtime.jobmanager.slots.preemption import Preemption
from sluice.runtime.messages import NO_RESOURCES, SlotProfile

KILL_SECONDS = 30.0
"""Seconds after the grace for a JobMaster to empty a slot; then the slot is freed without it."""
KEEP_SECONDS = 30.0
"""Seconds after that for which the slot is kept for the job that it was taken for."""

MAX_RESERVATIONS = 256
"""About how many slots may be on their way to other jobs; no more are taken while there are so many."""


@dataclass(slots=True)
class Reservation:
    """One slot that a job gets when the slots taken for it are free."""

    preemption: Preemption
    deadline: float
    """When the grace of its victims ends."""

    @property
    def forced_at(self) -> float:
        """When slots that are still held are freed without their JobMaster."""
        return self.deadline + KILL_SECONDS

    @property
    def ends_at(self) -> float:
        """When the reservation expires."""
        return self.forced_at + KEEP_SECONDS


class Reservations:
    """All reservations, in the order in which they were made.

    Args:
        held: whether an allocation is not free yet.
    """

    def __init__(self, held: Callable[[str], bool]) -> None:
        self._held = held
        self._all: list[Reservation] = []
        self._since: dict[str, float] = {}

    def __iter__(self) -> Iterator[Reservation]:
        return iter(tuple(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def add(self, preemption: Preemption, deadline: float) -> None:
        """Slots were taken; they are free by ``deadline`` unless something hangs."""
        self._all.append(Reservation(preemption, deadline))

    def remove(self, reservation: Reservation) -> None:
        """Remove one that is fulfilled, or no longer wanted."""
        self._all.remove(reservation)

    def taskmanager_lost(self, name: str) -> None:
        """Drop the reservations on a TaskManager that is lost."""
        self._all = [each for each in self._all if each.preemption.taskmanager != name]

    def expire(self, now: float) -> None:
        """Forget those that have lasted too long."""
        self._all = [each for each in self._all if now < each.ends_at]

    def overdue(self, now: float) -> list[str]:
        """Allocations that are still held after their deadline."""
        late = (victim for each in self._all if now >= each.forced_at for victim in each.preemption.victims)
        return [victim.allocation_id for victim in late if self._held(victim.allocation_id)]

    @property
    def full(self) -> bool:
        """Whether no more slots may be taken now."""
        return len(self._all) >= MAX_RESERVATIONS

    def by_job(self) -> dict[str, Counter[SlotProfile]]:
        """The slots that jobs are about to get."""
        coming: dict[str, Counter[SlotProfile]] = {}
        for each in self._all:
            coming.setdefault(each.preemption.beneficiary, Counter())[each.preemption.wanted] += 1
        return coming

    def deadline(self, job_id: str) -> float | None:
        """When the first of them will be free at the latest; None when there is none."""
        return min((each.deadline for each in self._all if each.preemption.beneficiary == job_id), default=None)

    def kept(self, taskmanager: str, job_id: str) -> SlotProfile:
        """The capacity of a TaskManager, free now or soon, that is kept for jobs other than this one."""
        kept = NO_RESOURCES
        for each in self._all:
            if each.preemption.taskmanager == taskmanager and each.preemption.beneficiary != job_id:
                kept = kept.plus(self.free_part(each))
        return kept

    def free_part(self, reservation: Reservation) -> SlotProfile:
        """The part of the slot that its victims no longer hold."""
        part = reservation.preemption.wanted
        for victim in reservation.preemption.victims:
            if self._held(victim.allocation_id):
                part = part.less(victim.profile)
        return part

    # --- who waits, since when ------------------------------------------------------------------------------

    def waiting_at_least(self, jobs: Iterable[str], now: float, seconds: float) -> set[str]:
        """Those of ``jobs``, for which slots could be taken now, of which that has been so for at least ``seconds``."""
        self._since = {job_id: self._since.get(job_id, now) for job_id in jobs}
        return {job_id for job_id, since in self._since.items() if now - since >= seconds}

    def waiting_since(self, job_id: str) -> float | None:
        """The time since which slots could be taken for a job; None: they cannot."""
        return self._since.get(job_id)
