"""Readers that follow writers over mutual TLS: all of it, once, in bounded memory and time, or a clear failure."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import pytest

from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.shuffle.client.client import Segment, ShuffleClient
from sluice.runtime.shuffle.client.pipelined import AnnouncedWriter, Producer, follow
from sluice.runtime.shuffle.data_plane.errors import (
    AttemptLost,
    AttemptSuperseded,
    ErrorCode,
    JobNotAllowed,
    MapUnknown,
    ProducerAborted,
    ProducerSilent,
    QuotaExceeded,
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
from sluice.runtime.shuffle.worker.config import Layout, Policy
from tests.integration.shuffle.conftest import JOB, OTHER_JOB, Running, StartWorker, client
from tests.integration.shuffle.raw_peer import RawPeer

SHUFFLE = 3
PARTITIONS = 3
BOUND_SECONDS = 30.0
Written = dict[tuple[int, int, int], bytes]


@dataclass
class Reader:
    """Follows in the background, and notes what came."""

    source: ShuffleClient
    partitions: tuple[int, int] = (0, PARTITIONS)
    found: list[Segment] = field(default_factory=list)
    came: asyncio.Condition = field(default_factory=asyncio.Condition)

    def start(self) -> Reader:
        self.task = asyncio.create_task(self._run())
        return self

    async def _run(self) -> None:
        async for segment in follow(self.source, SHUFFLE, *self.partitions):
            async with self.came:
                self.found.append(segment)
                self.came.notify_all()

    @property
    def read(self) -> Written:
        """What came; nothing twice."""
        found = {(each.partition, each.map_id, each.sequence): each.data for each in self.found}
        assert len(found) == len(self.found)
        return found

    async def until(self, expected: Written) -> None:
        """Wait until just that has come."""
        async with asyncio.timeout(BOUND_SECONDS), self.came:
            await self.came.wait_for(lambda: len(self.found) >= len(expected) or self.task.done())
        assert self.read == expected

    async def end(self) -> Written:
        """All of it; raises what ended it."""
        async with asyncio.timeout(BOUND_SECONDS):
            await self.task
        return self.read


@contextlib.asynccontextmanager
async def reading(source: ShuffleClient, *partitions: tuple[int, int]) -> AsyncIterator[list[Reader]]:
    readers = [Reader(source, each).start() for each in partitions or [(0, PARTITIONS)]]
    yield readers
    for reader in readers:
        reader.task.cancel()
    await asyncio.gather(*(reader.task for reader in readers), return_exceptions=True)


async def fill(writer: AnnouncedWriter, map_id: int, sizes: Sequence[int] = (1000, 0, 70_000, 5)) -> Written:
    """Write segments to all partitions in turns."""
    source = random.Random(map_id)  # noqa: S311  data for a test
    written: Written = {}
    for sequence, size in enumerate(sizes):
        data = source.randbytes(size)
        written[sequence % PARTITIONS, map_id, sequence] = data
        await writer.write(sequence % PARTITIONS, data)
    return written


async def write(writer: AnnouncedWriter, map_id: int, sizes: Sequence[int] = (1000, 0, 70_000, 5)) -> Written:
    """A whole map."""
    written = await fill(writer, map_id, sizes)
    await writer.commit()
    return written


def of(written: Written, first: int, end: int) -> Written:
    return {place: data for place, data in written.items() if first <= place[0] < end}


@pytest.mark.parametrize("policy", [pytest.param(policy, id=policy) for policy in Policy])
@pytest.mark.parametrize("layout", [pytest.param(layout, id=layout) for layout in Layout])
async def test_readers_get_each_map_when_it_is_committed_and_the_end_when_all_are(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], policy: Policy, layout: Layout
) -> None:
    workers = [await start_worker(name, policy=policy, layout=layout) for name in ("w-1", "w-2")]
    async with client(identities, *workers) as writing, client(identities, *workers) as source:
        async with reading(source, (0, 2), (2, 3)) as readers, Producer(writing, SHUFFLE) as producer:
            written: Written = {}
            for index in range(4):
                writer = producer.writer(index, 10 + index)
                more = await fill(writer, 10 + index)
                await writer.flush()
                assert all(reader.read == of(written, *reader.partitions) for reader in readers)
                await writer.commit()
                written |= more
                for reader in readers:
                    await reader.until(of(written, *reader.partitions))
            assert not any(reader.task.done() for reader in readers)
            await producer.complete()
            for reader in readers:
                assert await reader.end() == of(written, *reader.partitions)
        async with reading(source) as (late,):
            assert await late.end() == written
        # Those who do not follow read it as ever.
        one = [each async for each in source.read(SHUFFLE, source.placement(1), [11], 0, PARTITIONS)]
        assert {(each.partition, 11, each.sequence): each.data for each in one} == {
            place: data for place, data in written.items() if place[1] == 11
        }


async def test_what_is_followed_comes_from_memory_and_no_disk_sees_it(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker(policy=Policy.PIPELINED)
    async with client(identities, worker) as job, reading(job) as (reader,):
        async with Producer(job, SHUFFLE) as producer:
            writer = producer.writer(0, 10)
            written = await fill(writer, 10, [200_000] * 20)
            await writer.commit()
            await reader.until(written)
        assert await reader.end() == written
    report = worker.worker.report()
    assert report.written_bytes == 0
    assert [path for path in worker.config.directories[0].rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("layout", [pytest.param(layout, id=layout) for layout in Layout])
async def test_memory_stays_in_its_bounds_whatever_readers_do(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], layout: Layout
) -> None:
    """One reader follows, one opened and never reads, and the producer writes twice what memory holds."""
    worker = await start_worker(policy=Policy.PIPELINED, layout=layout)
    maps, size = 16, 4 << 20
    never = follow_frame(credit=1)
    async with client(identities, worker) as job, reading(job) as (reader,):
        with RawPeer(identities["executor"], worker.address.port) as lazy:
            await asyncio.to_thread(lazy.hello, "fetch")
            lazy.send(never)
            async with Producer(job, SHUFFLE) as producer:
                for index in range(maps):
                    writer = producer.writer(index, 10 + index)
                    async with asyncio.timeout(BOUND_SECONDS):
                        await fill(writer, 10 + index, [size // 64] * 64)
                        await writer.commit()
            await reader.end()
    report = worker.worker.report()
    assert sum(len(segment.data) for segment in reader.found) == maps * size > report.memory_limit
    assert len(reader.read) == maps * 64
    assert report.memory_peak <= report.memory_limit
    assert report.spilled_bytes == report.jobs[0].spilled_bytes > 0
    assert report.waits == report.jobs[0].waits


async def test_a_zombie_attempt_is_never_read(start_worker: StartWorker, identities: dict[str, TlsIdentity]) -> None:
    worker = await start_worker(policy=Policy.PIPELINED)
    async with client(identities, worker) as job, reading(job) as (reader,):
        async with Producer(job, SHUFFLE) as producer:
            zombie, winner, late = (producer.writer(0, each) for each in (10, 20, 30))
            await fill(zombie, 10)
            await zombie.flush()
            written = await fill(winner, 20)
            await winner.commit()
            with pytest.raises(AttemptSuperseded, match="attempt 10 of map 0"):
                await zombie.commit()
            await reader.until(written)
            await fill(late, 30)
        with pytest.raises(AttemptSuperseded):
            await late.commit()
        assert await reader.end() == written


async def test_readers_hear_why_a_producer_gave_up(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker(policy=Policy.PIPELINED)
    async with client(identities, worker) as job, reading(job) as (reader,):
        with contextlib.suppress(ZeroDivisionError):
            async with Producer(job, SHUFFLE) as producer:
                writer = producer.writer(0, 10)
                written = await fill(writer, 10)
                await writer.commit()
                await reader.until(written)
                raise ZeroDivisionError("the input is broken")
        with pytest.raises(ProducerAborted, match="the input is broken"):
            await reader.end()
        async with reading(job) as (late,):
            with pytest.raises(ProducerAborted):
                await late.end()
        with pytest.raises(ProducerAborted):
            await write(AnnouncedWriter(job, SHUFFLE, 1, 11), 11)
        assert worker.worker.report().memory_used == 0


async def test_a_writer_that_vanishes_and_a_shuffle_that_nobody_writes_end_in_bounded_time(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    workers = [await start_worker(name, policy=Policy.PIPELINED, follow_seconds=1.0) for name in ("w-1", "w-2")]
    async with client(identities, *workers) as source, reading(source) as (reader,):
        async with client(identities, *workers) as writing:
            writer = AnnouncedWriter(writing, SHUFFLE, 0, 10)
            await fill(writer, 10)
            await writer.flush()
        with pytest.raises(ProducerSilent, match="for 1 s"):
            await reader.end()
        assert reader.found == []
        with pytest.raises(ProducerSilent):
            async with asyncio.timeout(BOUND_SECONDS):
                assert [each async for each in follow(source, 77, 0, 1)] == []


async def test_a_producer_that_lives_is_waited_for(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.runtime.shuffle.client.pipelined.SIGN_OF_LIFE_SECONDS", 0.2)
    monkeypatch.setattr("sluice.runtime.shuffle.client.connection.ANSWER_SECONDS", 2.0)
    worker = await start_worker(follow_seconds=1.5)
    async with client(identities, worker) as job, reading(job) as (reader,):
        async with Producer(job, SHUFFLE):
            # Longer than a reader waits for a word of its worker, and than that for one of the producer.
            done, _ = await asyncio.wait({reader.task}, timeout=4.0)
            assert not done
        assert await reader.end() == {}


async def test_another_job_sees_nothing_and_is_not_waited_for(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker(policy=Policy.PIPELINED, jobs=(JOB, OTHER_JOB), follow_seconds=1.0)
    only_ours = await start_worker("w-2", policy=Policy.PIPELINED)
    async with client(identities, worker) as job, client(identities, worker, who="other") as other:
        async with reading(other) as (stranger,):
            async with Producer(job, SHUFFLE) as producer:
                writer = producer.writer(0, 10)
                await fill(writer, 10)
                await writer.commit()
            with pytest.raises(ProducerSilent):
                await stranger.end()
            assert stranger.found == []
        # Nor can it end ours.
        await Producer(other, SHUFFLE).abort("not yours")
        async with reading(job) as (reader,):
            assert len(await reader.end()) == 4
    async with client(identities, only_ours, who="other") as refused, reading(refused) as (stranger,):
        with pytest.raises(JobNotAllowed):
            await stranger.end()


async def test_with_two_replicas_readers_and_writers_go_on_without_a_worker(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    workers = [await start_worker(name, policy=Policy.PIPELINED) for name in ("w-1", "w-2")]
    async with (
        client(identities, *workers, replicas=2) as writing,
        client(identities, *workers, replicas=2) as source,
        reading(source) as (reader,),
    ):
        async with Producer(writing, SHUFFLE) as producer:
            written: Written = {}
            for index in range(4):
                writer = producer.writer(index, 10 + index)
                written |= await fill(writer, 10 + index)
                if index == 2:
                    await workers[0].worker.stop()
                held = await writer.commit()
                assert len(held) == (2 if index < 2 else 1)
                await reader.until(written)
        assert await reader.end() == written


async def test_without_replicas_a_lost_worker_fails_producer_and_readers(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    workers = [await start_worker(name, policy=Policy.PIPELINED) for name in ("w-1", "w-2")]

    async def produce(writing: ShuffleClient) -> None:
        async with Producer(writing, SHUFFLE) as producer:
            for index in range(2):
                await write(producer.writer(index, 10 + index), 10 + index)
            await workers[1].worker.stop()

    async with (
        client(identities, *workers) as writing,
        client(identities, *workers) as source,
        reading(source) as (reader,),
    ):
        with pytest.raises(ShuffleUnavailable):
            await produce(writing)
        with pytest.raises((ProducerAborted, ShuffleUnavailable)):
            await reader.end()


async def test_an_attempt_that_was_read_and_is_lost_with_its_worker_fails_the_read(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    """The worker begins again without what it had in memory, and another attempt takes the lost one's place."""
    worker = await start_worker(policy=Policy.PIPELINED)
    async with client(identities, worker) as source, reading(source) as (reader,):
        async with client(identities, worker) as writing:
            first = AnnouncedWriter(writing, SHUFFLE, 0, 10)
            written = await fill(first, 10)
            await first.commit()
            await reader.until(written)
        port = worker.address.port
        await worker.worker.stop()
        again = await start_worker(policy=Policy.PIPELINED, port=port)
        async with client(identities, again) as writing, Producer(writing, SHUFFLE) as producer:
            second = producer.writer(0, 20)
            await fill(second, 20)
            await second.commit()
        with pytest.raises((AttemptLost, ShuffleUnavailable)):
            await reader.end()
        assert reader.read == written


async def test_a_refused_push_says_why_and_disturbs_no_other_map(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker(policy=Policy.PIPELINED, job_quota_bytes=1 << 20)
    async with client(identities, worker) as job, reading(job) as (reader,):
        async with Producer(job, SHUFFLE) as producer:
            good, greedy = producer.writer(0, 10), producer.writer(1, 11)
            written = await fill(good, 10)
            await good.flush()
            with pytest.raises(QuotaExceeded):
                await write(greedy, 11, [600_000] * 4)
            await good.commit()
        assert await reader.end() == written


async def test_release_ends_those_who_follow(start_worker: StartWorker, identities: dict[str, TlsIdentity]) -> None:
    worker = await start_worker(policy=Policy.PIPELINED)
    async with client(identities, worker) as job, reading(job) as (reader,):
        writer = AnnouncedWriter(job, SHUFFLE, 0, 10)
        await reader_is_there(worker)
        written = await fill(writer, 10)
        await writer.commit()
        await reader.until(written)
        await worker.worker.release_job(JOB)
        with pytest.raises(ShuffleError):
            await reader.end()


async def reader_is_there(worker: Running) -> None:
    async with asyncio.timeout(BOUND_SECONDS):
        while True:
            if worker.worker.report().connections:
                return
            await asyncio.sleep(0.02)


def follow_frame(*, credit: int = 1 << 30, payload: bytes | None = None, count: int = 0, aux: int = 1) -> bytes:
    body = pack_share(Share(1, 0), []) if payload is None else payload
    header = Header(FrameType.FOLLOW, shuffle=SHUFFLE, request=9, length=len(body), count=count, aux=aux, extra=credit)
    return header.pack() + body


def produce_frame(what: int, payload: bytes = b"", count: int = 0) -> bytes:
    header = Header(FrameType.PRODUCE, shuffle=SHUFFLE, request=9, length=len(payload), count=count, aux=what)
    return header.pack() + payload


@pytest.mark.parametrize(
    ("direction", "frame"),
    [
        pytest.param("fetch", follow_frame(payload=b""), id="follow without a share"),
        pytest.param("fetch", follow_frame(payload=pack_share(Share(2, 2), [])), id="follow of no share"),
        pytest.param("fetch", follow_frame(payload=pack_share(Share(0, 0), [])), id="follow modulo 0"),
        pytest.param("fetch", follow_frame(payload=pack_share(Share(1, 0), [5]), count=2), id="fewer maps than said"),
        pytest.param("fetch", follow_frame(payload=pack_share(Share(1, 0), [5, 5]), count=2), id="a map twice"),
        pytest.param("fetch", follow_frame(aux=0), id="follow of no partition"),
        pytest.param("fetch", follow_frame() * 2, id="the same request twice"),
        pytest.param("push", follow_frame(), id="follow on a connection for pushes"),
        pytest.param("push", produce_frame(7), id="produce of something unknown"),
        pytest.param("push", produce_frame(Produced.ALIVE, b"hello"), id="a sign of life with payload"),
        pytest.param("push", produce_frame(Produced.COMPLETE, bytes(8), 2), id="complete with fewer maps than said"),
        pytest.param("push", produce_frame(Produced.COMPLETE, bytes(16), 2), id="complete with a map twice"),
        pytest.param("push", produce_frame(Produced.ABORTED, bytes(5000)), id="a reason without end"),
        pytest.param("fetch", produce_frame(Produced.COMPLETE), id="produce on a connection for fetches"),
    ],
)
async def test_malformed_frames_end_the_connection_and_nothing_else(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], direction: str, frame: bytes
) -> None:
    worker = await start_worker(policy=Policy.PIPELINED)

    def offend() -> int:
        with RawPeer(identities["executor"], worker.address.port) as peer:
            peer.hello(direction)
            peer.send(frame)
            code = peer.answer_of(FrameType.ERROR).code
            assert peer.ended()
            return code

    async with client(identities, worker) as job, reading(job) as (reader,):
        await reader_is_there(worker)
        assert await asyncio.to_thread(offend) == ErrorCode.PROTOCOL
        async with Producer(job, SHUFFLE) as producer:
            writer = producer.writer(0, 10)
            written = await fill(writer, 10)
            await writer.commit()
        assert await reader.end() == written


async def test_complete_with_a_map_that_is_not_here_is_refused(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker(policy=Policy.PIPELINED)
    async with client(identities, worker) as job, reading(job) as (reader,):
        with pytest.raises(MapUnknown, match="not here"):
            async with Producer(job, SHUFFLE) as producer:
                producer.count_in(0, 10)
        # The reader asks twice; between its questions the producer may give the shuffle up for the same reason.
        with pytest.raises((MapUnknown, ProducerAborted), match="not here"):
            await reader.end()
