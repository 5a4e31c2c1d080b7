"""Which slot goes to which job: the ResourceManager's decisions, apart from its I/O.

Slot states are Flink's. A slot is FREE; ALLOCATED once a job's request for it has been decided; ACTIVE once
the job took it; RELEASING until its TaskManager confirms that it is free again. Requirements are
level-triggered: a job states how many slots of which sizes it wants in total, and :meth:`SlotManager.decide` works
until it has them.

First come, first served: an earlier job gets what it lacks before a later one gets anything. When nothing free is large
enough for it, one TaskManager that could hold its slot is kept for it, so that small requests of later jobs cannot eat
every piece that becomes free; the others serve those jobs meanwhile. Where queues are configured,
:mod:`sluice.runtime.jobmanager.slots.fair_shares` decides instead, slot by slot.
"""

from __future__ import annotations

import functools
import heapq
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

from sluice.runtime.jobmanager.gateways import SlotRequirement
from sluice.runtime.jobmanager.slots.allocations import Allocations
from sluice.runtime.jobmanager.slots.dedication import Dedication
from sluice.runtime.jobmanager.slots.fair_shares import FairShares, JobClaim
from sluice.runtime.jobmanager.slots.free_capacity import FreeCapacity
from sluice.runtime.jobmanager.slots.job_slots import JobSlots, Missing
from sluice.runtime.jobmanager.slots.preemption import HeldSlot, Preemption, choose_victims
from sluice.runtime.jobmanager.slots.refusals import Refusals
from sluice.runtime.jobmanager.slots.reservations import Reservations
from sluice.runtime.jobmanager.slots.slot_ledger import AllocationLost, Release, Reserve, Slot, TaskManagerSlots
from sluice.runtime.jobmanager.slots.waiting_reasons import WaitingReasons
from sluice.runtime.messages import (
    MAX_SLOTS_PER_TASKMANAGER,
    NO_RESOURCES,
    SlotProfile,
    SlotReport,
    SlotRequest,
    SlotState,
    SlotStatus,
)
from sluice.runtime.placement import Placement, rank
from sluice.runtime.scheduling_config import SchedulingConfig

_ALLOCATED, _ACTIVE, _RELEASING = SlotState.ALLOCATED, SlotState.ACTIVE, SlotState.RELEASING


class SlotManager:
    """All TaskManagers, their slots, and what jobs require.

    The work for each heartbeat or slot does not grow with the number of TaskManagers or slots: TaskManagers are indexed
    by free capacity, and each job's slots by TaskManager.

    Args:
        new_allocation_id: makes one that was never used.
        placement: how to choose among TaskManagers with room.
        max_slots_per_user: how many slots the jobs of one user may hold together; 0: any number.
        movable: whether executors on a draining TaskManager move to others; else it waits for them to end.
        scheduling: the queues that share the slots.
        dedication: which TaskManager serves which job only; None: each serves many.
    """

    def __init__(
        self,
        new_allocation_id: Callable[[], str],
        *,
        placement: Placement = Placement.SPREAD,
        max_slots_per_user: int = 0,
        movable: bool = True,
        scheduling: SchedulingConfig | None = None,
        dedication: Dedication | None = None,
    ) -> None:
        self._dedication = dedication
        self._scheduling = scheduling or SchedulingConfig()
        self._movable = movable
        self._new_allocation_id = new_allocation_id
        self._placement = placement
        self._max_slots_per_user = max_slots_per_user
        self._taskmanagers: dict[str, TaskManagerSlots] = {}
        self._sizes: Counter[SlotProfile] = Counter()
        self._jobs = JobSlots(max_slots_per_user)
        self._allocations = Allocations(self._jobs)
        self._capacity = FreeCapacity()
        self._kept: dict[str, str] = {}
        self._refusals = Refusals()
        self._reservations = Reservations(self._allocations.__contains__)

    # --- TaskManagers come and go ---------------------------------------------------------------------

    def register(
        self, name: str, host: str, slots: int, profile: SlotProfile, total: SlotProfile | None = None
    ) -> list[AllocationLost]:
        """Add a TaskManager with all slots free; what an earlier one of that name held is lost."""
        lost = self.lost(name)
        taskmanager = TaskManagerSlots.empty(name, host, slots, profile, total)
        self._taskmanagers[name] = taskmanager
        self._sizes[taskmanager.total] += 1
        self._note_capacity(name)
        return lost

    def admit(self, name: str, held: Iterable[SlotStatus]) -> None:
        """Let a TaskManager that has just registered keep slots that it got from an earlier leader."""
        taskmanager = self._taskmanagers[name]
        for status in held:
            if status.state not in {_ALLOCATED, _ACTIVE} or not 0 <= status.slot < MAX_SLOTS_PER_TASKMANAGER:
                continue
            if not status.allocation_id or status.allocation_id in self._allocations:
                continue
            slot = taskmanager.slots.get(status.slot) or Slot(status.slot, status.profile or taskmanager.profile)
            slot.state, slot.allocation_id, slot.job_id = status.state, status.allocation_id, status.job_id
            slot.acknowledged = True
            self._allocations.add(taskmanager, slot)
        self._note_capacity(name)

    def lost(self, name: str) -> list[AllocationLost]:
        """Remove a TaskManager, with everything in its slots."""
        taskmanager = self._taskmanagers.pop(name, None)
        if taskmanager is None:
            return []
        self._refusals.taskmanager_lost(name)
        self._reservations.taskmanager_lost(name)
        self._sizes[taskmanager.total] -= 1
        self._sizes += Counter()  # drops zeros
        self._capacity.remove(name)
        gone = [slot for slot in taskmanager.slots.values() if slot.allocation_id in self._allocations]
        return [self._allocations.forget(slot) for slot in gone]

    def report(self, name: str, report: SlotReport) -> list[Release | AllocationLost]:
        """Compare what a TaskManager says about its slots with the record, and correct what differs."""
        taskmanager = self._taskmanagers.get(name)
        if taskmanager is None:
            return []
        actions = self._allocations.reconcile(taskmanager, report)
        self._refusals.reported(name)
        self._note_capacity(name)
        return actions

    def drain(self, name: str, *, draining: bool = True) -> dict[str, tuple[str, ...]]:
        """Stop, or resume, giving slots of this TaskManager; returns what is held there, by job.

        What is held there does not count as held any more, so that the jobs get others before these are given back.
        """
        taskmanager = self._taskmanagers.get(name)
        if taskmanager is None:
            return {}
        taskmanager.draining = draining
        self._reservations.taskmanager_lost(name)
        held: dict[str, list[str]] = {}
        for slot in taskmanager.slots.values() if draining and self._movable else ():
            if slot.state in {_ALLOCATED, _ACTIVE}:
                self._jobs.give_back(slot, name)
                held.setdefault(slot.job_id, []).append(slot.allocation_id)
        self._note_capacity(name)
        return {job_id: tuple(allocations) for job_id, allocations in held.items()}

    def drained(self, name: str) -> bool:
        """Whether a TaskManager may leave: it is draining and nothing is held there."""
        taskmanager = self._taskmanagers.get(name)
        return taskmanager is not None and taskmanager.draining and taskmanager.empty_of_slots

    # --- jobs want and give back ------------------------------------------------------------------------

    def require(self, requirement: SlotRequirement) -> None:
        """State how many slots a job wants in total; none means none any more."""
        self._jobs.require(requirement)

    def decide(self) -> list[Reserve]:
        """Allocate what is free to jobs that lack some: the earliest job first, its largest slots first."""
        if self._scheduling.queues:
            return self._decide_fairly()
        reserved: list[Reserve] = []
        self._kept = {}
        allowed = self._jobs.allowances()
        for requirement in self._jobs:
            if not self._capacity:
                break
            for profile, missing in self._jobs.missing(requirement.job_id):
                wanted = min(missing, allowed[requirement.owner]) if allowed is not None else missing
                given = self._allocate(requirement, profile, wanted)
                if allowed is not None:
                    allowed[requirement.owner] -= len(given)
                if len(given) < wanted:
                    self._keep_for(requirement.job_id, profile)
                reserved += given
        return reserved

    def _decide_fairly(self) -> list[Reserve]:
        """Allocate what is free slot by slot, each to the job whose turn it is."""
        self._kept = {}
        if not self._capacity:
            return []
        reserved = self._fulfil_reservations(anywhere=False)
        shares = self.shares()
        while self._capacity and (ask := shares.next()) is not None:
            requirement = self._jobs.wanted(ask.job_id)
            given = [] if requirement is None else self._allocate(requirement, ask.profile, 1)
            if given:
                shares.granted(ask)
                reserved += given
            else:
                self._keep_for(ask.job_id, ask.profile)
                shares.passed_over(ask)
        return reserved + self._fulfil_reservations(anywhere=True)

    def _fulfil_reservations(self, *, anywhere: bool) -> list[Reserve]:
        """Give jobs the slots that were taken for them: in their place if that is free by now, or anywhere free."""
        reserved: list[Reserve] = []
        for each in self._reservations:
            job_id, wanted = each.preemption.beneficiary, each.preemption.wanted
            requirement = self._jobs.wanted(job_id)
            if requirement is None or wanted not in dict(self._jobs.missing(job_id)):
                self._reservations.remove(each)
                continue
            only = "" if anywhere else each.preemption.taskmanager
            given = self._allocate(requirement, wanted, 1, only)
            if given:
                self._reservations.remove(each)
            reserved += given
        return reserved

    def preempt(self, now: float) -> tuple[list[Preemption], list[Release]]:
        """Take slots from jobs for others, and free overdue ones; ``now`` is a monotonic time in seconds.

        Taken slots no longer count as held, as on a TaskManager that drains.
        """
        self._reservations.expire(now)
        overdue = [release for each in self._reservations.overdue(now) for release in self.release(each)]
        if not self._scheduling.preempts:
            return [], overdue
        claimants = set() if self._reservations.full else self.shares().claimants()
        claimants = {each for each in claimants if (wants := self._jobs.wanted(each)) is not None and wants.ready}
        possible = self._choose_victims(claimants) if claimants else []
        waited = self._reservations.waiting_at_least(
            {each.beneficiary for each in possible}, now, self._scheduling.preemption_wait
        )
        chosen = self._choose_victims(waited) if waited else []
        for each in chosen:
            self._reservations.add(each, now + self._scheduling.preemption_grace)
            for victim in each.victims:
                if (found := self._allocations.get(victim.allocation_id)) is not None:
                    self._jobs.give_back(found[1], found[0])
        return chosen, overdue

    def _choose_victims(self, beneficiaries: Collection[str]) -> list[Preemption]:
        shares = self.shares(beneficiaries)
        free = {each.name: each.free_total.less(self._reservations.kept(each.name, "")) for each in self._open()}
        return choose_victims(shares, free, self._held_slots(), lambda job_id, name: not self._open_to(job_id, name))

    def _held_slots(self) -> list[HeldSlot]:
        """The slots that jobs use and that could be taken, the earliest first."""
        return [
            HeldSlot(slot.allocation_id, slot.job_id, name, slot.profile)
            for name, slot in self._allocations
            if slot.state is _ACTIVE
            and slot.job_id in self._jobs
            and slot.allocation_id in self._jobs.held(slot.job_id).allocations
        ]

    def shares(self, wanting: Collection[str] | None = None) -> FairShares:
        """The fair shares of jobs for a round of turns; with ``wanting`` only these lack anything."""
        sizes = (each.total for each in self._open())
        capacity = functools.reduce(SlotProfile.plus, sizes, NO_RESOURCES)
        return FairShares(self._scheduling, capacity, self.claims(wanting), self._max_slots_per_user)

    def claims(self, wanting: Collection[str] | None = None) -> list[JobClaim]:
        """The claims of jobs: see :meth:`JobSlots.claims`."""
        return self._jobs.claims(self._reservations.by_job(), wanting)

    def _allocate(
        self, requirement: SlotRequirement, profile: SlotProfile, missing: int, only: str = ""
    ) -> list[Reserve]:
        """Reserve up to ``missing`` slots of one size; ``only``: the TaskManager to use."""
        held = self._jobs.held(requirement.job_id).spread
        known: dict[tuple[int, SlotProfile], tuple[float, float]] = {}
        """Most TaskManagers rank the same: those with equal free capacity on which the job holds equally many slots."""

        def ranked(each: TaskManagerSlots) -> tuple[bool, float, float, str]:
            alike = (held[each.name], each.free_total)
            if alike not in known:
                known[alike] = rank(self._placement, name="", held=alike[0], free=alike[1], wanted=profile)[:2]
            of_another = self._dedication is not None and not self._dedication.belongs(each.name, requirement.job_id)
            return (of_another, *known[alike], each.name)

        queue = [
            ranked(each)
            for each in (self._capacity.fitting(profile) if missing > 0 else ())
            if only in {"", each.name}
            and self._kept.get(each.name, requirement.job_id) == requirement.job_id
            and self._open_to(requirement.job_id, each.name)
            and (not self._reservations or self._room(each, requirement.job_id).fits(profile))
        ]
        heapq.heapify(queue)
        reserved: list[Reserve] = []
        while queue and len(reserved) < missing:
            *_, name = heapq.heappop(queue)
            taskmanager = self._taskmanagers[name]
            slot = taskmanager.slot_for(profile)
            if slot is None:
                continue  # as many slots as a TaskManager may have
            reserved.append(self._reserve(name, slot, requirement))
            held = self._jobs.held(requirement.job_id).spread
            if self._room(taskmanager, requirement.job_id).fits(profile):
                heapq.heappush(queue, ranked(taskmanager))
        return reserved

    def _room(self, taskmanager: TaskManagerSlots, job_id: str) -> SlotProfile:
        """The free capacity of a TaskManager for this job."""
        if not self._reservations:
            return taskmanager.free_total
        return taskmanager.free_total.less(self._reservations.kept(taskmanager.name, job_id))

    def _keep_for(self, job_id: str, profile: SlotProfile) -> None:
        """Keep, for a job that fits nowhere, the TaskManager that comes nearest, so that later jobs leave it alone."""
        if job_id in self._kept.values():
            return  # for a larger slot; however many sizes a driver wants, the others go on
        if not any(size.fits(profile) for size in self._sizes):
            return
        names = (
            each.name
            for each in self._capacity.largest_first()
            if each.name not in self._kept and each.total.fits(profile) and self._open_to(job_id, each.name)
        )
        if (name := next(names, None)) is not None:
            self._kept[name] = job_id

    def _reserve(self, name: str, slot: Slot, requirement: SlotRequirement) -> Reserve:
        slot.state, slot.job_id, slot.acknowledged = _ALLOCATED, requirement.job_id, False
        slot.allocation_id = self._new_allocation_id()
        self._allocations.add(self._taskmanagers[name], slot)
        if self._dedication is not None:
            self._dedication.take(name, requirement.job_id)
        self._note_capacity(name)
        return Reserve(
            name,
            SlotRequest(
                slot=slot.index,
                allocation_id=slot.allocation_id,
                job_id=requirement.job_id,
                jobmaster_endpoint=requirement.jobmaster_endpoint,
                jobmaster_token=requirement.jobmaster_token,
                profile=slot.profile,
                kind=requirement.kind,
            ),
        )

    def awaits(self, allocation_id: str) -> bool:
        """Whether an allocation still has to be reserved at its TaskManager."""
        found = self._allocations.get(allocation_id)
        return found is not None and found[1].state is _ALLOCATED and not found[1].acknowledged

    def acknowledged(self, allocation_id: str) -> None:
        """The TaskManager has reserved the slot."""
        if (found := self._allocations.get(allocation_id)) is not None:
            name, slot = found
            slot.acknowledged = True
            self._refusals.accepted(name, slot.job_id)

    def refused(self, allocation_id: str) -> None:
        """The TaskManager did not reserve the slot, or did not answer.

        The slot's number is left alone until it reports, and the job asks it for nothing until then, or longer when it
        has refused the job before. Its capacity counts as free for other jobs: it may accept those.
        """
        found = self._allocations.get(allocation_id)
        if found is not None:
            name, slot = found
            self._refusals.refused(name, slot.job_id)
            self._free(name, slot, doubted=True)

    def release(self, allocation_id: str) -> list[Release]:
        """Take an allocation back from its job; does nothing when it is gone already."""
        found = self._allocations.get(allocation_id)
        if found is None or found[1].state is _RELEASING:
            return []
        name, slot = found
        self._jobs.give_back(slot, name)
        slot.state = _RELEASING
        return [Release(name, allocation_id)]

    def freed(self, allocation_id: str) -> None:
        """The TaskManager confirms that the slot is free."""
        found = self._allocations.get(allocation_id)
        if found is not None and found[1].state is _RELEASING:
            self._free(*found)

    def release_job(self, job_id: str) -> list[Release]:
        """End a job: it wants nothing, and everything that it holds goes back."""
        self._jobs.end(job_id)
        self._refusals.job_ended(job_id)
        # Not only what counts as held: a drain, perhaps undone since, or a preemption may have taken others.
        mine = sorted(slot.allocation_id for _, slot in self._allocations if slot.job_id == job_id)
        releases = [release for each in mine for release in self.release(each)]
        self._jobs.drop(job_id)
        return releases

    # --- what is there ----------------------------------------------------------------------------------

    def unmet(self) -> Missing:
        """The slots by size that jobs lack and may have."""
        return [(profile, count) for _, profile, count in self.unmet_by_job()]

    def unmet_by_job(self) -> list[tuple[str, SlotProfile, int]]:
        """The slots by size that each job lacks and may have."""
        return self.shares().demand() if self._scheduling.queues else self._jobs.unmet()

    @property
    def taskmanagers(self) -> tuple[TaskManagerSlots, ...]:
        """All registered TaskManagers."""
        return tuple(self._taskmanagers.values())

    @property
    def jobs(self) -> JobSlots:
        """What jobs require, hold and lack."""
        return self._jobs

    def reasons(self, shares: FairShares | None = None) -> WaitingReasons:
        """Why jobs wait; ``shares``: the current ones, if the caller has computed them already."""
        return WaitingReasons(
            self._jobs,
            self._taskmanagers.values(),
            self._sizes.keys(),
            self._capacity,
            self._kept,
            self._refusals,
            self._reservations,
            self._scheduling,
            self.shares if shares is None else lambda: shares,
        )

    def _open_to(self, job_id: str, name: str) -> bool:
        """Whether the job may ask this TaskManager for a slot."""
        mine = self._dedication is None or self._dedication.admits(name, job_id)
        return mine and not self._refusals.avoids(job_id, name)

    def _open(self) -> Iterator[TaskManagerSlots]:
        return (each for each in self._taskmanagers.values() if not each.draining)

    # --- bookkeeping --------------------------------------------------------------------------------------

    def _free(self, name: str, slot: Slot, *, doubted: bool = False) -> None:
        self._allocations.free(slot, doubted=doubted)
        self._note_capacity(name)

    def _note_capacity(self, name: str) -> None:
        """Update the index of free capacity for a TaskManager."""
        taskmanager = self._taskmanagers.get(name)
        if taskmanager is not None:
            self._capacity.changed(taskmanager)
