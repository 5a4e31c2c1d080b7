"""Slots for executors and for drivers are two pools: neither kind takes what the other needs."""

from __future__ import annotations

import itertools

from sluice.runtime.jobmanager.gateways import SlotRequirement
from sluice.runtime.jobmanager.slots.provision import Provision, ProvisionLimits
from sluice.runtime.jobmanager.slots.slot_pools import SlotPools
from sluice.runtime.messages import SlotCount, SlotKind, SlotProfile, TaskManagerRegistration
from sluice.runtime.placement import Placement

EXECUTOR = SlotProfile(cores=1, memory_mb=768)
DRIVER = SlotProfile(cores=1, memory_mb=512)


def pools(*names: str, drivers: int = 1, executors: int = 1) -> SlotPools:
    numbers = itertools.count(1)
    made = SlotPools(lambda: f"a-{next(numbers)}", placement=Placement.SPREAD)
    for name in names:
        made.register(
            TaskManagerRegistration(
                name=name, host="h", slots=executors, profile=EXECUTOR, python="p", version="0",
                driver_slots=drivers, driver_profile=DRIVER,
            )
        )  # fmt: skip
    return made


def requirement(job: str, kind: SlotKind, count: int = 1) -> SlotRequirement:
    profile = DRIVER if kind is SlotKind.DRIVER else EXECUTOR
    return SlotRequirement(
        job_id=job, wanted=(SlotCount(profile, count),), jobmaster_endpoint="m", jobmaster_token=b"t", kind=kind
    )


def test_more_drivers_than_slots_leave_all_slots_to_executors() -> None:
    """In one pool, each of two jobs would hold a driver and wait for an executor for ever."""
    slots = pools("tm-1", "tm-2")
    for job in ("one", "two", "three"):
        slots.require(requirement(job, SlotKind.DRIVER))
    given = slots.decide()
    assert [(each.request.job_id, each.request.kind) for each in given] == [
        ("one", SlotKind.DRIVER),
        ("two", SlotKind.DRIVER),
    ]
    assert {each.taskmanager for each in given} == {"tm-1", "tm-2"}, "spread"
    assert slots.pending_reason(requirement("three", SlotKind.DRIVER)) == (
        "no slot for its driver: all fitting slots are in use"
    )
    slots.require(requirement("one", SlotKind.EXECUTOR, 2))
    assert len(slots.decide()) == 2


def test_a_lost_taskmanager_loses_slots_of_both_kinds() -> None:
    slots = pools("tm-1")
    for kind in SlotKind:
        slots.require(requirement("one", kind))
    assert len(slots.decide()) == 2
    assert [each.job_id for each in slots.lost("tm-1")] == ["one", "one"]


def test_draining_a_taskmanager_waits_for_its_driver_to_end() -> None:
    slots = pools("tm-1", "tm-2")
    slots.require(requirement("one", SlotKind.DRIVER))
    (given,) = slots.decide()
    assert slots.drain(given.taskmanager, draining=True) == {}, "nothing is told to move"
    assert slots.decide() == [], "no second slot for the same driver"
    assert not slots.drained(given.taskmanager)
    (release,) = slots.release_job("one")
    slots.freed(release.allocation_id)
    assert slots.drained(given.taskmanager)


def test_a_taskmanager_is_started_for_a_driver_and_stays_while_it_runs() -> None:
    limits = ProvisionLimits(0, 4, 10.0, EXECUTOR.multiplied(2), DRIVER.multiplied(2))
    provision, slots = Provision(limits), pools(drivers=2)
    for job in ("one", "two", "three"):
        slots.require(requirement(job, SlotKind.DRIVER))
    assert provision.decide(slots.demands(limits), 0.0).wanted == 2
    slots = pools("taskmanager-1", drivers=2)
    slots.require(requirement("one", SlotKind.DRIVER))
    slots.decide()
    assert [provision.decide(slots.demands(limits), now).drain for now in (0.0, 100.0)] == [(), ()]
    slots.release_job("one")
    for pool in SlotKind:
        for each in slots.of(pool).taskmanagers:
            for slot in list(each.slots.values()):
                slots.freed(slot.allocation_id)
    assert [provision.decide(slots.demands(limits), now).drain for now in (100.0, 111.0)] == [(), ("taskmanager-1",)]
