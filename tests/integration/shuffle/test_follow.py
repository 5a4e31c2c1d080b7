"""Readers that follow a writer over mutual TLS.

They get each map once it is committed, use bounded memory, and are told how the shuffle ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import NamedTuple

import numpy as np
import pytest

from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.shuffle.data_plane.check_values import SegmentChecks
from sluice.runtime.shuffle.data_plane.errors import ErrorCode
from sluice.runtime.shuffle.data_plane.frames import (
    DATA_ENTRY,
    FrameType,
    Header,
    ProducerStatement,
    Share,
    pack_share,
    parse_maps,
)
from tests.integration.shuffle.conftest import JOB, KEY, OTHER_JOB, Running, StartWorker
from tests.integration.shuffle.raw_peer import Answer, RawPeer, push_frame

SHUFFLE = 3
WRITERS = 2
SHARE = Share(WRITERS, 1)
CHECKS = SegmentChecks(bytes.fromhex(KEY), SHUFFLE)
MANY = 400
SLACK_BYTES = 64 << 10
"""For what is just being sent. So many maps take ten times as much."""


class Peers(NamedTuple):
    """A writer and a reader of one job."""

    writer: RawPeer
    reader: RawPeer


@contextmanager
def greeted(identity: TlsIdentity, worker: Running, direction: str) -> Iterator[RawPeer]:
    with RawPeer(identity, worker.address.port) as peer:
        peer.hello(direction)
        yield peer


def number_of(map_id: int) -> int:
    """The index that belongs to a map id; map ids of this test count from 0."""
    return map_id * WRITERS + SHARE.remainder


def write(peer: RawPeer, map_id: int, data: bytes = b"row") -> Answer:
    """Write a map with one segment for partition 0; returns the worker's answer to the commit."""
    peer.send(push_frame(CHECKS, SHUFFLE, map_id, [(0, 0, data)]), commit(map_id, 1, len(data)))
    return peer.answer_of(FrameType.COMMIT_OK)


def commit(map_id: int, segments: int, size: int) -> bytes:
    return Header(
        FrameType.COMMIT, shuffle=SHUFFLE, map_id=map_id, request=map_id + 1, count=segments, extra=size,
        partition=WRITERS, aux=number_of(map_id) + 1,
    ).pack()  # fmt: skip


def produce(what: ProducerStatement, count: int = 0, payload: bytes = b"") -> bytes:
    payload = payload or pack_share(SHARE)
    header = Header(FrameType.PRODUCE, shuffle=SHUFFLE, request=9, length=len(payload), count=count, aux=what)
    return header.pack() + payload


def follow(had: int = 0, end: int = 1, request: int = 5) -> bytes:
    payload = pack_share(SHARE)
    header = Header(
        FrameType.FOLLOW, shuffle=SHUFFLE, request=request, aux=end, length=len(payload), count=had, extra=1 << 20
    )
    return header.pack() + payload


def read(peer: RawPeer, maps: int) -> list[tuple[int, bytes]]:
    """Read the next ``maps`` maps; returns the id and data of each."""
    found: list[tuple[int, bytes]] = []
    announced: list[int] = []
    while len(announced) < maps or len(found) < len(announced):
        answer = peer.answer()
        match answer.header.kind:
            case FrameType.MAPS:
                announced += [map_id for map_id, _ in parse_maps(answer.header, answer.payload)]
            case FrameType.DATA:
                rows = np.frombuffer(answer.payload, DATA_ENTRY, answer.header.count)
                at = answer.header.count * DATA_ENTRY.itemsize
                for row in rows:
                    found.append((int(row["map"]), answer.payload[at : at + int(row["length"])]))
                    at += int(row["length"])
            case kind:
                assert kind is FrameType.MAPS_SENT, (kind, answer.payload)
    assert [map_id for map_id, _ in found] == announced
    return found


def took(size: int, maps: int) -> bytes:
    return Header(FrameType.CREDIT, request=5, count=maps, extra=size).pack()


@asynccontextmanager
async def peers(start_worker: StartWorker, identity: TlsIdentity, **settings: object) -> AsyncIterator[Peers]:
    worker = await start_worker(**settings)
    with greeted(identity, worker, "push") as writer, greeted(identity, worker, "fetch") as reader:
        yield Peers(writer, reader)


async def test_maps_are_announced_as_they_are_committed_until_the_writer_declares_the_end(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    async with peers(start_worker, identities["executor"]) as (writer, reader):

        def talk() -> None:
            reader.send(follow())
            for map_id in range(3):
                assert write(writer, map_id, b"row %d" % map_id).header.extra > 0
                assert read(reader, 1) == [(map_id, b"row %d" % map_id)]
            reader.send(took(15, 3))
            writer.send(produce(ProducerStatement.COMPLETE, 3))
            assert writer.answer_of(FrameType.PRODUCE_OK).header.request == 9
            end = next(each for each in iter(reader.answer, None) if each.header.kind is not FrameType.MAPS_SENT)
            assert (end.header.kind, end.header.count, end.header.extra) == (FrameType.END, 3, 15)

        await asyncio.to_thread(talk)


async def test_a_long_running_writer_keeps_no_data_that_was_read(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker()

    def used() -> int:
        report = worker.worker.report()
        return report.metadata_used + report.memory_used

    with (
        greeted(identities["executor"], worker, "push") as writer,
        greeted(identities["executor"], worker, "fetch") as reader,
    ):

        def rounds(count: int, first: int) -> None:
            for map_id in range(first, first + count):
                write(writer, map_id)
                assert read(reader, 1) == [(map_id, b"row")]
                reader.send(took(3, map_id + 1))
                if map_id % 10 == 9:
                    writer.send(produce(ProducerStatement.FORGET, map_id - 5))
                    header = writer.answer_of(FrameType.PRODUCE_OK).header
                    assert header.count == 1
                    assert header.aux <= map_id + 1

        reader.send(follow())
        await asyncio.to_thread(rounds, 100, 0)
        before = used()
        await asyncio.to_thread(rounds, MANY, 100)
        assert used() < before + SLACK_BYTES

        def late() -> None:
            reader.send(follow(had=1, request=6))
            while (answer := reader.answer()).header.request != 6:
                pass
            assert answer.code == ErrorCode.UNKNOWN

        await asyncio.to_thread(late)


async def test_readers_are_sent_the_reason_when_a_writer_aborts(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    async with peers(start_worker, identities["executor"]) as (writer, reader):

        def talk() -> None:
            reader.send(follow())
            write(writer, 0)
            read(reader, 1)
            writer.send(produce(ProducerStatement.ABORTED, payload=b"the source is broken"))
            writer.answer_of(FrameType.PRODUCE_OK)
            while (answer := reader.answer()).header.kind is FrameType.MAPS_SENT:
                pass
            assert answer.code == ErrorCode.ABORTED
            assert b"the source is broken" in answer.payload
            writer.send(push_frame(CHECKS, SHUFFLE, 1, [(0, 0, b"late")]), commit(1, 1, 4))
            assert writer.answer_of(FrameType.ERROR).code == ErrorCode.ABORTED

        await asyncio.to_thread(talk)


async def test_readers_of_a_shuffle_without_a_writer_are_ended(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    async with peers(start_worker, identities["executor"], follow_seconds=0.4) as (_, reader):

        def talk() -> None:
            reader.send(follow())
            while (answer := reader.answer()).header.kind is FrameType.MAPS:
                assert not answer.header.count
            assert answer.code == ErrorCode.SILENT

        await asyncio.to_thread(talk)


async def test_a_drained_worker_aborts_shuffles_that_are_read_while_they_are_written(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker, other = await start_worker(), await start_worker("w-2")
    with (
        greeted(identities["executor"], worker, "push") as writer,
        greeted(identities["executor"], worker, "fetch") as reader,
    ):

        def before() -> None:
            reader.send(follow())
            write(writer, 0)
            read(reader, 1)

        await asyncio.to_thread(before)
        worker.worker.drain(wanted=True)
        assert worker.worker.report().followed == 1
        assert worker.worker.hand_over(JOB, SHUFFLE, other.address) == 0
        assert worker.worker.report().followed == 0

        def after() -> None:
            while (answer := reader.answer()).header.kind is FrameType.MAPS_SENT:
                pass
            assert answer.code == ErrorCode.ABORTED
            assert b"w-1 is drained" in answer.payload

        await asyncio.to_thread(after)


async def test_another_job_sees_no_maps_of_a_followed_shuffle(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker(jobs=(JOB, OTHER_JOB))

    def talk() -> None:
        with (
            greeted(identities["executor"], worker, "push") as writer,
            greeted(identities["other"], worker, "push") as hostile,
            greeted(identities["other"], worker, "fetch") as thief,
        ):
            thief.send(follow())
            write(writer, 0)
            hostile.send(produce(ProducerStatement.ABORTED, payload=b"no more"))
            hostile.answer_of(FrameType.PRODUCE_OK)
            while (answer := thief.answer()).header.kind is not FrameType.ERROR:
                assert not answer.header.count
            assert answer.code == ErrorCode.ABORTED
            write(writer, 1)

    await asyncio.to_thread(talk)


@pytest.mark.parametrize(
    ("direction", "frame"),
    [
        pytest.param("push", produce(ProducerStatement.COMPLETE, payload=b"1234567"), id="no whole share"),
        pytest.param("push", produce(ProducerStatement.FORGET, payload=pack_share(Share(2, 2))), id="no share"),
        pytest.param(
            "push", produce(ProducerStatement.FORGET, payload=pack_share(Share(0, 0))), id="a share of nothing"
        ),
        pytest.param("push", Header(FrameType.PRODUCE, aux=7).pack(), id="says what nobody knows"),
        pytest.param("push", produce(ProducerStatement.ABORTED, 1, b"why"), id="gives up some maps"),
        pytest.param("push", produce(ProducerStatement.ABORTED, payload=b"x" * 5000), id="too many words"),
        pytest.param("push", Header(FrameType.COMMIT, aux=1).pack(), id="announced by nobody"),
        pytest.param("push", follow(), id="follow on a connection for pushes"),
        pytest.param("fetch", follow(end=0), id="no partition"),
        pytest.param("fetch", follow() + follow(), id="the same request twice"),
        pytest.param("fetch", produce(ProducerStatement.COMPLETE), id="produce on a connection for fetches"),
    ],
)
async def test_malformed_frames_end_the_connection_and_nothing_else(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], direction: str, frame: bytes
) -> None:
    worker = await start_worker()

    def talk() -> None:
        with greeted(identities["executor"], worker, direction) as hostile:
            hostile.send(frame)
            assert hostile.ended()
        with greeted(identities["executor"], worker, "push") as writer:
            write(writer, 0)

    await asyncio.to_thread(talk)
