"""How many TaskManagers are started on demand, and which go."""

from __future__ import annotations

import itertools

from sluice.runtime.jobmanager.gateways import SlotRequirement
from sluice.runtime.jobmanager.slots.provision import Demand, Provided, Provision, ProvisionLimits
from sluice.runtime.jobmanager.slots.slot_manager import SlotManager
from sluice.runtime.messages import SlotCount, SlotProfile

SLOT = SlotProfile(cores=1, memory_mb=512)
TASKMANAGER = SlotProfile(cores=2, memory_mb=1024)
NOW = 1000.0


def provision(least: int = 0, most: int = 3) -> Provision:
    """Return a provision whose TaskManagers have two default slots and leave after ten idle seconds."""
    return Provision(ProvisionLimits(least, most, 10.0, TASKMANAGER))


def manager(*names: str) -> SlotManager:
    """Return a slot manager with the named TaskManagers registered."""
    numbers = itertools.count(1)
    slots = SlotManager(lambda: f"alloc-{next(numbers)}")
    for name in names:
        slots.register(name, "h", 2, SLOT)
    return slots


def wants(slots: SlotManager, count: int, profile: SlotProfile = SLOT) -> None:
    """Let a job require slots, and grant what is free."""
    slots.require(SlotRequirement("job", (SlotCount(profile, count),), "jobmaster/job", b"t"))
    slots.decide()


def decide(what: Provision, slots: SlotManager, now: float = NOW) -> Provided:
    """Decide what to provide, as the ResourceManager does."""
    return what.decide([Demand(slots.taskmanagers, slots.unmet(), TASKMANAGER)], now)


def test_as_many_taskmanagers_are_wanted_as_slots_require_within_the_bounds() -> None:
    slots = manager()
    assert decide(provision(), slots) == Provided(0, ())
    assert decide(provision(least=1), slots) == Provided(1, ())
    wants(slots, 3)
    assert decide(provision(), slots) == Provided(2, ())
    wants(slots, 9)
    assert decide(provision(), slots) == Provided(3, (), full=True)


def test_no_more_taskmanagers_are_wanted_while_the_wanted_ones_start() -> None:
    slots = manager("taskmanager-1")
    wants(slots, 5)
    assert [decide(provision(), slots).wanted for _ in range(3)] == [3, 3, 3]


def test_a_slot_that_fits_into_no_taskmanager_starts_none() -> None:
    slots = manager()
    wants(slots, 1, SlotProfile(cores=64, memory_mb=512))
    assert decide(provision(), slots) == Provided(0, ())


def test_idle_taskmanagers_are_drained_after_a_while_down_to_the_minimum() -> None:
    slots = manager("taskmanager-1", "taskmanager-2", "taskmanager-10")
    some = provision(least=1)
    assert decide(some, slots) == Provided(3, ())
    assert decide(some, slots, NOW + 9) == Provided(3, ())
    assert decide(some, slots, NOW + 10) == Provided(1, ("taskmanager-10", "taskmanager-2"))


def test_a_taskmanager_that_was_used_in_between_is_idle_only_from_then_on() -> None:
    slots = manager("taskmanager-1")
    one = provision()
    decide(one, slots)
    wants(slots, 1)
    assert decide(one, slots, NOW + 20) == Provided(1, ())
    for release in slots.release_job("job"):
        slots.freed(release.allocation_id)
    assert decide(one, slots, NOW + 21) == Provided(1, ())
    assert decide(one, slots, NOW + 31) == Provided(0, ("taskmanager-1",))


def test_draining_taskmanagers_do_not_count_as_provided() -> None:
    slots = manager("taskmanager-1", "taskmanager-2")
    slots.drain("taskmanager-1")
    wants(slots, 4)
    assert decide(provision(), slots) == Provided(2, ())
