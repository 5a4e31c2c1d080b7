"""How many TaskManagers there should be, when they are started on demand. Decisions only.

Level-triggered like everything about slots: :meth:`Provision.decide` says how many should be in service, and whoever
starts processes compares that with those it has started. TaskManagers in which nothing has been held for a while are
drained, and so leave by themselves; nobody is stopped who could have been given a slot a moment ago.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sluice.runtime.jobmanager.slots.slot_ledger import TaskManagerSlots
from sluice.runtime.messages import SlotProfile
from sluice.runtime.placement import missing_taskmanagers


@dataclass(frozen=True, slots=True)
class ProvisionLimits:
    """What may be started.

    Attributes:
        least, most: how many TaskManagers there are at any time.
        idle_timeout: seconds for which one holds nothing before it goes.
        size: what each of them has.
    """

    least: int
    most: int
    idle_timeout: float
    size: SlotProfile


@dataclass(frozen=True, slots=True)
class Provided:
    """``wanted`` TaskManagers should be in service, those that drain not counted; ``drain`` are to go."""

    wanted: int
    drain: tuple[str, ...]


@dataclass
class Provision:
    """See the module's documentation."""

    limits: ProvisionLimits
    _idle_since: dict[str, float] = field(default_factory=dict)

    def decide(
        self, taskmanagers: Sequence[TaskManagerSlots], unmet: Iterable[tuple[SlotProfile, int]], now: float
    ) -> Provided:
        """Compare what jobs lack (``unmet``) with what there is."""
        limits = self.limits
        serving = [each for each in taskmanagers if not each.draining]
        lacking = missing_taskmanagers(unmet, [each.free_total for each in serving], limits.size, limits.most)
        idle = [each.name for each in serving if each.empty_of_slots]
        self._idle_since = {name: self._idle_since.get(name, now) for name in idle}
        if lacking:
            return Provided(max(limits.least, min(limits.most, len(serving) + lacking)), ())
        over = [name for name in idle if now - self._idle_since[name] >= limits.idle_timeout]
        drain = tuple(sorted(over, key=_newest_first)[: max(0, len(serving) - limits.least)])
        return Provided(max(limits.least, len(serving) - len(drain)), drain)


def _newest_first(name: str) -> tuple[int, str]:
    """Those with the highest numbers, so that names stay small."""
    number = name.rpartition("-")[2]
    return (-int(number) if number.isdecimal() and len(number) < 10 else 0, name)
