"""All slots of one TaskManager: one table of executor slots and one of driver slots."""

from __future__ import annotations

import msgspec

from sluice.runtime.messages import SlotKind, SlotReport, SlotRequest
from sluice.runtime.taskmanager.slot_table import SlotTable, TaskSlot


class SlotTables:
    """One :class:`SlotTable` per kind of slot. An allocation is in at most one of them."""

    def __init__(self, executors: SlotTable, drivers: SlotTable) -> None:
        self._tables = {SlotKind.EXECUTOR: executors, SlotKind.DRIVER: drivers}

    @property
    def draining(self) -> bool:
        """Whether the TaskManager is draining: it allocates no more slots."""
        return self._tables[SlotKind.EXECUTOR].draining

    @draining.setter
    def draining(self, draining: bool) -> None:
        for table in self._tables.values():
            table.draining = draining

    def reserve(self, request: SlotRequest) -> bool:
        """As :meth:`SlotTable.reserve`."""
        return self._tables[request.kind].reserve(request)

    def activate(self, allocation_id: str) -> TaskSlot:
        """As :meth:`SlotTable.activate`."""
        return self._of(allocation_id).activate(allocation_id)

    def release(self, allocation_id: str) -> TaskSlot | None:
        """As :meth:`SlotTable.release`."""
        return self._of(allocation_id).release(allocation_id)

    def freed(self, allocation_id: str) -> None:
        """As :meth:`SlotTable.freed`."""
        self._of(allocation_id).freed(allocation_id)

    def find(self, allocation_id: str) -> TaskSlot | None:
        """The slot of an allocation; None if there is none."""
        return self._of(allocation_id).find(allocation_id)

    def of_job(self, job_id: str) -> tuple[SlotRequest, ...]:
        """The requests of all slots that a job holds."""
        return tuple(request for table in self._tables.values() for request in table.of_job(job_id))

    def held(self) -> tuple[SlotRequest, ...]:
        """The requests of all slots that are not free."""
        return tuple(request for table in self._tables.values() for request in table.held())

    def active(self) -> tuple[TaskSlot, ...]:
        """Slots that jobs have taken."""
        return tuple(slot for table in self._tables.values() for slot in table.active())

    def report(self) -> SlotReport:
        """The current state of all slots."""
        drivers = self._tables[SlotKind.DRIVER].report()
        return msgspec.structs.replace(self._tables[SlotKind.EXECUTOR].report(), driver_slots=drivers.slots)

    def _of(self, allocation_id: str) -> SlotTable:
        drivers = self._tables[SlotKind.DRIVER]
        return drivers if drivers.find(allocation_id) is not None else self._tables[SlotKind.EXECUTOR]
