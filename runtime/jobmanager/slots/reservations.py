"""Slots that were taken from jobs and are on their way to others: until when, and what is kept for whom.

Decisions only; the time is passed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from sluice.runtime.jobmanager.slots.preemption import Preemption
from sluice.runtime.messages import NO_RESOURCES, SlotProfile

KILL_SECONDS = 30.0
"""How long after the grace a JobMaster may take to end what is in a slot; then the slot is freed without it."""
KEEP_SECONDS = 30.0
"""How long after that the slot is kept for the job for which it was taken."""

MAX_RESERVATIONS = 256
"""Slots that are on their way to other jobs at a time, about: no more are taken until there are fewer."""


@dataclass(slots=True)
class Reservation:
    """One slot that a job gets when those that were taken for it are free."""

    preemption: Preemption
    deadline: float
    """When its victims have had their grace."""

    @property
    def forced_at(self) -> float:
        """When slots that are still held are freed without their JobMaster."""
        return self.deadline + KILL_SECONDS

    @property
    def ends_at(self) -> float:
        """When nothing is kept any more."""
        return self.forced_at + KEEP_SECONDS


class Reservations:
    """All of them, in the order in which they were made.

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
        """It is fulfilled, or nobody wants it any more."""
        self._all.remove(reservation)

    def taskmanager_lost(self, name: str) -> None:
        """What was kept there is gone."""
        self._all = [each for each in self._all if each.preemption.taskmanager != name]

    def expire(self, now: float) -> None:
        """Forget those that have lasted too long."""
        self._all = [each for each in self._all if now < each.ends_at]

    def overdue(self, now: float) -> list[str]:
        """Allocations that are held although their time is over."""
        late = (victim for each in self._all if now >= each.forced_at for victim in each.preemption.victims)
        return [victim.allocation_id for victim in late if self._held(victim.allocation_id)]

    @property
    def full(self) -> bool:
        """Whether nothing more is to be taken now."""
        return len(self._all) >= MAX_RESERVATIONS

    def victims(self, job_id: str) -> set[str]:
        """What was taken from a job and is held still."""
        taken = (victim for each in self._all for victim in each.preemption.victims if victim.job_id == job_id)
        return {victim.allocation_id for victim in taken if self._held(victim.allocation_id)}

    def by_job(self) -> dict[str, Counter[SlotProfile]]:
        """The slots that jobs are about to get."""
        coming: dict[str, Counter[SlotProfile]] = {}
        for each in self._all:
            coming.setdefault(each.preemption.beneficiary, Counter())[each.preemption.wanted] += 1
        return coming

    def deadline(self, job_id: str) -> float | None:
        """When the first of them is free at the latest; None when there is none."""
        return min((each.deadline for each in self._all if each.preemption.beneficiary == job_id), default=None)

    def kept(self, taskmanager: str, job_id: str) -> SlotProfile:
        """What a TaskManager has free, or will have, for jobs other than this one: nobody else gets it."""
        kept = NO_RESOURCES
        for each in self._all:
            if each.preemption.taskmanager == taskmanager and each.preemption.beneficiary != job_id:
                kept = kept.plus(self.free_part(each))
        return kept

    def free_part(self, reservation: Reservation) -> SlotProfile:
        """The part of the slot that is not held by its victims any more."""
        part = reservation.preemption.wanted
        for victim in reservation.preemption.victims:
            if self._held(victim.allocation_id):
                part = part.less(victim.profile)
        return part

    # --- who waits, since when ------------------------------------------------------------------------------

    def waited(self, jobs: Iterable[str], now: float, seconds: float) -> set[str]:
        """Of the jobs for which slots could be taken now, those for which that was so for as long as this."""
        self._since = {job_id: self._since.get(job_id, now) for job_id in jobs}
        return {job_id for job_id, since in self._since.items() if now - since >= seconds}

    def due_at(self, job_id: str) -> float | None:
        """Since when slots could be taken for a job; None: they cannot."""
        return self._since.get(job_id)
