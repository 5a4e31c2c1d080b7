"""A drained worker hands all its data to another; it can then be killed, and readers miss nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.messages import OutputLocation
from sluice.runtime.shuffle.client.connection import WorkerConnection
from sluice.runtime.shuffle.control_plane.manager_link import ShuffleManagerLink
from sluice.runtime.shuffle.data_plane.errors import FrameRefused, JobNotAllowed, ShuffleError, ShuffleUnavailable
from sluice.runtime.shuffle.data_plane.sealing import SealKeys
from tests.hostile import TRUST_DOMAIN
from tests.system.shuffle_service.conftest import ShuffleWorld, eventually
from tests.system.shuffle_service.test_shuffle_processes import DATA, JOB, OTHER, read, write

NAMES = ("w-1", "w-2", "w-3")
PARTITIONS = 5
MARK = b"four and twenty blackbirds"


async def started(world: ShuffleWorld, names: Sequence[str] = NAMES) -> ShuffleManagerLink:
    """Start a manager and workers; returns a link to the manager."""
    await world.start(Role.SHUFFLE_MANAGER, "manager-1")
    for name in names:
        await world.start(Role.SHUFFLE_WORKER, name)
    link = await world.cluster()
    for name in names:
        await world.until(link, name, "ACTIVE")
    return link


async def test_outputs_of_a_drained_worker_are_read_from_its_successor(world: ShuffleWorld) -> None:
    link = await started(world)
    allocation = await link.allocate(JOB, 0, 4)
    places = {map_id: await write(world, allocation, map_id) for map_id in range(6)}
    victim = places[0]
    assert await link.locate(JOB, 0, [victim.name]) == (OutputLocation(pushed_to=victim.name, address=victim),)
    async with world.client(JOB, allocation) as client:  # a map that has begun when the worker is drained
        late = client.writer(0, 9, 0)
        await late.write(0, b"before")
        await late.flush()
        await client.writer(0, 10, 0).commit()  # behind it on the same connection
        await link.drain(victim.name)
        await world.until(link, victim.name, "DRAINING")

        async def told() -> bool:
            return any(each.report.draining for each in (await link.overview()).workers if each.name == victim.name)

        await eventually(told, "the worker says that it is draining")
        early = client.writer(0, 12, 0)
        await early.write(0, b"after")
        with pytest.raises(ShuffleError):  # it begins afterwards
            await early.commit()
        await late.write(1, b"after")
        assert await late.commit() == (victim,)
    view = await world.until(link, victim.name, "DRAINED")
    assert view.bytes > 0
    assert "other workers" in view.reason
    successor, itself = await link.locate(JOB, 0, [victim.name])
    assert successor.pushed_to == victim.name != successor.address.name
    assert itself == OutputLocation(pushed_to=victim.name, address=victim)
    await world.kill(victim.name)
    await world.until(link, victim.name, "LOST")
    for map_id in [each for each, where in places.items() if where == victim]:
        assert await read(world, allocation, successor.address, map_id) == DATA
    assert await read(world, allocation, successor.address, 9) == [(0, b"before"), (1, b"after")]
    assert len(await link.locate(JOB, 0, NAMES)) == len(NAMES), "the one that is gone has a successor"
    await link.release_job(JOB)

    async def gone() -> bool:
        return all(victim.name in path.parts for path in world.files())

    await eventually(gone, "nothing of the job is on disk of those that run")


async def test_sealed_maps_are_handed_over_unchanged_and_without_a_key(world: ShuffleWorld) -> None:
    """Neither worker of the hand-over has a key; readers find everything, and notice what is missing."""
    link = await started(world)
    allocation = await link.allocate(JOB, 0, PARTITIONS)
    number, rng = allocation.shuffle_number, random.Random(1)  # noqa: S311  # no secret
    async with world.client(JOB, allocation, SealKeys("5e" * 32, JOB)) as client:
        writers = {map_id: client.writer(number, map_id, map_index=0) for map_id in range(8)}
        written = {}
        for sequence in range(40):
            for map_id, writer in writers.items():
                partition, data = rng.randrange(PARTITIONS), MARK + rng.randbytes(rng.randrange(20_000))
                await writer.write(partition, data)
                written[partition, map_id, sequence] = data
        late = writers[7]
        await late.flush()
        (victim,) = {where for map_id in range(7) for where in await writers[map_id].commit()}
        await link.drain(victim.name)
        await world.until(link, victim.name, "DRAINING")
        assert await late.commit() == (victim,)
        await world.until(link, victim.name, "DRAINED")
        successor, _ = await link.locate(JOB, 0, [victim.name])
        await world.kill(victim.name)
        blocks = {map_id: writer.partitions for map_id, writer in writers.items()}
        for ordered in (False, True):
            found = [
                each
                async for each in client.read(
                    number, [successor.address], list(writers), 0, PARTITIONS, ordered=ordered, blocks=blocks
                )
            ]
            assert {(each.partition, each.map_id, each.sequence): each.data for each in found} == written
            assert len(found) == len(written)
        blocks[3] |= {PARTITIONS}
        with pytest.raises(ShuffleUnavailable, match=f"partition {PARTITIONS} of map 3 are missing"):
            [each async for each in client.read(number, [successor.address], [3], 0, PARTITIONS + 1, blocks=blocks)]
    assert all(MARK not in path.read_bytes() for path in world.files())


async def test_two_replicas_stay_on_two_different_workers_after_a_hand_over(world: ShuffleWorld) -> None:
    link = await started(world, NAMES[:2])
    link.replicas = 2
    allocation = await link.allocate(JOB, 0, 4)
    async with world.client(JOB, allocation) as client:
        writer = client.writer(0, 1, 0)
        for partition, data in DATA:
            await writer.write(partition, data)
        first, second = await writer.commit()
    await world.start(Role.SHUFFLE_WORKER, NAMES[2])
    await world.until(link, NAMES[2], "ACTIVE")
    await link.drain(first.name)
    await world.until(link, first.name, "DRAINED")
    found, _ = await link.locate(JOB, 0, [first.name])
    assert {found.address.name, first.name, second.name} == set(NAMES)
    assert await read(world, allocation, found.address, 1) == DATA
    await link.drain(second.name)  # whoever takes it over has it already
    await world.until(link, second.name, "DRAINED")
    again, _ = await link.locate(JOB, 0, [second.name])
    assert again.address == found.address
    assert await read(world, allocation, again.address, 1) == DATA


async def test_a_drained_worker_that_takes_part_again_is_located_itself(world: ShuffleWorld) -> None:
    link = await started(world)
    allocation = await link.allocate(JOB, 0, 4)
    where = await write(world, allocation, 0)
    await link.drain(where.name)
    await world.until(link, where.name, "DRAINED")
    await link.drain(where.name, wanted=False)
    await world.until(link, where.name, "ACTIVE")
    (found,) = await link.locate(JOB, 0, [where.name])
    assert found == OutputLocation(pushed_to=where.name, address=where)
    assert await read(world, allocation, where, 0) == DATA


async def test_a_hand_over_by_an_unexpected_worker_or_for_a_foreign_job_is_refused(world: ShuffleWorld) -> None:
    link = await started(world)
    allocation = await link.allocate(JOB, 0, 4)
    where = await write(world, allocation, 0)
    worker = world.identity(Role.SHUFFLE_WORKER, "w-of-nobody")
    for job_id in (JOB, OTHER, ""):
        with pytest.raises(JobNotAllowed):
            await WorkerConnection.open(worker, where, "push", job_id)
    with pytest.raises(JobNotAllowed, match="reads nothing"):
        await WorkerConnection.open(worker, where, "fetch", JOB)
    executor = world.pki.identity(SpiffeId.executor(TRUST_DOMAIN, JOB, 1))
    with pytest.raises(FrameRefused, match="names a job"):
        await WorkerConnection.open(executor, where, "push", OTHER)
    assert await read(world, allocation, where, 0) == DATA
