"""A worker is drained in the middle of a shuffle that is followed: all go on at its successor, or fail clearly."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from functools import partial

import pytest

from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.messages import ShuffleAllocation
from sluice.runtime.shuffle.client.client import ShuffleClient
from sluice.runtime.shuffle.client.connection import WorkerConnection
from sluice.runtime.shuffle.client.pipelined import AnnouncedWriter, Producer
from sluice.runtime.shuffle.control_plane.manager_link import ShuffleManagerLink
from sluice.runtime.shuffle.data_plane.errors import (
    AttemptLost,
    AttemptSuperseded,
    FrameRefused,
    JobNotAllowed,
    Moved,
    ProducerAborted,
    ShuffleError,
    ShuffleUnavailable,
)
from sluice.runtime.shuffle.data_plane.frames import (
    FrameType,
    Header,
    Produced,
    Share,
    pack_share,
)
from sluice.runtime.shuffle.worker.config import Policy
from sluice.runtime.shuffle.worker.worker import ShuffleWorker
from tests.hostile import TRUST_DOMAIN
from tests.integration.shuffle.conftest import JOB, Running, StartWorker, client, config
from tests.system.pipelined.test_follow import BOUND_SECONDS, PARTITIONS, SHUFFLE, Written, fill, reading, write
from tests.system.shuffle_service.conftest import SETTINGS, ShuffleWorld, eventually


@pytest.fixture(autouse=True)
def signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers hear sooner that a shuffle has moved."""
    monkeypatch.setattr("sluice.runtime.shuffle.client.pipelined.SIGN_OF_LIFE_SECONDS", 0.5)


# Real processes and their manager


async def started(
    world: ShuffleWorld, allocated: int, spare: int, replicas: int = 1
) -> tuple[ShuffleManagerLink, ShuffleAllocation]:
    """A manager, workers with a shuffle, and workers that get none of it."""
    (world.home.root / "sluice.toml").write_text(SETTINGS + 'policy = "pipelined"\n')
    await world.start(Role.SHUFFLE_MANAGER, "manager-1")
    names = [f"w-{number}" for number in range(1, allocated + spare + 1)]
    for name in names[:allocated]:
        await world.start(Role.SHUFFLE_WORKER, name)
    link = await world.cluster()
    link.replicas = replicas
    for name in names[:allocated]:
        await world.until(link, name, "ACTIVE")
    allocation = await link.allocate(JOB, SHUFFLE, PARTITIONS)
    assert len(allocation.workers) == allocated
    for name in names[allocated:]:
        await world.start(Role.SHUFFLE_WORKER, name)
        await world.until(link, name, "ACTIVE")
    return link, allocation


def knowing(world: ShuffleWorld, allocation: ShuffleAllocation, link: ShuffleManagerLink) -> ShuffleClient:
    """An executor of the job that can ask who has taken over."""
    identity = world.pki.identity(SpiffeId.executor(TRUST_DOMAIN, JOB, 2))
    key = allocation.integrity_key.hex()
    return ShuffleClient(
        identity, allocation.workers, key, replicas=allocation.replicas, locate=partial(link.locate, JOB)
    )


async def successor_of(link: ShuffleManagerLink, name: str) -> str:
    """Who has taken over."""
    found = await link.locate(JOB, SHUFFLE, [name])
    return next(each.address.name for each in found if each.address.name != name)


@pytest.mark.parametrize(
    ("allocated", "spare", "replicas"),
    [
        pytest.param(2, 1, 1, id="a worker that had none of it"),
        pytest.param(2, 0, 1, id="a worker that has another share"),
        pytest.param(2, 0, 2, id="a worker that has its replica"),
    ],
)
async def test_all_go_on_at_the_successor_and_the_worker_can_be_killed(
    world: ShuffleWorld, allocated: int, spare: int, replicas: int
) -> None:
    link, allocation = await started(world, allocated, spare, replicas)
    victim = allocation.workers[0].name
    async with (
        world.client(JOB, allocation) as writing,
        world.client(JOB, allocation) as source,
        reading(source, (0, PARTITIONS), (1, 2)) as (reader, narrow),
    ):
        async with Producer(writing, SHUFFLE) as producer:
            written: Written = {}
            for index in range(6):
                written |= await write(producer.writer(index, 10 + index), 10 + index)
            begun = producer.writer(6, 16)  # and committed where its index says, by then drained
            written |= await fill(begun, 16, [70_000, 3])
            await begun.flush()
            zombie = producer.writer(0, 90)
            await fill(zombie, 90)
            await zombie.flush()
            drained = asyncio.create_task(link.drain(victim))
            for index in range(7, 27):  # goes on all the while
                written |= await write(producer.writer(index, 10 + index), 10 + index)
            await drained
            await world.until(link, victim, "DRAINING")

            async def moved() -> bool:
                return writing.successors(SHUFFLE).of(writing.workers[0]) != writing.workers[0]

            await eventually(moved, "the producer has heard of it")
            await begun.commit()
            with pytest.raises(AttemptSuperseded):
                await zombie.commit()
            await world.until(link, victim, "DRAINED")
            await reader.until(written)
            await world.kill(victim)
            for index in range(27, 33):
                written |= await write(producer.writer(index, 10 + index), 10 + index)
            with pytest.raises(AttemptSuperseded):
                await write(producer.writer(2, 92), 92)
            await reader.until(written)
        assert await reader.end() == written
        assert await narrow.end() == {place: data for place, data in written.items() if place[0] == 1}
    assert await successor_of(link, victim) == (f"w-{allocated + spare}" if spare else allocation.workers[1].name)
    async with knowing(world, allocation, link) as late, reading(late) as (reader,):
        assert await reader.end() == written


async def test_a_successor_that_dies_with_nothing_new_is_replaced(world: ShuffleWorld) -> None:
    link, allocation = await started(world, 1, 1)
    async with (
        world.client(JOB, allocation) as writing,
        world.client(JOB, allocation) as source,
        reading(source) as (reader,),
    ):
        async with Producer(writing, SHUFFLE) as producer:
            written = await write(producer.writer(0, 10), 10)
            await reader.until(written)
            await link.drain("w-1")
            await world.until(link, "w-1", "DRAINED")
            assert await successor_of(link, "w-1") == "w-2"
            await world.start(Role.SHUFFLE_WORKER, "w-3")
            await world.until(link, "w-3", "ACTIVE")
            await world.kill("w-2")
            written |= await write(producer.writer(1, 11), 11)
            await reader.until(written)
            await world.until(link, "w-1", "DRAINED")
        assert await reader.end() == written
    assert await successor_of(link, "w-1") == "w-3"


async def test_what_only_the_successor_had_is_lost_with_it_and_nobody_reads_less(world: ShuffleWorld) -> None:
    link, allocation = await started(world, 1, 1)
    async with world.client(JOB, allocation) as writing, world.client(JOB, allocation) as source:

        async def produce() -> None:
            async with Producer(writing, SHUFFLE) as producer:
                await write(producer.writer(0, 10), 10)
                await link.drain("w-1")
                await world.until(link, "w-1", "DRAINED")
                await write(producer.writer(1, 11), 11)
                await world.start(Role.SHUFFLE_WORKER, "w-3")
                await world.until(link, "w-3", "ACTIVE")
                await world.kill("w-2")
                await write(producer.writer(2, 12), 12)

        async with reading(source) as (reader,):
            with pytest.raises(ShuffleError, match="1 of 3 maps not here"):
                await produce()
            with pytest.raises((ProducerAborted, AttemptLost)):
                await reader.end()


async def test_who_pretends_to_be_the_successor_is_not_spoken_to(
    world: ShuffleWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of the same service, which even knows the job, listens where the successor was."""
    monkeypatch.setattr("sluice.runtime.shuffle.client.successors.TRIES", 4)
    link, allocation = await started(world, 1, 1)
    async with world.client(JOB, allocation) as writing:
        producer = Producer(writing, SHUFFLE)
        await write(producer.writer(0, 10), 10)
        await link.drain("w-1")
        await world.until(link, "w-1", "DRAINED")
        located = [each.address for each in await link.locate(JOB, SHUFFLE, ["w-1"])]
        (place,) = [each for each in located if each.name != "w-1"]
        await world.kill("w-2")
        impostor = ShuffleWorker(
            config(world.home.root / "impostor"), world.identity(Role.SHUFFLE_WORKER, "w-of-nobody")
        )
        impostor.allow_job(JOB, allocation.integrity_key)
        await impostor.start(place.host, place.port)
        try:
            async with world.client(JOB, allocation) as source, reading(source) as (reader,):
                with pytest.raises(ShuffleUnavailable):
                    await reader.end()
                assert reader.found == []
            with pytest.raises(ShuffleUnavailable):
                await write(AnnouncedWriter(writing, SHUFFLE, 1, 11), 11)
            with pytest.raises(ShuffleUnavailable):
                await producer.complete()
            assert impostor.kept_shuffles(JOB) == ()
            assert impostor.report().jobs[0].pushed_bytes == 0
        finally:
            await impostor.stop()


# Two workers of this process: what a drained one does, step by step


async def given(source: Running, to: Running) -> AsyncIterator[int]:
    """What is left, each time that the manager looks."""
    to.worker.expect(JOB, source.worker.name)
    source.worker.drain(True)
    async with asyncio.timeout(BOUND_SECONDS):
        while True:
            yield source.worker.hand_over(JOB, SHUFFLE, to.address)
            await asyncio.sleep(0.02)


async def until_settled(source: Running, to: Running) -> None:
    """Until all know of it."""
    async for left in given(source, to):
        if not left:
            return


async def test_what_was_begun_and_commits_late_is_announced_at_the_successor_alone(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    first, second = [await start_worker(name, policy=Policy.PIPELINED) for name in ("w-1", "w-2")]
    async with client(identities, first) as job, client(identities, first) as other, reading(job) as (reader,):
        async with Producer(job, SHUFFLE) as producer:
            winner, loser, late = (producer.writer(index, each) for index, each in ((0, 10), (0, 20), (1, 11)))
            written: Written = {}
            for writer, map_id in ((winner, 10), (loser, 20), (late, 11)):
                segments = await fill(writer, map_id)
                await writer.flush()
                written |= segments if map_id != 20 else {}
            async for left in given(first, second):
                if left == 3:  # those that have begun
                    break
            new = AnnouncedWriter(other, SHUFFLE, 2, 12)
            written |= await write(new, 12)
            producer.count_in(2, 12)
            assert other.successors(SHUFFLE).of(first.address) == second.address
            assert await winner.commit() == (first.address,)
            with pytest.raises(AttemptSuperseded, match="attempt 20"):
                await loser.commit()
            await late.commit()
            await reader.until(written)
            await until_settled(first, second)
        assert await reader.end() == written
    assert second.worker.report().jobs[0].maps == 3


async def test_writers_that_never_pause_are_slowed_down_until_it_has_moved(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.runtime.shuffle.worker.hand_over.HELD_SECONDS", 0.1)
    first, second = [await start_worker(name, policy=Policy.PIPELINED) for name in ("w-1", "w-2")]
    async with client(identities, first) as job, reading(job) as (reader,):
        async with Producer(job, SHUFFLE) as producer:
            indices = itertools.count(1)
            written = await write(producer.writer(0, 10), 10)

            async def go_on() -> None:
                while job.successors(SHUFFLE).of(first.address) == first.address:
                    index = next(indices)
                    written.update(await write(producer.writer(index, 10 + index), 10 + index))

            writers = [asyncio.create_task(go_on()) for _ in range(3)]
            await until_settled(first, second)
            await asyncio.gather(*writers)
        assert await reader.end() == written
    assert second.worker.report().jobs[0].maps == len({map_id for _, map_id, _ in written})


async def test_a_successor_that_cannot_be_reached_changes_nothing(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    first, second = [await start_worker(name, policy=Policy.PIPELINED) for name in ("w-1", "w-2")]
    await second.worker.stop()
    first.worker.drain(True)
    async with client(identities, first) as job, reading(job) as (reader,):
        async with Producer(job, SHUFFLE) as producer:
            written = await write(producer.writer(0, 10), 10)
            failed = False
            async with asyncio.timeout(BOUND_SECONDS):
                while not failed:
                    try:
                        assert first.worker.hand_over(JOB, SHUFFLE, second.address) > 0
                    except ShuffleUnavailable:
                        failed = True
                    await asyncio.sleep(0.02)
            written |= await write(producer.writer(1, 11), 11)
            await reader.until(written)
        assert await reader.end() == written


async def test_a_complete_shuffle_is_followed_at_the_successor(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    first, second = [await start_worker(name, policy=Policy.PIPELINED) for name in ("w-1", "w-2")]
    async with client(identities, first) as job:
        async with Producer(job, SHUFFLE) as producer:
            written = await write(producer.writer(0, 10), 10)
        await until_settled(first, second)
        async with reading(job) as (reader,):
            assert await reader.end() == written
    async with client(identities, second) as job, reading(job) as (reader,):
        assert await reader.end() == written


async def test_a_worker_that_is_expected_hands_over_and_does_nothing_else(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    """Nor does one that is not expected do anything."""
    worker = await start_worker(policy=Policy.PIPELINED)
    with pytest.raises(JobNotAllowed):
        await WorkerConnection.open(identities["w-2"], worker.address, "push", JOB)
    worker.worker.expect(JOB, "w-2")
    for kind, aux in ((FrameType.PRODUCE, Produced.ALIVE), (FrameType.PRODUCE, Produced.ABORTED), (FrameType.BEGIN, 0)):
        connection = await WorkerConnection.open(identities["w-2"], worker.address, "push", JOB)
        with connection.request() as (_, answers):
            await connection.send(Header(kind, shuffle=SHUFFLE, map_id=7, request=1, aux=aux).pack())
            async with asyncio.timeout(BOUND_SECONDS):
                assert isinstance(await answers.get(), FrameRefused)
        await connection.close()
    assert worker.worker.kept_shuffles(JOB) == ()


async def test_what_was_given_away_is_not_taken_from_a_third_worker(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    """One that took part again without having ended still sends everybody to its successor."""
    first, second = [await start_worker(name, policy=Policy.PIPELINED) for name in ("w-1", "w-2")]
    async with client(identities, first) as job:
        await write(AnnouncedWriter(job, SHUFFLE, 0, 10), 10)
        await until_settled(first, second)
    first.worker.drain(False)
    first.worker.expect(JOB, "w-2")
    connection = await WorkerConnection.open(identities["w-2"], first.address, "push", JOB)
    try:
        with pytest.raises(Moved) as caught:
            await connection.commit(SHUFFLE, 11, 0, 0, 1)
        assert caught.value.to == second.address
        with pytest.raises(Moved):
            await connection.produced(SHUFFLE, Produced.COMPLETE, pack_share(Share(1, 0), [10]), 1)
    finally:
        await connection.close()
