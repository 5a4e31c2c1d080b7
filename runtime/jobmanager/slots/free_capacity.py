"""TaskManagers with free capacity, grouped by its size.

The time to find a slot grows with the number of different free sizes, not with the number of TaskManagers.
"""

from __future__ import annotations

from collections.abc import Iterator

from sluice.runtime.jobmanager.slots.slot_ledger import TaskManagerSlots
from sluice.runtime.messages import NO_RESOURCES, SlotProfile


class FreeCapacity:
    """All TaskManagers that slots may be made on."""

    def __init__(self) -> None:
        self._by_size: dict[SlotProfile, dict[str, TaskManagerSlots]] = {}
        self._size_of: dict[str, SlotProfile] = {}

    def __bool__(self) -> bool:
        return bool(self._by_size)

    def changed(self, taskmanager: TaskManagerSlots) -> None:
        """Update the free capacity of a TaskManager."""
        free = taskmanager.tidy()
        self.remove(taskmanager.name)
        if free.cores and free.memory_mb and not taskmanager.draining:
            self._by_size.setdefault(free, {})[taskmanager.name] = taskmanager
            self._size_of[taskmanager.name] = free

    def remove(self, name: str) -> None:
        """Remove a TaskManager: it is gone, or has nothing free."""
        free = self._size_of.pop(name, NO_RESOURCES)
        with_capacity = self._by_size.get(free, {})
        with_capacity.pop(name, None)
        if not with_capacity:
            self._by_size.pop(free, None)

    def fits(self, profile: SlotProfile) -> bool:
        """Whether a slot of that size could be made somewhere."""
        return any(free.fits(profile) for free in self._by_size)

    def fitting(self, profile: SlotProfile) -> Iterator[TaskManagerSlots]:
        """The TaskManagers on which a slot of that size could be made."""
        for free, taskmanagers in self._by_size.items():
            if free.fits(profile):
                yield from taskmanagers.values()

    def largest_first(self) -> Iterator[TaskManagerSlots]:
        """All of them, those with the most memory free first."""
        for free in sorted(self._by_size, key=lambda free: (free.memory_mb, free.cores), reverse=True):
            yield from self._by_size[free].values()

    def sizes(self) -> dict[str, SlotProfile]:
        """The free capacity of each TaskManager."""
        return dict(self._size_of)
