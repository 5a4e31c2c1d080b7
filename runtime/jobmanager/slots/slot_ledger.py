"""The ResourceManager's record of slots, and the actions that ``SlotManager`` decides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeVar

from sluice.runtime.messages import MAX_SLOTS_PER_TASKMANAGER, NO_RESOURCES, SlotProfile, SlotRequest, SlotState

_K = TypeVar("_K", bound=Hashable)


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

    ``acknowledged``: the TaskManager has confirmed the reservation. ``doubted``: it refused one; this number is not
    used again until it reports the slot as free. A doubted slot belongs to no job, and uses no capacity.
    """

    index: int
    profile: SlotProfile
    state: SlotState = SlotState.FREE
    allocation_id: str = ""
    job_id: str = ""
    acknowledged: bool = False
    doubted: bool = False

    def clear(self, *, doubted: bool = False) -> None:
        """Make the slot free."""
        self.state, self.allocation_id, self.job_id = SlotState.FREE, "", ""
        self.acknowledged, self.doubted = False, doubted

    @property
    def usable(self) -> bool:
        """Free, and believed to be."""
        return self.state is SlotState.FREE and not self.doubted


@dataclass(slots=True)
class TaskManagerSlots:
    """A registered TaskManager: its default slots, of one profile, and those carved out of its total capacity.

    The numbers of default slots are below ``defaults``; a carved slot is recorded as long as it is not usable.
    """

    name: str
    host: str
    profile: SlotProfile
    total: SlotProfile
    defaults: int
    slots: dict[int, Slot]
    free_total: SlotProfile
    """The capacity that no slot uses."""
    draining: bool = False
    """No job gets a slot of it."""

    @classmethod
    def empty(
        cls, name: str, host: str, defaults: int, profile: SlotProfile, total: SlotProfile | None
    ) -> TaskManagerSlots:
        """A TaskManager without held slots; ``total`` is by default the sum of the default slots."""
        whole = total or profile.multiplied(defaults)
        return cls(name, host, profile, whole, defaults, {i: Slot(i, profile) for i in range(defaults)}, whole)

    @property
    def free(self) -> int:
        """The number of default slots that a job could get."""
        if self.draining:
            return 0
        usable = sum(self.slots[index].usable for index in range(self.defaults))
        return min(usable, self.free_total.times(self.profile))

    @property
    def empty_of_slots(self) -> bool:
        """Whether no slot is held, or doubted."""
        return all(slot.usable for slot in self.slots.values())

    def slot_for(self, profile: SlotProfile) -> Slot | None:
        """A usable slot of that size, not yet taken: a default slot when the size is theirs, else a new one."""
        if profile == self.profile:
            for index in range(self.defaults):
                if self.slots[index].usable:
                    return self.slots[index]
        unused = (i for i in range(self.defaults, MAX_SLOTS_PER_TASKMANAGER) if i not in self.slots)
        number = next(unused, None)
        return None if number is None else Slot(number, profile)

    def tidy(self) -> SlotProfile:
        """Drop carved slots that are free again; returns the recomputed :attr:`free_total`."""
        used = NO_RESOURCES
        for index, slot in list(self.slots.items()):
            if slot.state is not SlotState.FREE:
                used = used.plus(slot.profile)
            elif index >= self.defaults and not slot.doubted:
                del self.slots[index]
        self.free_total = self.total.less(used)
        return self.free_total


@dataclass(slots=True)
class Holdings:
    """What a job holds: its allocations, counted by TaskManager and by size."""

    allocations: set[str] = field(default_factory=set)
    spread: Counter[str] = field(default_factory=Counter)
    by_profile: Counter[SlotProfile] = field(default_factory=Counter)

    def add(self, slot: Slot, taskmanager: str) -> None:
        """Count the slot as the job's."""
        self.allocations.add(slot.allocation_id)
        self.spread[taskmanager] += 1
        self.by_profile[slot.profile] += 1

    def discard(self, slot: Slot, taskmanager: str) -> None:
        """Count the slot as the job's no longer."""
        if slot.allocation_id in self.allocations:
            self.allocations.remove(slot.allocation_id)
            _one_less(self.spread, taskmanager)
            _one_less(self.by_profile, slot.profile)


def _one_less(counter: Counter[_K], key: _K) -> None:
    """Subtract one and drop zeros; ``-=`` of a Counter would scan all keys."""
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
