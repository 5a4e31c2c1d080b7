"""Why a job waits for slots, in words for whoever submitted it. Decides nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sluice.runtime.jobmanager.slots.fair_shares import FairShares, JobClaim
from sluice.runtime.jobmanager.slots.free_capacity import FreeCapacity
from sluice.runtime.jobmanager.slots.refusals import Refusals
from sluice.runtime.jobmanager.slots.slot_ledger import TaskManagerSlots
from sluice.runtime.messages import SlotProfile

_SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True)
class JobWaiting:
    """A job that lacks slots.

    Attributes:
        claim: what it holds and lacks.
        coming: slots that are being taken from other jobs for it.
        allowed: how many slots its owner may still get; None: any number.
        preempts_after: after how many seconds slots are taken from other jobs for it; None: never.
    """

    claim: JobClaim
    coming: Counter[SlotProfile]
    allowed: int | None = None
    preempts_after: float | None = None

    @property
    def sizes(self) -> list[SlotProfile]:
        """Of the slots that it lacks, the largest first."""
        return [profile for profile, _ in self.claim.lacking]


@dataclass(frozen=True, slots=True)
class WaitingReasons:
    """What the last decision knew of TaskManagers.

    Attributes:
        taskmanagers: all that are registered.
        sizes: all sizes of TaskManagers.
        capacity: what is free where.
        kept: TaskManagers that are kept for a job that came first, and that job.
        refusals: which TaskManagers have refused which job.
        max_slots_per_user: how many slots the jobs of one user may hold together.
        shares: of the queues; None: there are none.
    """

    taskmanagers: Collection[TaskManagerSlots]
    sizes: Collection[SlotProfile]
    capacity: FreeCapacity
    kept: Mapping[str, str]
    refusals: Refusals
    max_slots_per_user: int = 0
    shares: FairShares | None = None

    def why(self, job: JobWaiting) -> str:
        """Why it does not have all the slots it wants."""
        if not self.taskmanagers:
            return "no TaskManager is registered"
        for profile in job.sizes:
            if unfit := self.too_large(profile):
                return unfit
        return self._limited(job) or self._drained(job) or self._not_now(job)

    def too_large(self, profile: SlotProfile) -> str:
        """Why no TaskManager that is registered could have such a slot; empty when one could, or there is none."""
        if not self.taskmanagers or any(size.fits(profile) for size in self.sizes):
            return ""
        largest = max(self.sizes, key=lambda size: (size.memory_mb, size.cores))
        return (
            f"no TaskManager has {profile.cores} cores and {profile.memory_mb} MiB, "
            f"the largest has {largest.cores} and {largest.memory_mb}"
        )

    def _limited(self, job: JobWaiting) -> str:
        if self.shares is None:
            if job.allowed == 0:
                most = self.max_slots_per_user
                return f"the jobs of {job.claim.owner} hold the {most} slots that one user may have"
            return ""
        if job.coming:
            return f"executors of other jobs are making room for {job.coming.total()} of its slots"
        obstacles = [self.shares.obstacle(job.claim, profile) for profile in job.sizes]
        return f"queue {self.shares.queue_of(job.claim.job_id).name}: {obstacles[0]}" if all(obstacles) else ""

    def _drained(self, job: JobWaiting) -> str:
        if any(each.total.fits(profile) for each in self._open() for profile in job.sizes):
            return ""
        return "the TaskManagers that it would fit into are being drained"

    def _not_now(self, job: JobWaiting) -> str:
        job_id = job.claim.job_id
        refusing = sorted(each.name for each in self._open() if self.refusals.avoids(job_id, each.name))
        if refusing:
            return f"refused by {', '.join(refusing[:_SHOWN_NAMES])}, to be asked again after its next reports"
        first = next((other for other in self.kept.values() if other != job_id), "")
        if first and any(self.capacity.fits(profile) for profile in job.sizes):
            return "what is free is kept for another job, which came first"
        why = "all fitting slots are in use"
        if self.shares is not None:
            queue = self.shares.queue_of(job_id).name
            why += f"; queue {queue} has {self.shares.held(queue)[1]:.0%} of the cluster"
            if job.preempts_after is not None:
                why += f"; slots are taken from other jobs if it waits for {job.preempts_after:g} s"
        return why

    def _open(self) -> list[TaskManagerSlots]:
        return [each for each in self.taskmanagers if not each.draining]
