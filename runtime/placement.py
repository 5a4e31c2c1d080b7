"""On which TaskManager a slot is carved: the order in which those with room are tried. Decisions only.

``spread`` asks where the job has least, so that a lost TaskManager costs it least, then where most is left. ``pack`` is
best fit: the TaskManager that has least left over, so that large requests find room and idle TaskManagers stay idle.
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
"""The lowest is tried first; the name makes it definite."""


def rank(placement: Placement, *, name: str, held: int, free: SlotProfile, wanted: SlotProfile) -> Rank:
    """The rank of a TaskManager that has ``free``, of which ``held`` slots are the job's, for a slot of ``wanted``."""
    left = free.less(wanted)
    if placement is Placement.PACK:
        return (_share(left.cores, wanted.cores) + _share(left.memory_mb, wanted.memory_mb), held, name)
    return (held, -free.times(wanted), name)


def _share(left: int, wanted: int) -> float:
    """What is left, in units of what is wanted, so that cores and memory can be added."""
    return left / max(1, wanted)


def missing_taskmanagers(
    wanted: Iterable[tuple[SlotProfile, int]], free: Iterable[SlotProfile], each: SlotProfile, most: int
) -> int:
    """How many TaskManagers of the size ``each`` have to be started so that ``wanted`` finds room, ``most`` of them.

    First fit, the largest first: within 22 % of the least possible number (Dósa, "The tight bound of first fit
    decreasing", 2007). What does not fit into an empty one is left out, since no number of them would help.
    """
    rooms, started = list(free), 0
    for profile, count in sorted(wanted, key=lambda pair: (pair[0].memory_mb, pair[0].cores), reverse=True):
        if not each.fits(profile):
            continue
        for _ in range(count):
            index = next((number for number, room in enumerate(rooms) if room.fits(profile)), len(rooms))
            if index == len(rooms):
                if started >= most:
                    break  # however many more are wanted
                rooms.append(each)
                started += 1
            rooms[index] = rooms[index].less(profile)
    return started
