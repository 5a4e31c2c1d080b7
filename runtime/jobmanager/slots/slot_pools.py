"""Slots for executors and slots for drivers: two pools, so that neither can take what the other needs (ADR 102)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence

from sluice.runtime.jobmanager.gateways import SlotRequirement
from sluice.runtime.jobmanager.slots.dedication import Dedication
from sluice.runtime.jobmanager.slots.preemption import Preemption
from sluice.runtime.jobmanager.slots.provision import DedicatedDemands, Demand, ProvisionLimits
from sluice.runtime.jobmanager.slots.queue_states import queue_views
from sluice.runtime.jobmanager.slots.slot_ledger import AllocationLost, Release, Reserve, TaskManagerSlots
from sluice.runtime.jobmanager.slots.slot_manager import SlotManager
from sluice.runtime.jobmanager.views import QueueView
from sluice.runtime.messages import SlotKind, SlotProfile, SlotReport, TaskManagerRegistration
from sluice.runtime.placement import Placement
from sluice.runtime.scheduling_config import SchedulingConfig


class SlotPools:
    """One :class:`SlotManager` for each kind of slot; every TaskManager is in both.

    An allocation is in exactly one of the two.

    Args:
        new_allocation_id: makes one that was never used.
        placement: how to choose among TaskManagers with room.
        max_slots_per_user: how many slots for executors the jobs of one user may hold together; 0: any number.
        scheduling: the queues that share the slots for executors.
        dedication: which TaskManager serves which job only; None: each serves many.
    """

    def __init__(
        self,
        new_allocation_id: Callable[[], str],
        *,
        placement: Placement,
        max_slots_per_user: int = 0,
        scheduling: SchedulingConfig | None = None,
        dedication: Dedication | None = None,
    ) -> None:
        self._scheduling = scheduling or SchedulingConfig()
        self._dedication = dedication
        self._executors = SlotManager(
            new_allocation_id,
            placement=placement,
            max_slots_per_user=max_slots_per_user,
            scheduling=scheduling,
            dedication=dedication,
        )
        self._drivers = SlotManager(new_allocation_id, placement=placement, movable=False, dedication=dedication)
        self._both = (self._executors, self._drivers)

    def of(self, kind: SlotKind) -> SlotManager:
        """The pool of one kind."""
        return self._drivers if kind is SlotKind.DRIVER else self._executors

    @property
    def taskmanagers(self) -> tuple[TaskManagerSlots, ...]:
        """All registered TaskManagers, with their slots for executors."""
        return self._executors.taskmanagers

    def register(self, it: TaskManagerRegistration, expected: Container[str] = ()) -> list[AllocationLost]:
        """Add a TaskManager; what an earlier one of that name held is lost.

        It keeps the slots that it got from an earlier leader for one of the ``expected`` jobs; the others are freed.
        """
        lost = [
            *self._executors.register(it.name, it.host, it.slots, it.profile, it.total),
            *self._drivers.register(it.name, it.host, it.driver_slots, it.driver_profile),
        ]
        admitted = {
            kind: [each for each in it.report.of(kind) if each.job_id in expected] if it.report is not None else []
            for kind in SlotKind
        }
        if self._dedication is not None:
            self._dedication.registered(it.name, {each.job_id for held in admitted.values() for each in held})
        for kind, held in admitted.items():
            self.of(kind).admit(it.name, held)
        return lost

    def lost(self, name: str) -> list[AllocationLost]:
        """Remove a TaskManager, with everything in its slots."""
        return [lost for pool in self._both for lost in pool.lost(name)]

    def report(self, name: str, report: SlotReport) -> list[Release | AllocationLost]:
        """Compare what a TaskManager says about its slots with the record, and correct what differs."""
        drivers = SlotReport(slots=report.driver_slots, draining=report.draining)
        return [*self._executors.report(name, report), *self._drivers.report(name, drivers)]

    def drain(self, name: str, *, draining: bool) -> dict[str, tuple[str, ...]]:
        """Stop, or resume, giving slots of this TaskManager; returns the slots that have to move, by job."""
        self._drivers.drain(name, draining=draining)
        return self._executors.drain(name, draining=draining)

    def drained(self, name: str) -> bool:
        """Whether a TaskManager may leave: it is draining and nothing is held there."""
        return all(pool.drained(name) for pool in self._both)

    def require(self, requirement: SlotRequirement) -> None:
        """State how many slots of one kind a job wants in total."""
        self.of(requirement.kind).require(requirement)

    def decide(self) -> list[Reserve]:
        """Allocate what is free to jobs that lack some."""
        return [reserve for pool in self._both for reserve in pool.decide()]

    def preempt(self, now: float) -> tuple[list[Preemption], list[Release]]:
        """Take slots for executors from jobs for others, and free overdue ones."""
        return self._executors.preempt(now)

    def queues(self, preempted: Mapping[str, int], epoch_ms: Callable[[float], int]) -> tuple[QueueView, ...]:
        """The views of the queues."""
        return queue_views(self._executors, preempted, epoch_ms) if self._scheduling.queues else ()

    def awaits(self, allocation_id: str) -> bool:
        """Whether an allocation still has to be reserved at its TaskManager."""
        return any(pool.awaits(allocation_id) for pool in self._both)

    def acknowledged(self, allocation_id: str) -> None:
        """The TaskManager has reserved the slot."""
        for pool in self._both:
            pool.acknowledged(allocation_id)

    def refused(self, allocation_id: str) -> None:
        """The TaskManager did not reserve the slot, or did not answer."""
        for pool in self._both:
            pool.refused(allocation_id)

    def release(self, allocation_id: str) -> list[Release]:
        """Take an allocation back from its job."""
        return [release for pool in self._both for release in pool.release(allocation_id)]

    def freed(self, allocation_id: str) -> None:
        """The TaskManager confirms that the slot is free."""
        for pool in self._both:
            pool.freed(allocation_id)

    def release_job(self, job_id: str) -> list[Release]:
        """End a job: it wants nothing, and everything that it holds goes back."""
        return [release for pool in self._both for release in pool.release_job(job_id)]

    def pending_reason(self, requirement: SlotRequirement) -> str:
        """Why a job does not have all the slots of this kind that it wants; empty when it has."""
        if requirement.kind is SlotKind.EXECUTOR:
            return self._executors.reasons().pending(requirement.job_id)
        why = self._drivers.reasons().why(requirement.job_id)
        return why and f"no slot for its driver: {why}"

    def too_large(self, profile: SlotProfile) -> str:
        """Why no TaskManager can have such a slot for an executor; empty when one can, or none has registered."""
        return self._executors.reasons().too_large(profile)

    def demands(self, limits: ProvisionLimits) -> Sequence[Demand]:
        """What jobs lack and TaskManagers have, for each kind of slots."""
        return (
            Demand(self._executors.taskmanagers, self._executors.unmet(), limits.size),
            Demand(self._drivers.taskmanagers, self._drivers.unmet(), limits.drivers),
        )

    def dedicated_demands(self, limits: ProvisionLimits, wanting: Callable[[str], bool]) -> DedicatedDemands | None:
        """The demands of each job, where each TaskManager serves one job; ``wanting``: whether a job is not over."""
        dedication = self._dedication
        if dedication is None:
            return None
        own: defaultdict[str, defaultdict[SlotKind, list[tuple[SlotProfile, int]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for kind in SlotKind:
            for job_id, profile, count in self.of(kind).unmet_by_job():
                own[job_id][kind].append((profile, count))
        sizes = {SlotKind.EXECUTOR: limits.size, SlotKind.DRIVER: limits.drivers}
        by_job = [
            [
                Demand(
                    [each for each in self.of(kind).taskmanagers if dedication.belongs(each.name, job_id)],
                    lacking[kind],
                    sizes[kind],
                )
                for kind in SlotKind
            ]
            for job_id, lacking in own.items()
        ]
        return DedicatedDemands(
            by_job,
            sum(dedication.unused(each.name) for each in self.taskmanagers if not each.draining),
            [each.name for each in self.taskmanagers if dedication.over(each.name, wanting)],
        )
