"""The slots of one TaskManager: who holds each, and in which state. Decisions only; no I/O.

States as Flink's ``TaskSlotState``: FREE, ALLOCATED (reserved, offered to its job), ACTIVE (the job took it),
RELEASING (what runs in it is being ended).
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.messages import SlotReport, SlotRequest, SlotState, SlotStatus
from runtime.taskmanager.errors import AllocationUnknown, SlotNotAvailable


@dataclass(slots=True)
class TaskSlot:
    """One slot; ``request`` is None exactly while it is FREE."""

    index: int
    state: SlotState = SlotState.FREE
    request: SlotRequest | None = None

    @property
    def status(self) -> SlotStatus:
        """As it is reported."""
        if self.request is None:
            return SlotStatus(slot=self.index, state=self.state)
        return SlotStatus(
            slot=self.index,
            state=self.state,
            allocation_id=self.request.allocation_id,
            job_id=self.request.job_id,
        )


class SlotTable:
    """All slots of a TaskManager."""

    def __init__(self, count: int) -> None:
        self._slots = tuple(TaskSlot(index) for index in range(count))

    def reserve(self, request: SlotRequest) -> bool:
        """Allocate a slot; False when this very allocation has it already. Raises :class:`SlotNotAvailable`."""
        if not 0 <= request.slot < len(self._slots):
            raise SlotNotAvailable(f"there is no slot {request.slot}, only {len(self._slots)}")
        slot = self._slots[request.slot]
        if slot.request is not None and slot.request.allocation_id == request.allocation_id:
            return False
        if slot.state is not SlotState.FREE:
            raise SlotNotAvailable(f"slot {request.slot} is {slot.state}")
        slot.state, slot.request = SlotState.ALLOCATED, request
        return True

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
        """Nothing runs in the slot any more."""
        slot = self.find(allocation_id)
        if slot is not None:
            slot.state, slot.request = SlotState.FREE, None

    def find(self, allocation_id: str) -> TaskSlot | None:
        """The slot of an allocation."""
        return next(
            (s for s in self._slots if s.request is not None and s.request.allocation_id == allocation_id), None
        )

    def of_job(self, job_id: str) -> tuple[SlotRequest, ...]:
        """What a job holds."""
        return tuple(s.request for s in self._slots if s.request is not None and s.request.job_id == job_id)

    def held(self) -> tuple[SlotRequest, ...]:
        """Everything that is not free."""
        return tuple(slot.request for slot in self._slots if slot.request is not None)

    def report(self) -> SlotReport:
        """All slots as they are now."""
        return SlotReport(slots=tuple(slot.status for slot in self._slots))
