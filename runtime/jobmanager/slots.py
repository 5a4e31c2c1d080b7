"""Which slot goes to which job: the ResourceManager's decisions, apart from its I/O.

Slot states are Flink's. A slot is FREE; ALLOCATED once a job's request for it has been decided; ACTIVE once
the job took it; RELEASING until its TaskManager confirms that it is free again. Requirements are
level-triggered: a job states how many slots it wants in total, and :meth:`SlotManager.decide` works until it
has them. TaskManagers report all their slots with each heartbeat; where report and record differ, the
record is corrected or the TaskManager is told to free what nobody knows.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from runtime.messages import SlotProfile, SlotReport, SlotRequest, SlotState, SlotStatus

_FREE, _ALLOCATED, _ACTIVE, _RELEASING = SlotState.FREE, SlotState.ALLOCATED, SlotState.ACTIVE, SlotState.RELEASING


@dataclass(frozen=True, slots=True)
class Requirement:
    """A job wants ``count`` slots of at least ``profile``; endpoint and token are where they are offered."""

    job_id: str
    count: int
    profile: SlotProfile
    jobmaster_endpoint: str
    jobmaster_token: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Reserve:
    """Ask ``taskmanager`` to reserve a slot."""

    taskmanager: str
    request: SlotRequest


@dataclass(frozen=True, slots=True)
class Release:
    """Ask ``taskmanager`` to free the slot of an allocation."""

    taskmanager: str
    allocation_id: str


@dataclass(frozen=True, slots=True)
class AllocationLost:
    """Tell the job that an allocation is gone."""

    job_id: str
    allocation_id: str


@dataclass(slots=True)
class Slot:
    """One slot as the ResourceManager sees it.

    ``acknowledged``: the TaskManager has confirmed the reservation. ``doubted``: it refused one; not used
    again until it reports the slot as free.
    """

    index: int
    state: SlotState = _FREE
    allocation_id: str = ""
    job_id: str = ""
    acknowledged: bool = False
    doubted: bool = False

    def clear(self, *, doubted: bool = False) -> None:
        """Make the slot free."""
        self.state, self.allocation_id, self.job_id = _FREE, "", ""
        self.acknowledged, self.doubted = False, doubted

    @property
    def usable(self) -> bool:
        """Free, and believed to be."""
        return self.state is _FREE and not self.doubted


@dataclass(slots=True)
class TaskManagerSlots:
    """A registered TaskManager and its slots, all of one profile."""

    name: str
    host: str
    profile: SlotProfile
    slots: tuple[Slot, ...]

    @property
    def free(self) -> int:
        """How many slots a job could get."""
        return sum(slot.usable for slot in self.slots)


@dataclass(slots=True)
class _Holdings:
    """What a job holds: its allocations, and how many of them each TaskManager has."""

    allocations: set[str] = field(default_factory=set)
    spread: Counter[str] = field(default_factory=Counter)

    def add(self, allocation_id: str, taskmanager: str) -> None:
        self.allocations.add(allocation_id)
        self.spread[taskmanager] += 1

    def discard(self, allocation_id: str, taskmanager: str) -> None:
        if allocation_id in self.allocations:
            self.allocations.remove(allocation_id)
            self.spread[taskmanager] -= 1
            if not self.spread[taskmanager]:
                del self.spread[taskmanager]


_NOTHING = _Holdings()


class SlotManager:
    """All TaskManagers, their slots, and what jobs require.

    Whatever happens with each heartbeat, or for each slot, takes time that does not depend on how many TaskManagers
    or slots there are: those with room are known by the size of their slots, and so is what each job holds where.
    """

    def __init__(self, new_allocation_id: Callable[[], str]) -> None:
        self._new_allocation_id = new_allocation_id
        self._taskmanagers: dict[str, TaskManagerSlots] = {}
        self._requirements: dict[str, Requirement] = {}
        self._allocations: dict[str, tuple[str, Slot]] = {}
        self._by_job: dict[str, _Holdings] = {}
        self._room: dict[SlotProfile, dict[str, TaskManagerSlots]] = {}

    # --- TaskManagers come and go ---------------------------------------------------------------------

    def register(self, name: str, host: str, slots: int, profile: SlotProfile) -> list[AllocationLost]:
        """A TaskManager is there with all slots free; what an earlier one of that name held is lost."""
        lost = self.lost(name)
        self._taskmanagers[name] = TaskManagerSlots(name, host, profile, tuple(Slot(i) for i in range(slots)))
        self._note_room(name)
        return lost

    def lost(self, name: str) -> list[AllocationLost]:
        """A TaskManager is gone, with everything in its slots."""
        taskmanager = self._taskmanagers.pop(name, None)
        if taskmanager is None:
            return []
        self._remove_room(taskmanager)
        gone = [slot for slot in taskmanager.slots if slot.allocation_id in self._allocations]
        return [self._forget(slot) for slot in gone]

    def report(self, name: str, report: SlotReport) -> list[Release | AllocationLost]:
        """Compare what a TaskManager says about its slots with the record, and correct what differs."""
        taskmanager = self._taskmanagers.get(name)
        if taskmanager is None:
            return []
        actions: list[Release | AllocationLost] = []
        for status in report.slots:
            if 0 <= status.slot < len(taskmanager.slots):
                actions += self._reconcile(name, taskmanager.slots[status.slot], status)
        self._note_room(name)
        return actions

    def _reconcile(self, name: str, slot: Slot, status: SlotStatus) -> list[Release | AllocationLost]:
        if slot.state is _FREE:
            if status.state is _FREE:
                slot.doubted = False
                return []
            return self._adopt_to_release(name, slot, status)
        if status.allocation_id == slot.allocation_id and status.state is not _FREE:
            return self._same_allocation(name, slot, status)
        if slot.state is _RELEASING:
            self._free(slot)
            return [] if status.state is _FREE else self._adopt_to_release(name, slot, status)
        if not slot.acknowledged:
            return []  # the request is on its way and its answer will tell
        lost = self._forget(slot)
        slot.clear()
        return [lost, *([] if status.state is _FREE else self._adopt_to_release(name, slot, status))]

    def _same_allocation(self, name: str, slot: Slot, status: SlotStatus) -> list[Release | AllocationLost]:
        slot.acknowledged = True
        if slot.state is _RELEASING:  # told before, but the word may have been lost
            return [] if status.state is _RELEASING else [Release(name, slot.allocation_id)]
        if status.state is _RELEASING:
            lost = self._forget(slot)
            self._allocations[slot.allocation_id] = (name, slot)
            slot.state = _RELEASING
            return [lost]
        slot.state = status.state
        return []

    def _adopt_to_release(self, name: str, slot: Slot, status: SlotStatus) -> list[Release | AllocationLost]:
        """The TaskManager holds something that nobody here knows."""
        slot.state, slot.allocation_id, slot.job_id = _RELEASING, status.allocation_id, status.job_id
        slot.acknowledged, slot.doubted = True, False
        self._allocations[slot.allocation_id] = (name, slot)
        return [] if status.state is _RELEASING else [Release(name, status.allocation_id)]

    # --- jobs want and give back ------------------------------------------------------------------------

    def require(self, requirement: Requirement) -> None:
        """State how many slots a job wants in total; zero or less means none any more."""
        if requirement.count > 0:
            self._requirements[requirement.job_id] = requirement
        else:
            self._requirements.pop(requirement.job_id, None)

    def decide(self) -> list[Reserve]:
        """Allocate free slots to jobs that lack some, the earliest job first, spread over TaskManagers."""
        reserved: list[Reserve] = []
        for requirement in self._requirements.values():
            if not self._room:
                break
            missing = requirement.count - len(self._held(requirement.job_id).allocations)
            if missing > 0:
                reserved += self._allocate(requirement, missing)
        return reserved

    def _allocate(self, requirement: Requirement, missing: int) -> list[Reserve]:
        held = self._held(requirement.job_id).spread
        queue = [
            (held[each.name], -each.free, each.name)
            for profile, with_room in self._room.items()
            if profile.fits(requirement.profile)
            for each in with_room.values()
        ]
        heapq.heapify(queue)
        reserved: list[Reserve] = []
        while queue and len(reserved) < missing:
            count, free, name = heapq.heappop(queue)
            slot = next(slot for slot in self._taskmanagers[name].slots if slot.usable)
            reserved.append(self._reserve(name, slot, requirement))
            if free + 1 < 0:
                heapq.heappush(queue, (count + 1, free + 1, name))
        return reserved

    def _reserve(self, name: str, slot: Slot, requirement: Requirement) -> Reserve:
        slot.state, slot.job_id, slot.acknowledged = _ALLOCATED, requirement.job_id, False
        slot.allocation_id = self._new_allocation_id()
        self._allocations[slot.allocation_id] = (name, slot)
        self._by_job.setdefault(requirement.job_id, _Holdings()).add(slot.allocation_id, name)
        self._note_room(name)
        return Reserve(
            name,
            SlotRequest(
                slot=slot.index,
                allocation_id=slot.allocation_id,
                job_id=requirement.job_id,
                jobmaster_endpoint=requirement.jobmaster_endpoint,
                jobmaster_token=requirement.jobmaster_token,
            ),
        )

    def awaits(self, allocation_id: str) -> bool:
        """Whether an allocation is still to be reserved at its TaskManager."""
        found = self._allocations.get(allocation_id)
        return found is not None and found[1].state is _ALLOCATED and not found[1].acknowledged

    def acknowledged(self, allocation_id: str) -> None:
        """The TaskManager has reserved the slot."""
        if allocation_id in self._allocations:
            self._allocations[allocation_id][1].acknowledged = True

    def refused(self, allocation_id: str) -> None:
        """The TaskManager did not reserve the slot, or did not answer: leave it alone until it reports."""
        found = self._allocations.get(allocation_id)
        if found is not None:
            self._free(found[1], doubted=True)

    def release(self, allocation_id: str) -> list[Release]:
        """The job gives an allocation back; nothing to do when it is gone already."""
        found = self._allocations.get(allocation_id)
        if found is None or found[1].state is _RELEASING:
            return []
        name, slot = found
        self._held(slot.job_id).discard(allocation_id, name)
        slot.state = _RELEASING
        return [Release(name, allocation_id)]

    def freed(self, allocation_id: str) -> None:
        """The TaskManager confirms that the slot is free."""
        found = self._allocations.get(allocation_id)
        if found is not None and found[1].state is _RELEASING:
            self._free(found[1])

    def release_job(self, job_id: str) -> list[Release]:
        """The job is over: it wants nothing, and everything it holds goes back."""
        self._requirements.pop(job_id, None)
        releases = [release for each in sorted(self._held(job_id).allocations) for release in self.release(each)]
        self._by_job.pop(job_id, None)
        return releases

    # --- what is there ----------------------------------------------------------------------------------

    @property
    def taskmanagers(self) -> tuple[TaskManagerSlots, ...]:
        """All registered TaskManagers."""
        return tuple(self._taskmanagers.values())

    def holder(self, allocation_id: str) -> str:
        """The TaskManager of an allocation, empty when unknown."""
        found = self._allocations.get(allocation_id)
        return found[0] if found else ""

    def pending_reason(self, job_id: str) -> str:
        """Why a job does not have all the slots it wants; empty when it has."""
        requirement = self._requirements.get(job_id)
        if requirement is None:
            return ""
        held = len(self._held(job_id).allocations)
        if held >= requirement.count:
            return ""
        wanted = f"{held} of {requirement.count} slots"
        if not self._taskmanagers:
            return f"{wanted}: no TaskManager is registered"
        profile = requirement.profile
        if not any(each.profile.fits(profile) for each in self._taskmanagers.values()):
            largest = max((each.profile for each in self._taskmanagers.values()), key=lambda p: (p.memory_mb, p.cores))
            return (
                f"{wanted}: no slot has {profile.cores} cores and {profile.memory_mb} MiB, "
                f"the largest has {largest.cores} and {largest.memory_mb}"
            )
        return f"{wanted}: all fitting slots are in use"

    def _held(self, job_id: str) -> _Holdings:
        return self._by_job.get(job_id, _NOTHING)

    # --- bookkeeping --------------------------------------------------------------------------------------

    def _forget(self, slot: Slot) -> AllocationLost:
        name, _ = self._allocations.pop(slot.allocation_id, ("", slot))
        self._held(slot.job_id).discard(slot.allocation_id, name)
        return AllocationLost(slot.job_id, slot.allocation_id)

    def _free(self, slot: Slot, *, doubted: bool = False) -> None:
        name, _ = self._allocations.get(slot.allocation_id, ("", slot))
        self._forget(slot)
        slot.clear(doubted=doubted)
        self._note_room(name)

    def _note_room(self, name: str) -> None:
        """Whether a TaskManager has usable slots may have changed."""
        taskmanager = self._taskmanagers.get(name)
        if taskmanager is None:
            return
        if any(slot.usable for slot in taskmanager.slots):
            self._room.setdefault(taskmanager.profile, {})[name] = taskmanager
        else:
            self._remove_room(taskmanager)

    def _remove_room(self, taskmanager: TaskManagerSlots) -> None:
        with_room = self._room.get(taskmanager.profile, {})
        with_room.pop(taskmanager.name, None)
        if not with_room:
            self._room.pop(taskmanager.profile, None)
