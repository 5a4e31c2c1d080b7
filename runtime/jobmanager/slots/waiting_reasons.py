"""Why a job waits for slots, in words for whoever submitted it, and until when at most. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sluice.runtime.jobmanager.slots.fair_shares import FairShares
from sluice.runtime.jobmanager.slots.free_capacity import FreeCapacity
from sluice.runtime.jobmanager.slots.job_slots import JobSlots
from sluice.runtime.jobmanager.slots.refusals import Refusals
from sluice.runtime.jobmanager.slots.reservations import Reservations
from sluice.runtime.jobmanager.slots.slot_ledger import TaskManagerSlots
from sluice.runtime.messages import SlotProfile
from sluice.runtime.scheduling_config import SchedulingConfig

_SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True)
class WaitingReasons:
    """What the last decision was based on.

    Attributes:
        jobs: what they require, hold and lack.
        taskmanagers: all that are registered.
        sizes: all sizes of TaskManagers.
        capacity: the free capacity of TaskManagers.
        kept: TaskManagers that are kept, with the job that they are kept for.
        refusals: which TaskManagers have refused which job.
        reservations: slots that are being taken from other jobs.
        scheduling: the queues, and when slots are taken.
        shares: computes the current shares; not called without queues.
    """

    jobs: JobSlots
    taskmanagers: Collection[TaskManagerSlots]
    sizes: Collection[SlotProfile]
    capacity: FreeCapacity
    kept: Mapping[str, str]
    refusals: Refusals
    reservations: Reservations
    scheduling: SchedulingConfig
    shares: Callable[[], FairShares]

    def pending(self, job_id: str) -> str:
        """How many slots a job has of those it wants, and why not all of them; empty when it has them."""
        requirement, why = self.jobs.wanted(job_id), self.why(job_id)
        if requirement is None or not why:
            return ""
        return f"{requirement.count - self.jobs.lacks(job_id)} of {requirement.count} slots: {why}"

    def why(self, job_id: str) -> str:
        """Why a job does not have all the slots it wants; empty when it has."""
        sizes = [profile for profile, _ in self.jobs.missing(job_id)]
        if not sizes:
            return ""
        if not self.taskmanagers:
            return "no TaskManager is registered"
        for profile in sizes:
            if unfit := self.too_large(profile):
                return unfit
        shares = self.shares() if self.scheduling.queues else None
        limit = self._user_limit(job_id) if shares is None else self._queue_limit(job_id, sizes, shares)
        return limit or self._drained(sizes) or self._not_now(job_id, sizes, shares)

    def too_large(self, profile: SlotProfile) -> str:
        """Why no registered TaskManager can have such a slot; empty when one can, or none has registered."""
        if not self.taskmanagers or any(size.fits(profile) for size in self.sizes):
            return ""
        largest = max(self.sizes, key=lambda size: (size.memory_mb, size.cores))
        return (
            f"no TaskManager has {profile.cores} cores and {profile.memory_mb} MiB, "
            f"the largest has {largest.cores} and {largest.memory_mb}"
        )

    def expected_by(self, job_id: str) -> float | None:
        """When the job has its next slot at the latest, by the clock that preempts; None: nobody knows."""
        if not self.jobs.missing(job_id):
            return None
        deadline, since = self.reservations.deadline(job_id), self.reservations.waiting_since(job_id)
        if deadline is None and since is not None:
            deadline = since + self.scheduling.preemption_wait + self.scheduling.preemption_grace
        return deadline

    def _user_limit(self, job_id: str) -> str:
        allowed, requirement = self.jobs.allowances(), self.jobs.wanted(job_id)
        if allowed is None or requirement is None or allowed[requirement.owner]:
            return ""
        most = self.jobs.max_slots_per_user
        return f"the jobs of {requirement.owner} hold the {most} slots that one user may have"

    def _queue_limit(self, job_id: str, sizes: Sequence[SlotProfile], shares: FairShares) -> str:
        if coming := self.reservations.by_job().get(job_id):
            return f"executors of other jobs are making room for {coming.total()} of its slots"
        claim = self.jobs.claim(job_id, {})
        obstacles = [shares.obstacle(claim, profile) for profile in sizes]
        return f"queue {shares.queue_of(job_id).name}: {obstacles[0]}" if all(obstacles) else ""

    def _drained(self, sizes: Sequence[SlotProfile]) -> str:
        if any(each.total.fits(profile) for each in self._open() for profile in sizes):
            return ""
        return "the TaskManagers that it would fit into are being drained"

    def _not_now(self, job_id: str, sizes: Sequence[SlotProfile], shares: FairShares | None) -> str:
        refusing = sorted(each.name for each in self._open() if self.refusals.avoids(job_id, each.name))
        if refusing:
            return f"refused by {', '.join(refusing[:_SHOWN_NAMES])}, to be asked again after its next reports"
        first = next((other for other in self.kept.values() if other != job_id), "")
        if first and any(self.capacity.fits(profile) for profile in sizes):
            return "what is free is kept for another job, which came first"
        why = "all fitting slots are in use"
        if shares is not None:
            queue = shares.queue_of(job_id).name
            why += f"; queue {queue} has {shares.held(queue)[1]:.0%} of the cluster"
            if self.reservations.waiting_since(job_id) is not None:
                why += f"; slots are taken from other jobs if it waits for {self.scheduling.preemption_wait:g} s"
        return why

    def _open(self) -> list[TaskManagerSlots]:
        return [each for each in self.taskmanagers if not each.draining]
