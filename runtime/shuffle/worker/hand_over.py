"""Hands the shuffle data of a drained worker over to other workers.

The worker connects to a successor's data channel with its own identity, and pushes committed maps as their writers did:
the same segments, sequence numbers and check values. The successor admits it only for the jobs that the manager told it
to expect from this worker. The data also stays here until the job or the shuffle is released.

A shuffle that is read while it is written is not handed over but aborted. With replicas, its writers and readers
continue at the other worker; otherwise the shuffle starts again elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from dataclasses import dataclass, field

import numpy as np

from sluice.core import end_tasks
from sluice.pki.tls import TlsIdentity
from sluice.runtime.messages import WorkerAddress
from sluice.runtime.shuffle.client import WorkerConnection
from sluice.runtime.shuffle.data_plane import (
    MAX_PARTITION,
    FrameType,
    Header,
    MapUnknown,
    SegmentChecks,
    SegmentCorrupt,
    ShuffleError,
)
from sluice.runtime.shuffle.worker.storage import Committed, Located, ShuffleData, ShuffleStore

_LOG = logging.getLogger(__name__)

FRAME_BYTES = 1 << 20
"""Maximum data in one frame, unless a single segment is larger."""
FRAME_SEGMENTS = 1024
_ROW = struct.Struct("<IIII")


@dataclass(slots=True)
class _Shuffle:
    """A shuffle that is handed over to ``to``; ``given`` are the maps that have been transferred."""

    job_id: str
    number: int
    data: ShuffleData
    checks: SegmentChecks
    to: WorkerAddress
    given: set[int] = field(default_factory=set)
    task: asyncio.Task[None] | None = None
    failure: ShuffleError | None = None

    def left(self) -> list[Committed]:
        """The committed maps that are still to be transferred."""
        return [each for each in self.data.committed() if each.map_id not in self.given]


class HandOvers:
    """All hand-overs of one worker; used on its event loop.

    Args:
        identity: the worker's identity.
        store: the worker's data.
    """

    def __init__(self, identity: TlsIdentity, store: ShuffleStore) -> None:
        self._identity = identity
        self._store = store
        self._shuffles: dict[tuple[str, int], _Shuffle] = {}

    def hand_over(self, job_id: str, number: int, to: WorkerAddress) -> int:
        """Continue to hand over a shuffle in the background; returns how many maps are left, including open ones.

        Call it again until nothing is left. Maps that can no longer be read here are skipped: readers could not read
        them either.

        Raises:
            ShuffleError: the hand-over failed since the last call.
        """
        job = self._store.job(job_id)
        try:
            data, checks = job.shuffle(number, create=False)
        except MapUnknown:
            self._shuffles.pop((job_id, number), None)
            return 0
        if data.announced.active:
            data.give_up(f"{self._identity.spiffe_id.name} is drained")
            return 0
        known = self._shuffles.get((job_id, number))
        if known is None or known.to != to:
            if known is not None and known.task is not None:
                known.task.cancel()
            known = self._shuffles[job_id, number] = _Shuffle(job_id, number, data, checks, to)
        if known.failure is not None:
            failure, known.failure = known.failure, None
            raise failure
        left = len(known.left())
        if left and known.task is None:
            known.task = asyncio.create_task(_run(self._identity, known))
        return left + data.open_maps()

    async def close(self) -> None:
        """Cancel the running hand-overs."""
        running = [each.task for each in self._shuffles.values() if each.task is not None]
        await end_tasks(*running)

    def forget(self, job_id: str, number: int | None = None) -> None:
        """Forget a shuffle that was released, or all of a job: its files stay open as long as it is known here."""
        for key in [each for each in self._shuffles if each[0] == job_id and number in {None, each[1]}]:
            released = self._shuffles.pop(key)
            if released.task is not None:
                released.task.cancel()


async def _run(identity: TlsIdentity, shuffle: _Shuffle) -> None:
    try:
        async with contextlib.AsyncExitStack() as stack:
            receiver = _Receiver(identity, shuffle)
            stack.push_async_callback(receiver.close)
            before = len(shuffle.given)
            for each in shuffle.left():
                await receiver.give(each)
        if count := len(shuffle.given) - before:
            _LOG.info("handed over %d maps of shuffle %s to %s", count, shuffle.data.name, shuffle.to.name)
    except ShuffleError as error:
        _LOG.warning("shuffle %s cannot be handed over to %s: %s", shuffle.data.name, shuffle.to.name, error)
        shuffle.failure = error
    finally:
        shuffle.task = None


class _Receiver:
    """The successor of a shuffle. It is connected on first use."""

    def __init__(self, identity: TlsIdentity, shuffle: _Shuffle) -> None:
        self._identity = identity
        self._shuffle = shuffle
        self._connection: WorkerConnection | None = None

    async def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()

    async def give(self, each: Committed) -> None:
        """Transfer a map, or skip it if it cannot be read here."""
        with contextlib.suppress(SegmentCorrupt):
            await self._transfer(each)
        self._shuffle.given.add(each.map_id)

    async def _connected(self) -> WorkerConnection:
        if self._connection is None:
            self._connection = await WorkerConnection.open(
                self._identity, self._shuffle.to, "push", self._shuffle.job_id
            )
        return self._connection

    async def _transfer(self, each: Committed) -> None:
        """Push one map and commit it.

        The successor may have the map already, as a replica. It then refuses the pushes but accepts the commit.
        """
        shuffle, connection = self._shuffle, await self._connected()
        with connection.request() as (request, _):
            for at in await asyncio.to_thread(_plan, shuffle.data, each.map_id):
                row = 0
                while row < len(at):
                    end, payload = await asyncio.to_thread(_frame, shuffle.data, shuffle.checks, at, row)
                    header = Header(
                        FrameType.PUSH, shuffle=shuffle.number, map_id=each.map_id, request=request,
                        length=len(payload), count=end - row,
                    )  # fmt: skip
                    await connection.push(header, payload)
                    row = end
        await connection.commit(shuffle.number, each.map_id, each.segments, each.size)


def _plan(data: ShuffleData, map_id: int) -> list[Located]:
    return list(data.plan(0, MAX_PARTITION, np.array([map_id], np.int64), ordered=True))


def _frame(data: ShuffleData, checks: SegmentChecks, at: Located, row: int) -> tuple[int, bytes]:
    """Return the row after the last segment of a PUSH that begins with segment ``row``, and its verified payload."""
    end, size = row, 0
    while end < len(at) and end - row < FRAME_SEGMENTS and (end == row or size + at.lengths[end] <= FRAME_BYTES):
        size += at.lengths[end]
        end += 1
    table = (end - row) * _ROW.size
    payload = bytearray(table + size)
    view = memoryview(payload)
    data.read(at, row, end, view[table:])
    start = table
    for index in range(row, end):
        length = at.lengths[index]
        place = at.partitions[index], at.maps[index], at.sequences[index]
        if checks.value(*place, view[start : start + length]) != at.checks[index]:
            raise at.damaged(index, "has changed")
        _ROW.pack_into(payload, (index - row) * _ROW.size, place[0], place[2], length, at.checks[index])
        start += length
    return end, bytes(payload)
