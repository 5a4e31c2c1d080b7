"""How many TaskManagers there should be, when they are started on demand. Decisions only.

Level-triggered like everything about slots: :meth:`Provision.decide` says how many should be in service, and whoever
starts processes compares that with those it has started. TaskManagers in which nothing has been held for a while are
drained, and so leave by themselves; nobody is stopped who could have been given a slot a moment ago.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sluice.runtime.jobmanager.slots.slot_ledger import TaskManagerSlots
from sluice.runtime.messages import NO_RESOURCES, SlotProfile
from sluice.runtime.placement import missing_taskmanagers


@dataclass(frozen=True, slots=True)
class ProvisionLimits:
    """What may be started.

    Attributes:
        least, most: how many TaskManagers there are at any time.
        idle_timeout: seconds for which one holds nothing before it goes.
        size, drivers: what each of them has for executors, and for drivers.
    """

    least: int
    most: int
    idle_timeout: float
    size: SlotProfile
    drivers: SlotProfile = NO_RESOURCES


@dataclass(frozen=True, slots=True)
class Demand:
    """What jobs lack of one kind of slots, the TaskManagers by what they have of it, and what a new one has."""

    taskmanagers: Sequence[TaskManagerSlots]
    unmet: Iterable[tuple[SlotProfile, int]]
    size: SlotProfile


@dataclass(frozen=True, slots=True)
class Provided:
    """``wanted`` TaskManagers should be in service, those that drain not counted; ``drain`` are to go."""

    wanted: int
    drain: tuple[str, ...]


@dataclass
class Provision:
    """Compares what jobs lack with the TaskManagers there are."""

    limits: ProvisionLimits
    _idle_since: dict[str, float] = field(default_factory=dict)

    def decide(self, demands: Sequence[Demand], now: float) -> Provided:
        """Compare what jobs lack with what there is, for each kind of slots."""
        limits = self.limits
        serving = [each.name for each in demands[0].taskmanagers if not each.draining]
        lacking = max(_lacking(each, limits.most) for each in demands)
        busy = {each.name for demand in demands for each in demand.taskmanagers if not each.empty_of_slots}
        idle = [name for name in serving if name not in busy]
        self._idle_since = {name: self._idle_since.get(name, now) for name in idle}
        if lacking:
            return Provided(max(limits.least, min(limits.most, len(serving) + lacking)), ())
        over = [name for name in idle if now - self._idle_since[name] >= limits.idle_timeout]
        drain = tuple(sorted(over, key=_newest_first)[: max(0, len(serving) - limits.least)])
        return Provided(max(limits.least, len(serving) - len(drain)), drain)


def _lacking(demand: Demand, most: int) -> int:
    free = [each.free_total for each in demand.taskmanagers if not each.draining]
    return missing_taskmanagers(demand.unmet, free, demand.size, most)


def _newest_first(name: str) -> tuple[int, str]:
    """The TaskManagers with the highest numbers, so that names stay small."""
    number = name.rpartition("-")[2]
    return (-int(number) if number.isdecimal() and len(number) < 10 else 0, name)
