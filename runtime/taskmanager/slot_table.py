"""The slots of one kind of a TaskManager: the holder and state of each. Decisions only; no I/O.

The first slots are default slots of equal size. A slot of another size is carved out of the free resources when it is
requested, gets a number after the default slots, and is removed when it is freed (Flink's dynamic slots, FLIP-56).
Default slots use the same resources, so a free default slot may lack resources that carved slots hold.

States are as in Flink's ``TaskSlotState``: FREE, ALLOCATED (reserved, offered to its job), ACTIVE (the job took it),
RELEASING (its processes are being ended).
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
    """One slot. ``request`` is None exactly while it is FREE. A ``carved`` slot exists only while it is held."""

    index: int
    profile: SlotProfile
    carved: bool = False
    state: SlotState = SlotState.FREE
    request: SlotRequest | None = None

    @property
    def status(self) -> SlotStatus:
        """The status of the slot for reports."""
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
        count: number of default slots.
        profile: size of a default slot.
        total: all resources of the table; by default the sum of the default slots.
    """

    def __init__(self, count: int, profile: SlotProfile, total: SlotProfile | None = None) -> None:
        self._total = total or profile.multiplied(count)
        self.draining = False
        self._slots = {index: TaskSlot(index, profile) for index in range(count)}

    def reserve(self, request: SlotRequest) -> bool:
        """Allocate a slot; False if this allocation has it already. Raises :class:`SlotNotAvailable`."""
        if not 0 <= request.slot < MAX_SLOTS_PER_TASKMANAGER:
            raise SlotNotAvailable(f"there is no slot {request.slot}: the maximum is {MAX_SLOTS_PER_TASKMANAGER} slots")
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
        """The resources that no held slot uses."""
        used = NO_RESOURCES
        for slot in self._slots.values():
            if slot.request is not None:
                used = used.plus(slot.profile)
        return self._total.less(used)

    def activate(self, allocation_id: str) -> TaskSlot:
        """Note that the job took the slot; raises :class:`AllocationUnknown` if it was freed or is being released."""
        slot = self.find(allocation_id)
        if slot is None or slot.state is SlotState.RELEASING:
            raise AllocationUnknown(f"no slot is held by allocation {allocation_id[:64]}")
        slot.state = SlotState.ACTIVE
        return slot

    def release(self, allocation_id: str) -> TaskSlot | None:
        """Mark a slot whose processes are to be ended; None if there is no such slot."""
        slot = self.find(allocation_id)
        if slot is not None:
            slot.state = SlotState.RELEASING
        return slot

    def freed(self, allocation_id: str) -> None:
        """Free a slot after the end of its processes."""
        slot = self.find(allocation_id)
        if slot is not None:
            slot.state, slot.request = SlotState.FREE, None
            if slot.carved:
                del self._slots[slot.index]

    def find(self, allocation_id: str) -> TaskSlot | None:
        """The slot of an allocation; None if there is none."""
        return next(
            (s for s in self._slots.values() if s.request is not None and s.request.allocation_id == allocation_id),
            None,
        )

    def of_job(self, job_id: str) -> tuple[SlotRequest, ...]:
        """The requests of all slots that a job holds."""
        return tuple(s.request for s in self._slots.values() if s.request is not None and s.request.job_id == job_id)

    def held(self) -> tuple[SlotRequest, ...]:
        """The requests of all slots that are not free."""
        return tuple(slot.request for slot in self._slots.values() if slot.request is not None)

    def active(self) -> tuple[TaskSlot, ...]:
        """Slots that jobs have taken."""
        return tuple(slot for slot in self._slots.values() if slot.state is SlotState.ACTIVE)

    def report(self) -> SlotReport:
        """The current state of all slots."""
        return SlotReport(slots=tuple(slot.status for slot in self._slots.values()), draining=self.draining)
