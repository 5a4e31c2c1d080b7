"""The record of allocations: which slot of which TaskManager each one is.

TaskManagers report all their slots with each heartbeat. Where the report differs, the record is corrected, or the
TaskManager is told to free a slot whose allocation is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from sluice.runtime.jobmanager.slots.job_slots import JobSlots
from sluice.runtime.jobmanager.slots.slot_ledger import AllocationLost, Release, Slot, TaskManagerSlots
from sluice.runtime.messages import MAX_SLOTS_PER_TASKMANAGER, SlotReport, SlotState, SlotStatus

_FREE, _RELEASING = SlotState.FREE, SlotState.RELEASING


class Allocations:
    """All allocations.

    Args:
        jobs: whose they are.
    """

    def __init__(self, jobs: JobSlots) -> None:
        self._jobs = jobs
        self._all: dict[str, tuple[str, Slot]] = {}

    def __contains__(self, allocation_id: str) -> bool:
        return allocation_id in self._all

    def __iter__(self) -> Iterator[tuple[str, Slot]]:
        """The TaskManager and slot of each allocation, the earliest first."""
        return iter(self._all.values())

    def get(self, allocation_id: str) -> tuple[str, Slot] | None:
        """The TaskManager and slot of an allocation."""
        return self._all.get(allocation_id)

    def add(self, taskmanager: TaskManagerSlots, slot: Slot) -> None:
        """Record that a job holds a slot."""
        taskmanager.slots[slot.index] = slot
        self._all[slot.allocation_id] = (taskmanager.name, slot)
        self._jobs.take(slot, taskmanager.name)

    def forget(self, slot: Slot) -> AllocationLost:
        """Remove an allocation."""
        name, _ = self._all.pop(slot.allocation_id, ("", slot))
        self._jobs.give_back(slot, name)
        return AllocationLost(slot.job_id, slot.allocation_id)

    def free(self, slot: Slot, *, doubted: bool = False) -> None:
        """Record that the slot is free."""
        self.forget(slot)
        slot.clear(doubted=doubted)

    def reconcile(self, taskmanager: TaskManagerSlots, report: SlotReport) -> list[Release | AllocationLost]:
        """Compare what a TaskManager says about its slots with the record, and correct what differs."""
        actions: list[Release | AllocationLost] = []
        reported = {each.slot: each for each in report.slots if 0 <= each.slot < MAX_SLOTS_PER_TASKMANAGER}
        for index in sorted(taskmanager.slots.keys() | reported.keys()):
            status = reported.get(index)
            if status is None:
                if index < taskmanager.defaults:
                    continue
                status = SlotStatus(slot=index, state=_FREE)  # a carved slot that no longer exists
            slot = taskmanager.slots.get(index) or Slot(index, status.profile or taskmanager.profile)
            actions += self._reconcile(taskmanager, slot, status)
        return actions

    def _reconcile(
        self, taskmanager: TaskManagerSlots, slot: Slot, status: SlotStatus
    ) -> list[Release | AllocationLost]:
        if slot.state is _FREE:
            if status.state is _FREE:
                slot.doubted = False
                return []
            return self._adopt_to_release(taskmanager, slot, status)
        if status.allocation_id == slot.allocation_id and status.state is not _FREE:
            return self._same_allocation(taskmanager.name, slot, status)
        if slot.state is _RELEASING:
            self.free(slot)
            return [] if status.state is _FREE else self._adopt_to_release(taskmanager, slot, status)
        if not slot.acknowledged:
            return []  # the request is on its way and its answer will tell
        lost = self.forget(slot)
        slot.clear()
        return [lost, *([] if status.state is _FREE else self._adopt_to_release(taskmanager, slot, status))]

    def _same_allocation(self, name: str, slot: Slot, status: SlotStatus) -> list[Release | AllocationLost]:
        slot.acknowledged = True
        if slot.state is _RELEASING:  # told before, but the message may have been lost
            return [] if status.state is _RELEASING else [Release(name, slot.allocation_id)]
        if status.state is _RELEASING:
            lost = self.forget(slot)
            self._all[slot.allocation_id] = (name, slot)
            slot.state = _RELEASING
            return [lost]
        slot.state = status.state
        return []

    def _adopt_to_release(
        self, taskmanager: TaskManagerSlots, slot: Slot, status: SlotStatus
    ) -> list[Release | AllocationLost]:
        """Release what the TaskManager holds and no job here knows."""
        slot.state, slot.allocation_id, slot.job_id = _RELEASING, status.allocation_id, status.job_id
        slot.acknowledged, slot.doubted = True, False
        slot.profile = status.profile or slot.profile
        taskmanager.slots[slot.index] = slot
        self._all[slot.allocation_id] = (taskmanager.name, slot)
        return [] if status.state is _RELEASING else [Release(taskmanager.name, status.allocation_id)]
