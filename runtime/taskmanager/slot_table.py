"""The slots of one kind of a TaskManager: who holds each, and in which state. Decisions only; no I/O.

The first are default slots, all of one size. A slot of any other size is carved out of what is free when it is
requested, under a number beyond theirs, and is gone when it is freed (Flink's dynamic slots, FLIP-56). Default slots
take from the same resources: one that is free may be without, because carved slots have them.

States as Flink's ``TaskSlotState``: FREE, ALLOCATED (reserved, offered to its job), ACTIVE (the job took it),
RELEASING (what runs in it is being ended).
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.runtime.messages import (
    MAX_SLOTS_PER_TASKMANAGER,
    NO_RESOURCES,
    SlotProfile,
    SlotReport,
    SlotRequest,
    SlotState,
    SlotStatus,
)
from sluice.runtime.taskmanager.errors import AllocationUnknown, SlotNotAvailable


@dataclass(slots=True)
class TaskSlot:
    """One slot; ``request`` is None exactly while it is FREE. ``carved``: it exists only while it is held."""

    index: int
    profile: SlotProfile
    carved: bool = False
    state: SlotState = SlotState.FREE
    request: SlotRequest | None = None

    @property
    def status(self) -> SlotStatus:
        """The slot as it is reported."""
        if self.request is None:
            return SlotStatus(slot=self.index, state=self.state)
        return SlotStatus(
            slot=self.index,
            state=self.state,
            allocation_id=self.request.allocation_id,
            job_id=self.request.job_id,
            profile=self.profile if self.carved else None,
        )


class SlotTable:
    """All slots of one kind.

    Args:
        count, profile: its default slots.
        total: what it has in all; by default what those have together.
    """

    def __init__(self, count: int, profile: SlotProfile, total: SlotProfile | None = None) -> None:
        self._total = total or profile.multiplied(count)
        self.draining = False
        self._slots = {index: TaskSlot(index, profile) for index in range(count)}

    def reserve(self, request: SlotRequest) -> bool:
        """Allocate a slot; False when this very allocation has it already. Raises :class:`SlotNotAvailable`."""
        if not 0 <= request.slot < MAX_SLOTS_PER_TASKMANAGER:
            raise SlotNotAvailable(f"there is no slot {request.slot}, only {MAX_SLOTS_PER_TASKMANAGER}")
        slot = self._slots.get(request.slot)
        if slot is not None and slot.request is not None:
            if slot.request.allocation_id == request.allocation_id:
                return False
            raise SlotNotAvailable(f"slot {request.slot} is {slot.state}")
        if self.draining:
            raise SlotNotAvailable("this TaskManager is being drained")
        wanted = request.profile
        if slot is not None and wanted != slot.profile:
            raise SlotNotAvailable(f"slot {request.slot} is a default slot, of {slot.profile} and not {wanted}")
        if wanted.cores < 1 or wanted.memory_mb < 1 or not self.free.fits(wanted):
            raise SlotNotAvailable(f"{wanted} cannot be carved out of {self.free}")
        slot = slot or TaskSlot(request.slot, wanted, carved=True)
        slot.state, slot.request = SlotState.ALLOCATED, request
        self._slots[request.slot] = slot
        return True

    @property
    def free(self) -> SlotProfile:
        """What no slot has that is held."""
        used = NO_RESOURCES
        for slot in self._slots.values():
            if slot.request is not None:
                used = used.plus(slot.profile)
        return self._total.less(used)

    def activate(self, allocation_id: str) -> TaskSlot:
        """The job has taken the slot; raises :class:`AllocationUnknown` when it is gone or being released."""
        slot = self.find(allocation_id)
        if slot is None or slot.state is SlotState.RELEASING:
            raise AllocationUnknown(f"no slot is held by allocation {allocation_id[:64]}")
        slot.state = SlotState.ACTIVE
        return slot

    def release(self, allocation_id: str) -> TaskSlot | None:
        """What runs in the slot is to end; None when there is nothing to release."""
        slot = self.find(allocation_id)
        if slot is not None:
            slot.state = SlotState.RELEASING
        return slot

    def freed(self, allocation_id: str) -> None:
        """Note that nothing runs in the slot any more."""
        slot = self.find(allocation_id)
        if slot is not None:
            slot.state, slot.request = SlotState.FREE, None
            if slot.carved:
                del self._slots[slot.index]

    def find(self, allocation_id: str) -> TaskSlot | None:
        """The slot of an allocation."""
        return next(
            (s for s in self._slots.values() if s.request is not None and s.request.allocation_id == allocation_id),
            None,
        )

    def of_job(self, job_id: str) -> tuple[SlotRequest, ...]:
        """What a job holds."""
        return tuple(s.request for s in self._slots.values() if s.request is not None and s.request.job_id == job_id)

    def held(self) -> tuple[SlotRequest, ...]:
        """Everything that is not free."""
        return tuple(slot.request for slot in self._slots.values() if slot.request is not None)

    def active(self) -> tuple[TaskSlot, ...]:
        """Slots that jobs have taken."""
        return tuple(slot for slot in self._slots.values() if slot.state is SlotState.ACTIVE)

    def report(self) -> SlotReport:
        """All slots as they are now."""
        return SlotReport(slots=tuple(slot.status for slot in self._slots.values()), draining=self.draining)
