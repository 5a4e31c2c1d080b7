"""How many TaskManagers there should be, when they are started on demand. Decisions only.

Level-triggered like everything about slots: :meth:`Provision.decide` says how many should be in service, and the
resource provider compares that with the processes it has started. TaskManagers that have been idle for a while are
drained and leave by themselves; none is stopped, because it could have got a job a moment ago.

Where each TaskManager serves one job only, the slots that a job lacks are compared with its own TaskManagers, and those
of a job that is over leave soon.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from sluice.runtime.jobmanager.slots.slot_ledger import TaskManagerSlots
from sluice.runtime.messages import NO_RESOURCES, SlotProfile
from sluice.runtime.placement import missing_taskmanagers

RELEASED_SECONDS = 2.0
"""Seconds that the TaskManager of a job that is over stays: no other job may use it."""


@dataclass(frozen=True, slots=True)
class ProvisionLimits:
    """The limits of what may be started.

    Attributes:
        least, most: how many TaskManagers there are at any time.
        idle_timeout: seconds for which a TaskManager is idle before it is drained.
        size, drivers: what each one has for executors, and for drivers.
    """

    least: int
    most: int
    idle_timeout: float
    size: SlotProfile
    drivers: SlotProfile = NO_RESOURCES


@dataclass(frozen=True, slots=True)
class Demand:
    """For one kind of slots: what jobs lack, what each TaskManager has, and what a new one would have."""

    taskmanagers: Sequence[TaskManagerSlots]
    unmet: Iterable[tuple[SlotProfile, int]]
    size: SlotProfile


@dataclass(frozen=True, slots=True)
class DedicatedDemands:
    """The demand of each job, where each TaskManager serves one job only.

    Attributes:
        by_job: for each job the slots that it lacks of each kind, with its own TaskManagers.
        unused: the number of TaskManagers in service that belong to no job yet.
        over: the TaskManagers of jobs that are over.
    """

    by_job: Sequence[Sequence[Demand]]
    unused: int
    over: Collection[str]


@dataclass(frozen=True, slots=True)
class Provided:
    """``wanted`` TaskManagers should be in service, not counting draining ones; ``drain`` should leave.

    ``full``: jobs need more than the limit allows.
    """

    wanted: int
    drain: tuple[str, ...]
    full: bool = False


@dataclass
class Provision:
    """Compares what jobs lack with the TaskManagers there are."""

    limits: ProvisionLimits
    _idle_since: dict[str, float] = field(default_factory=dict)

    def decide(self, demands: Sequence[Demand], now: float, dedicated: DedicatedDemands | None = None) -> Provided:
        """Decide how many TaskManagers should be in service, and which should leave."""
        limits = self.limits
        serving = [each.name for each in demands[0].taskmanagers if not each.draining]
        if dedicated is None:
            lacking, over = max(_lacking(each, limits.most + 1) for each in demands), frozenset[str]()
        else:
            wanted = sum(max(_lacking(each, limits.most + 1) for each in job) for job in dedicated.by_job)
            lacking, over = max(0, wanted - dedicated.unused), frozenset(dedicated.over)
        busy = {each.name for demand in demands for each in demand.taskmanagers if not each.empty_of_slots}
        idle = [name for name in serving if name not in busy]
        self._idle_since = {name: self._idle_since.get(name, now) for name in idle}
        rested = {name: now - since for name, since in self._idle_since.items()}
        useless = tuple(sorted(name for name in idle if name in over and rested[name] >= RELEASED_SECONDS))
        remaining = len(serving) - len(useless)
        if lacking:
            enough = remaining + lacking
            return Provided(max(limits.least, min(limits.most, enough)), useless, full=enough > limits.most)
        old = [name for name in idle if name not in useless and rested[name] >= limits.idle_timeout]
        drain = tuple(sorted(old, key=_newest_first)[: max(0, remaining - limits.least)])
        return Provided(max(limits.least, remaining - len(drain)), useless + drain)


def _lacking(demand: Demand, most: int) -> int:
    free = [each.free_total for each in demand.taskmanagers if not each.draining]
    return missing_taskmanagers(demand.unmet, free, demand.size, most)


def _newest_first(name: str) -> tuple[int, str]:
    """The TaskManagers with the highest numbers, so that names stay small."""
    number = name.rpartition("-")[2]
    return (-int(number) if number.isdecimal() and len(number) < 10 else 0, name)
