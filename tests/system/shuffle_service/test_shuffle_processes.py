"""The shuffle service's processes: what survives their death, and who can access which job's data."""

from __future__ import annotations

import pytest

from sluice.pki.spiffe_id import Role
from sluice.runtime.messages import ShuffleAllocation
from sluice.runtime.shuffle.client.client import WorkerAddress
from sluice.runtime.shuffle.control_plane.errors import ForeignJob
from sluice.runtime.shuffle.data_plane.errors import ShuffleError
from tests.system.shuffle_service.conftest import ShuffleWorld, eventually

JOB, OTHER = "a" * 32, "b" * 32
DATA = [(partition, b"%d" % partition * 100_000) for partition in range(4)]


async def write(world: ShuffleWorld, allocation: ShuffleAllocation, map_id: int, job_id: str = JOB) -> WorkerAddress:
    """Write and commit the output of one map; returns the worker that holds it."""
    async with world.client(job_id, allocation) as client:
        writer = client.writer(allocation.shuffle_number, map_id, map_id)
        for partition, data in DATA:
            await writer.write(partition, data)
        (where,) = await writer.commit()
        return where


async def read(
    world: ShuffleWorld, allocation: ShuffleAllocation, where: WorkerAddress, map_id: int, job_id: str = JOB
) -> list[tuple[int, bytes]]:
    """Read all partitions of one map."""
    async with world.client(job_id, allocation) as client:
        return [
            (each.partition, bytes(each.data))
            async for each in client.read(allocation.shuffle_number, [where], [map_id], 0, len(DATA))
        ]


async def test_a_killed_worker_is_excluded_and_serves_what_was_committed_when_it_returns(world: ShuffleWorld) -> None:
    await world.start(Role.SHUFFLE_MANAGER, "manager-1")
    for name in ("w-1", "w-2"):
        await world.start(Role.SHUFFLE_WORKER, name)
    link = await world.cluster()
    for name in ("w-1", "w-2"):
        await world.until(link, name, "ACTIVE")
    allocation = await link.allocate(JOB, 0, 4)
    places = [await write(world, allocation, map_id) for map_id in (0, 1)]
    assert {each.name for each in places} == {"w-1", "w-2"}
    lost = places[0]
    await world.kill(lost.name)
    await world.until(link, lost.name, "LOST")
    assert lost.name not in {each.name for each in (await link.allocate(JOB, 1, 4)).workers}
    with pytest.raises(ShuffleError):
        await read(world, allocation, lost, 0)
    assert await read(world, allocation, places[1], 1) == DATA
    await world.start(Role.SHUFFLE_WORKER, lost.name)
    view = await world.until(link, lost.name, "ACTIVE")
    assert (view.host, view.port) == (lost.host, lost.port)
    assert await read(world, allocation, lost, 0) == DATA
    assert lost.name in {each.name for each in (await link.allocate(JOB, 2, 4)).workers}
    await link.release_job(JOB)
    assert world.files() == []
    with pytest.raises(ShuffleError):
        await read(world, allocation, lost, 0)


async def test_a_killed_manager_is_replaced_and_nothing_is_lost(world: ShuffleWorld) -> None:
    for name in ("manager-1", "manager-2"):
        await world.start(Role.SHUFFLE_MANAGER, name)
    await world.start(Role.SHUFFLE_WORKER, "w-1")
    link = await world.cluster()
    allocation = await link.allocate(JOB, 0, 4)
    await link.allocate(OTHER, 0, 4)
    where = await write(world, allocation, 7)
    led = (await link.overview()).manager.rpartition("/")[2]
    await world.kill(led)
    assert await read(world, allocation, where, 7) == DATA  # nobody needs a manager for that
    again = await link.allocate(JOB, 1, 4)
    assert (await link.overview()).manager.rpartition("/")[2] != led
    assert again.integrity_key == allocation.integrity_key
    assert await read(world, allocation, where, 7) == DATA
    assert await read(world, again, await write(world, again, 8), 8) == DATA
    await link.release_job(OTHER)
    await link.release_job(JOB)
    assert world.files() == []


async def test_shuffles_that_ended_while_a_worker_was_away_are_removed_when_it_returns(world: ShuffleWorld) -> None:
    await world.start(Role.SHUFFLE_MANAGER, "manager-1")
    await world.start(Role.SHUFFLE_WORKER, "w-1")
    link = await world.cluster()
    await write(world, await link.allocate(JOB, 0, 4), 0)
    assert world.files()
    await world.kill("w-1")
    await link.release_job(JOB)
    await world.kill("manager-1")
    await world.start(Role.SHUFFLE_MANAGER, "manager-1")
    await world.start(Role.SHUFFLE_WORKER, "w-1")

    async def gone() -> bool:
        return not world.files()

    await eventually(gone, "nothing of the job is on disk")


async def test_jobs_and_clusters_are_kept_apart(world: ShuffleWorld) -> None:
    await world.start(Role.SHUFFLE_MANAGER, "manager-1")
    await world.start(Role.SHUFFLE_WORKER, "w-1")
    link = await world.cluster()
    allocation = await link.allocate(JOB, 0, 4)
    where = await write(world, allocation, 0)
    with pytest.raises(ShuffleError):  # a job that was never allowed
        await read(world, allocation, where, 0, job_id=OTHER)
    await link.allocate(OTHER, 0, 4)
    with pytest.raises(ShuffleError):  # allowed, but what it names is not its own
        await read(world, allocation, where, 0, job_id=OTHER)
    foreign = await world.cluster("jm-2", b"of the second cluster")
    with pytest.raises(ForeignJob):
        await foreign.allocate(JOB, 1, 4)
    await foreign.release_job(JOB)
    assert await read(world, allocation, where, 0) == DATA

    async def both_told() -> bool:
        (view,) = (await link.overview()).workers
        return {job.job_id for job in view.report.jobs} == {JOB, OTHER}

    await eventually(both_told, "the worker tells of both jobs")
    assert (await foreign.overview()).jobs == ()
