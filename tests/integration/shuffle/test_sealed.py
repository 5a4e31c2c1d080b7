"""Workers can neither read nor change data that a job has sealed.

Every lie of a worker ends the read with an error.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.shuffle.client.client import Segment, ShuffleClient, WorkerAddress
from sluice.runtime.shuffle.data_plane.errors import SegmentCorrupt, ShuffleError, ShuffleUnavailable
from sluice.runtime.shuffle.data_plane.frames import FrameType, Header
from sluice.runtime.shuffle.data_plane.sealing import SealKeys
from sluice.runtime.shuffle.worker.config import Layout, Policy
from tests.integration.shuffle.conftest import JOB, KEY, Running, StartWorker
from tests.lying_worker import Liar, Piece, lying
from tests.waiting import until

SECRET = "5e" * 32
MARK = b"four and twenty blackbirds"
LIES = int(os.environ.get("SLUICE_LIES", "4000"))
PARTITIONS = 6
CREDIT = 4 << 20
IN_SOCKETS = 64 << 20
"""More than what kernels and TLS keep of one connection."""


def sealing(
    identities: dict[str, TlsIdentity], *workers: Running, replicas: int = 1, secret: str = SECRET, job: str = JOB
) -> ShuffleClient:
    addresses = [each.address for each in workers]
    return ShuffleClient(identities["executor"], addresses, KEY, replicas=replicas, seal=SealKeys(secret, job))


@dataclass
class Written:
    """A written shuffle: its segments, its workers, and the partitions of each map."""

    shuffle: int
    where: Sequence[WorkerAddress] = ()
    segments: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    blocks: dict[int, frozenset[int]] = field(default_factory=dict)

    async def write(self, client: ShuffleClient, map_id: int, *, segments: int, largest: int) -> None:
        """Write one more map with random segments."""
        rng = random.Random(f"{self.shuffle} {map_id}")  # noqa: S311  # data for a test
        writer = client.writer(self.shuffle, map_id, map_index=0)
        for sequence in range(segments):
            partition = rng.randrange(PARTITIONS)
            data = MARK + rng.randbytes(rng.randrange(largest))
            await writer.write(partition, data)
            self.segments[partition, map_id, sequence] = data
        self.where = await writer.commit()
        self.blocks[map_id] = writer.partitions

    def read(
        self,
        client: ShuffleClient,
        maps: Sequence[int],
        first: int = 0,
        end: int = PARTITIONS,
        *,
        ordered: bool = False,
    ) -> AsyncIterator[Segment]:
        return client.read(self.shuffle, self.where, maps, first, end, ordered=ordered, blocks=self.blocks)

    async def all(self, client: ShuffleClient) -> Mapping[tuple[int, int, int], bytes]:
        found = [each async for each in self.read(client, sorted(self.blocks))]
        return {(each.partition, each.map_id, each.sequence): each.data for each in found}


def kept(worker: Running) -> bytes:
    """The contents of all files in the worker's directories."""
    return b"".join(
        path.read_bytes() for folder in worker.config.directories for path in folder.rglob("*") if path.is_file()
    )


async def test_sealed_data_larger_than_the_memory_is_spilled_merged_and_read_back(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker(write_through_bytes=8 << 20, run_share=0.0)
    async with sealing(identities, worker) as client:
        written = Written(3)
        for map_id in range(2):
            await written.write(client, map_id, segments=30, largest=2 << 20)
        assert await written.all(client) == written.segments
    report = worker.worker.report()
    assert sum(map(len, written.segments.values())) > report.memory_limit
    assert report.spilled_bytes > 0
    stored = kept(worker)
    assert len(stored) > report.memory_limit
    assert MARK not in stored


@pytest.mark.parametrize("policy", [pytest.param(policy, id=policy) for policy in Policy])
@pytest.mark.parametrize("layout", [pytest.param(layout, id=layout) for layout in Layout])
async def test_sealed_segments_are_read_back_and_stay_sealed_on_disk(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], layout: Layout, policy: Policy
) -> None:
    worker = await start_worker(layout=layout, policy=policy)
    async with sealing(identities, worker) as client:
        written = Written(3)
        for map_id in range(4):
            await written.write(client, map_id, segments=40, largest=60_000)
        assert await written.all(client) == written.segments
        maps = [1, 3]
        places = [(e.partition, e.map_id, e.sequence) async for e in written.read(client, maps, 2, 4, ordered=True)]
        assert places == sorted(p for p in written.segments if p[1] in maps and 2 <= p[0] < 4)
    stored = kept(worker)
    assert len(stored) > 40_000
    assert MARK not in stored


async def test_a_reader_of_sealed_data_continues_at_the_replica(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    workers = [await start_worker("w-1"), await start_worker("w-2")]
    async with sealing(identities, *workers, replicas=2) as client:
        written = Written(3)
        await written.write(client, 0, segments=300, largest=100_000)
        reading = written.read(client, [0])
        found = [await anext(reading)]
        await workers[0].worker.stop()
        found += [each async for each in reading]
        assert {(e.partition, e.map_id, e.sequence): e.data for e in found} == written.segments
        assert len(found) == len(written.segments)


@pytest.mark.parametrize(
    ("secret", "job"), [pytest.param("5f" * 32, JOB, id="secret"), pytest.param(SECRET, "b" * 32, id="job")]
)
async def test_a_reader_with_another_secret_or_job_cannot_open_sealed_data(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], secret: str, job: str
) -> None:
    worker = await start_worker()
    async with sealing(identities, worker) as client, sealing(identities, worker, secret=secret, job=job) as thief:
        written = Written(3)
        await written.write(client, 0, segments=20, largest=100)
        with pytest.raises(SegmentCorrupt, match="was not sealed like this"):
            await written.all(thief)


async def test_unsealed_data_is_refused_by_a_sealing_reader(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker()
    plain = ShuffleClient(identities["executor"], [worker.address], KEY)
    async with plain, sealing(identities, worker) as client:
        written = Written(3)
        await written.write(plain, 0, segments=20, largest=100)
        assert await written.all(plain) == written.segments
        with pytest.raises(SegmentCorrupt, match="was not sealed like this"):
            await written.all(client)


async def test_a_reader_of_sealed_data_must_know_what_each_map_has_written(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker()
    async with sealing(identities, worker) as client:
        written = Written(3)
        await written.write(client, 0, segments=20, largest=100)
        with pytest.raises(ShuffleError, match="without knowing what each map has written"):
            await anext(client.read(3, written.where, [0], 0, PARTITIONS))
        written.blocks[0] = written.blocks[0] | {PARTITIONS}
        with pytest.raises(ShuffleUnavailable, match=f"partition {PARTITIONS} of map 0 are missing"):
            [each async for each in written.read(client, [0], 0, PARTITIONS + 1)]


@pytest.mark.parametrize("replicas", [1, 2])
async def test_every_lie_of_a_worker_ends_the_read(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], replicas: int
) -> None:
    """With two replicas both lie: the answers of one never make up for those of the other."""
    liar, rng = Liar(seed=replicas), random.Random(2)  # noqa: S311  # no secret
    reads = LIES // replicas**2
    with lying(liar):
        workers = [await start_worker(f"w-{number + 1}") for number in range(replicas)]
        async with sealing(identities, *workers, replicas=replicas) as client:
            shuffles = [Written(3), Written(4)]
            for written in shuffles:
                for map_id in (0, 1, 2, 1 << 40):
                    await written.write(client, map_id, segments=12, largest=60)
                assert await written.all(client) == written.segments
            liar.lying = True
            for number in range(reads):
                written = rng.choice(shuffles)
                maps, first, end = some(rng, written)
                try:
                    [each async for each in written.read(client, maps, first, end, ordered=rng.random() < 0.5)]
                except ShuffleError:
                    continue
                pytest.fail(f"lie {number} was believed: {liar.said[-1]}")
            liar.lying = False
            for written in shuffles:
                assert await written.all(client) == written.segments
    assert len(liar.said) >= reads
    assert not any(MARK[:8] in piece.data for piece in liar.hoard)
    assert not any(MARK in kept(worker) for worker in workers)


async def test_worker_that_sends_more_than_its_credit_is_cut_off(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], tmp_path: Path
) -> None:
    flag = tmp_path / "flag"
    with lying(Liar(seed=1), flag):
        worker = await start_worker()
        async with sealing(identities, worker) as client:
            await Written(3).write(client, 0, segments=12, largest=60)
            flag.write_text("flood")
            connection = await client.connection(worker.address, "fetch")
            asked = Header(FrameType.FETCH, shuffle=3, count=1, aux=PARTITIONS, extra=CREDIT)
            async with contextlib.aclosing(connection.stream(asked, (0).to_bytes(8, "little"))) as answers:
                await anext(answers)
                await until(lambda: not connection.usable, "the reader takes all that comes")
    sent = flag.with_suffix(".flood")
    await until(lambda: sent.exists() and sent.read_text(), "the worker goes on")
    assert int(sent.read_text()) < CREDIT + IN_SOCKETS


class FirstLies(Liar):
    """Of two workers that are asked one after the other, the first lies and the second is honest."""

    def answer(self, pieces: list[Piece], *, ordered: bool) -> tuple[list[Piece], int, int]:
        self.lying = not self.lying
        return super().answer(pieces, ordered=ordered)


async def test_an_honest_replica_serves_the_right_data_after_any_lie_of_the_other(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    liar, rng = FirstLies(seed=3), random.Random(4)  # noqa: S311  # no secret
    mended = 0
    workers = [await start_worker(name) for name in ("w-1", "w-2")]
    async with sealing(identities, *workers, replicas=2) as client:
        written = Written(3)
        for map_id in (0, 1, 2, 1 << 40):
            await written.write(client, map_id, segments=12, largest=60)
    with lying(liar):
        async with sealing(identities, *workers, replicas=2) as client:
            for _ in range(LIES // 10):
                maps, first, end = some(rng, written)
                ordered = rng.random() < 0.5
                places = {(p, m, s): d for (p, m, s), d in written.segments.items() if m in maps and first <= p < end}
                liar.lying = False
                try:
                    found = [each async for each in written.read(client, maps, first, end, ordered=ordered)]
                except SegmentCorrupt as error:
                    if "out of order" not in str(error):
                        raise
                    continue  # what comes second was kept back by the first
                mended += 1
                assert {(e.partition, e.map_id, e.sequence): e.data for e in found} == places
                order = [(e.partition, e.map_id, e.sequence) for e in found]
                assert len(order) == len(places)
                assert not ordered or order == sorted(order)
    assert mended > LIES // 20


def some(rng: random.Random, written: Written) -> tuple[list[int], int, int]:
    """Choose some maps and a range of partitions of a shuffle."""
    maps = sorted(rng.sample(sorted(written.blocks), rng.randint(1, 4)))
    first = rng.randrange(PARTITIONS)
    return maps, first, rng.randint(first + 1, PARTITIONS)
