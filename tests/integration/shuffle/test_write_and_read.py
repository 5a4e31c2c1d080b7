"""What is read is what was written, no matter how the worker stored it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import pytest

from sluice.pki.tls.bulk import Engine
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.shuffle.client.client import Segment, ShuffleClient, WorkerAddress
from sluice.runtime.shuffle.data_plane.errors import MapUnknown, ShuffleUnavailable
from sluice.runtime.shuffle.data_plane.frames import MAX_SEGMENT_BYTES, FrameType
from sluice.runtime.shuffle.worker.config import Layout
from tests.integration.shuffle.conftest import StartWorker, client
from tests.integration.shuffle.raw_peer import RawPeer, fetch_frame

Written = dict[tuple[int, int, int], bytes]
SHUFFLE = 3


async def write_map(
    target: ShuffleClient, map_id: int, sizes: Sequence[tuple[int, int]], *, seed: int = 0
) -> tuple[Written, tuple[WorkerAddress, ...]]:
    """Write segments of (partition, size in bytes); returns the segments and the workers that hold them."""
    source = random.Random(f"{seed} {map_id}")  # noqa: S311  data for a test
    writer = target.writer(SHUFFLE, map_id, map_index=map_id)
    written: Written = {}
    for sequence, (partition, size) in enumerate(sizes):
        data = source.randbytes(size)
        written[partition, map_id, sequence] = data
        await writer.write(partition, data)
    return written, await writer.commit()


async def read(
    source: ShuffleClient,
    where: Sequence[WorkerAddress],
    maps: Sequence[int],
    first: int,
    end: int,
    *,
    ordered: bool = False,
) -> list[Segment]:
    return [segment async for segment in source.read(SHUFFLE, where, maps, first, end, ordered=ordered)]


def as_written(segments: Sequence[Segment]) -> Written:
    found = {(each.partition, each.map_id, each.sequence): each.data for each in segments}
    assert len(found) == len(segments)
    return found


def sizes(seed: int, count: int, partitions: int, largest: int) -> list[tuple[int, int]]:
    source = random.Random(seed)  # noqa: S311  data for a test
    return [(source.randrange(partitions), source.randrange(largest)) for _ in range(count)]


@pytest.mark.parametrize("layout", [pytest.param(layout, id=layout) for layout in Layout])
@pytest.mark.parametrize("engine", [pytest.param(engine, id=engine) for engine in Engine])
@pytest.mark.parametrize("secret", [pytest.param(b"", id="plain"), pytest.param(bytes(range(32)), id="encrypted")])
async def test_partitions_of_many_maps_are_read_back(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], layout: Layout, engine: Engine, secret: bytes
) -> None:
    worker = await start_worker(layout=layout, engine=engine, at_rest_secret=secret)
    async with client(identities, worker) as executor:
        written: Written = {}
        for map_id in range(5):
            more, where = await write_map(executor, map_id, sizes(map_id, 60, 8, 60_000))
            written |= more
        everything = await read(executor, where, range(5), 0, 8)
        assert as_written(everything) == written
        partitions = [segment.partition for segment in everything]
        assert partitions == sorted(partitions)
        some = await read(executor, where, [1, 3], 2, 4, ordered=True)
        assert as_written(some) == {k: v for k, v in written.items() if k[1] in {1, 3} and 2 <= k[0] < 4}
        places = [(segment.partition, segment.map_id, segment.sequence) for segment in some]
        assert places == sorted(places)
        assert await read(executor, where, [0], 100, 200) == []


async def test_data_larger_than_the_memory_is_spilled_and_read_back(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker(write_through_bytes=8 << 20, run_share=0.0)
    async with client(identities, worker) as executor:
        written, where = await write_map(executor, 1, sizes(1, 60, 4, 2 << 20))
        assert as_written(await read(executor, where, [1], 0, 4)) == written
    report = worker.worker.report()
    assert sum(map(len, written.values())) > report.memory_limit
    assert report.memory_peak <= report.memory_limit
    assert report.spilled_bytes > 0
    assert report.memory_used == 0


async def test_data_that_fills_a_run_is_written_to_disk_before_the_commit(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker(write_through_bytes=8 << 20)
    async with client(identities, worker) as executor:
        writer = executor.writer(SHUFFLE, 1, map_index=1)
        for number in range(8):
            await writer.write(number % 4, bytes([number]) * (2 << 20))
        deadline = time.monotonic() + 30
        while not worker.worker.report().written_bytes:
            assert time.monotonic() < deadline, "nothing was written"
            await asyncio.sleep(0.01)
        where = await writer.commit()
        found = await read(executor, where, [1], 0, 4)
    assert sorted(segment.data[0] for segment in found) == list(range(8))


async def test_segments_of_every_size_are_read_back(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker()
    async with client(identities, worker) as executor:
        edges = [(0, 0), (0, 1), (1, MAX_SEGMENT_BYTES), (1, MAX_SEGMENT_BYTES - 1), (2, 0), (1 << 23, 17)]
        written, where = await write_map(executor, 1, edges)
        assert as_written(await read(executor, where, [1], 0, 1 << 24)) == written


async def test_a_map_without_output_can_be_committed_and_read(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker()
    async with client(identities, worker) as executor:
        _, where = await write_map(executor, 1, [])
        assert await read(executor, where, [1], 0, 10) == []


async def test_only_committed_attempts_can_be_read(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker()
    async with client(identities, worker) as executor:
        zombie = executor.writer(SHUFFLE, 7, map_index=0)
        await zombie.write(0, b"not this")
        await zombie.flush()
        written, where = await write_map(executor, 8, [(0, 100)])
        assert as_written(await read(executor, where, [8], 0, 1)) == written
        with pytest.raises(MapUnknown, match="map 7 is not committed"):
            await read(executor, where, [7, 8], 0, 1)
        await zombie.abort()
        with pytest.raises(MapUnknown):
            await zombie.commit()


async def test_a_reader_with_two_replicas_continues_with_the_other_worker(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    workers = [await start_worker("w-1"), await start_worker("w-2")]
    async with client(identities, *workers, replicas=2) as executor:
        written, where = await write_map(executor, 0, sizes(5, 300, 4, 100_000))
        reading = executor.read(SHUFFLE, where, [0], 0, 4)
        first = await anext(reading)
        await workers[0].worker.stop()
        assert as_written([first, *[segment async for segment in reading]]) == written
        assert where[0].name == "w-1"
        await workers[1].worker.stop()
        with pytest.raises(ShuffleUnavailable):
            await read(executor, where, [0], 0, 4)


async def test_committed_maps_survive_a_restart(start_worker: StartWorker, identities: dict[str, TlsIdentity]) -> None:
    worker = await start_worker()
    async with client(identities, worker) as executor:
        written, _ = await write_map(executor, 1, sizes(1, 50, 4, 50_000))
        lost = executor.writer(SHUFFLE, 2, map_index=0)
        await lost.write(0, b"uncommitted")
        await lost.flush()
    await worker.worker.stop()
    again = await start_worker(jobs=())
    assert again.worker.jobs() == ("a" * 32,)
    again.worker.allow_job("a" * 32, bytes.fromhex("0123456789abcdef"))
    async with client(identities, again) as executor:
        assert as_written(await read(executor, [again.address], [1], 0, 4)) == written
        with pytest.raises(MapUnknown):
            await read(executor, [again.address], [2], 0, 4)
        more, _ = await write_map(executor, 3, sizes(3, 50, 4, 50_000))
        assert as_written(await read(executor, [again.address], [1, 3], 0, 4)) == written | more


async def test_released_data_is_deleted(start_worker: StartWorker, identities: dict[str, TlsIdentity]) -> None:
    worker = await start_worker()
    async with client(identities, worker) as executor:
        _, where = await write_map(executor, 1, [(0, 1000)])
        await worker.worker.release_shuffle("a" * 32, SHUFFLE)
        with pytest.raises(MapUnknown):
            await read(executor, where, [1], 0, 1)
        await write_map(executor, 2, [(0, 1000)])
        await worker.worker.release_job("a" * 32)
        assert [path for path in worker.config.directories[0].rglob("*") if path.is_file()] == []
        with pytest.raises(ShuffleUnavailable):
            await read(executor, where, [2], 0, 1)


async def test_fetches_on_one_connection_are_served_in_the_order_of_the_file(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker()
    async with client(identities, worker) as executor:
        await write_map(executor, 1, [(partition, 1000) for partition in range(4)])

    def fetch() -> list[int]:
        with RawPeer(identities["executor"], worker.address.port) as peer:
            peer.hello("fetch")
            peer.send(*(fetch_frame(SHUFFLE, [1], each, each + 1, request=each + 1) for each in (2, 0, 3, 1)))
            answers = [peer.answer().header for _ in range(8)]
            return [answer.partition for answer in answers if answer.kind is FrameType.DATA]

    assert await asyncio.to_thread(fetch) == [0, 1, 2, 3]
