"""A TaskManager's slots for executors and for drivers, and which launches fit into which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sluice.runtime.gateways import JobMasterGateway
from sluice.runtime.messages import DriverLaunch, SlotKind, SlotProfile, SlotRequest, SlotState
from sluice.runtime.node import LeaderDiscovery
from sluice.runtime.sandbox import IsolationConfig
from sluice.runtime.taskmanager.errors import AllocationUnknown, SlotNotAvailable
from sluice.runtime.taskmanager.processes.driver import DriverHome
from sluice.runtime.taskmanager.processes.drivers import Drivers
from sluice.runtime.taskmanager.slot_table import SlotTable
from sluice.runtime.taskmanager.slot_tables import SlotTables

JOB, OTHER = "1" * 32, "2" * 32
EXECUTOR = SlotProfile(cores=1, memory_mb=768)
DRIVER = SlotProfile(cores=1, memory_mb=512)


def request(kind: SlotKind, slot: int = 0, *, job: str = JOB) -> SlotRequest:
    return SlotRequest(
        slot=slot,
        allocation_id=f"{kind}-{slot}",
        job_id=job,
        jobmaster_endpoint="jobmaster",
        jobmaster_token=b"secret",
        profile=DRIVER if kind is SlotKind.DRIVER else EXECUTOR,
        kind=kind,
    )


def tables(*, drivers: int = 1) -> SlotTables:
    return SlotTables(SlotTable(1, EXECUTOR), SlotTable(drivers, DRIVER))


def test_executor_and_driver_slots_of_one_number_are_independent() -> None:
    slots = tables()
    assert slots.reserve(request(SlotKind.EXECUTOR))
    assert slots.reserve(request(SlotKind.DRIVER))
    slots.activate("DRIVER-0")
    report = slots.report()
    assert [each.state for each in report.of(SlotKind.EXECUTOR)] == [SlotState.ALLOCATED]
    assert [each.state for each in report.of(SlotKind.DRIVER)] == [SlotState.ACTIVE]
    assert {each.kind for each in slots.of_job(JOB)} == set(SlotKind)
    slots.freed("DRIVER-0")
    assert [each.kind for each in slots.held()] == [SlotKind.EXECUTOR]


def test_drivers_take_no_room_from_executors() -> None:
    slots = tables(drivers=2)
    for number in range(2):
        assert slots.reserve(request(SlotKind.DRIVER, number))
    with pytest.raises(SlotNotAvailable):
        slots.reserve(request(SlotKind.DRIVER, 2))
    assert slots.reserve(request(SlotKind.EXECUTOR))


def test_a_driver_is_refused_without_driver_slots() -> None:
    with pytest.raises(SlotNotAvailable):
        tables(drivers=0).reserve(request(SlotKind.DRIVER))


def test_a_draining_taskmanager_refuses_slots_of_both_kinds() -> None:
    slots = tables()
    slots.draining = True
    for kind in SlotKind:
        with pytest.raises(SlotNotAvailable):
            slots.reserve(request(kind))


def test_a_request_shows_no_token() -> None:
    assert "secret" not in repr(request(SlotKind.DRIVER))


def launch(*, job: str = JOB, memory_mb: int = 512) -> DriverLaunch:
    return DriverLaunch(
        job_id=job,
        attempt=1,
        allocation_id="DRIVER-0",
        name="p",
        executors=1,
        executor_cores=1,
        executor_memory_mb=768,
        driver_memory_mb=memory_mb,
        stop_grace=1.0,
        start_timeout=1.0,
        lease=1.0,
    )


@pytest.mark.parametrize(
    ("kind", "wanted", "error"),
    [
        pytest.param(SlotKind.EXECUTOR, launch(), AllocationUnknown, id="in-a-slot-for-executors"),
        pytest.param(SlotKind.DRIVER, launch(job=OTHER), AllocationUnknown, id="of-another-job"),
        pytest.param(SlotKind.DRIVER, launch(memory_mb=513), SlotNotAvailable, id="too-large"),
    ],
)
def test_a_driver_launch_that_does_not_fit_its_slot_is_refused(
    tmp_path: Path, kind: SlotKind, wanted: DriverLaunch, error: type[Exception]
) -> None:
    slots = tables()
    slots.reserve(request(kind))

    def jobmaster(_: SlotRequest) -> JobMasterGateway:
        raise NotImplementedError

    endpoint: Any = None  # nothing is started
    drivers = Drivers(
        endpoint, DriverHome(tmp_path, "127.0.0.1", "td", LeaderDiscovery(), IsolationConfig()), jobmaster
    )
    with pytest.raises(error):
        drivers.launch(wanted, slots.activate(f"{kind}-0")).close()
    assert list(tmp_path.iterdir()) == []
