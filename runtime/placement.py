"""Decides on which TaskManager a slot is carved: the order in which those with room are tried. No I/O.

``spread`` prefers the TaskManager with the fewest slots of the job, so that the loss of one costs it least, then the
one with the most free resources. ``pack`` is best fit: it prefers the TaskManager with the least resources left over,
so that large requests find room and idle TaskManagers stay idle.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from sluice.runtime.messages import SlotProfile


class Placement(enum.StrEnum):
    """How to choose among TaskManagers that have room."""

    SPREAD = "spread"
    PACK = "pack"


Rank = tuple[float, float, str]
"""Sort key: the lowest rank is tried first. The name breaks ties."""


def rank(placement: Placement, *, name: str, held: int, free: SlotProfile, wanted: SlotProfile) -> Rank:
    """Rank a TaskManager with ``free`` resources, on which the job holds ``held`` slots, for a slot of ``wanted``."""
    left = free.less(wanted)
    if placement is Placement.PACK:
        return (_share(left.cores, wanted.cores) + _share(left.memory_mb, wanted.memory_mb), held, name)
    return (held, -free.times(wanted), name)


def _share(left: int, wanted: int) -> float:
    """The rest in units of the request, so that cores and memory can be added."""
    return left / max(1, wanted)


def missing_taskmanagers(
    wanted: Iterable[tuple[SlotProfile, int]], free: Iterable[SlotProfile], each: SlotProfile, most: int
) -> int:
    """How many TaskManagers of the size ``each`` to start so that ``wanted`` finds room; at most ``most``.

    This is first fit decreasing, which needs at most 22 % more than the minimum (Dósa, "The tight bound of first fit
    decreasing", 2007). Requests that do not fit into an empty TaskManager are ignored, since no number would help.
    """
    rooms, started = list(free), 0
    for profile, count in sorted(wanted, key=lambda pair: (pair[0].memory_mb, pair[0].cores), reverse=True):
        if not each.fits(profile):
            continue
        for _ in range(count):
            index = next((number for number, room in enumerate(rooms) if room.fits(profile)), len(rooms))
            if index == len(rooms):
                if started >= most:
                    break  # the rest of this size finds no room either
                rooms.append(each)
                started += 1
            rooms[index] = rooms[index].less(profile)
    return started
