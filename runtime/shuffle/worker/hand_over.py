"""A worker that is drained gives what it keeps of its shuffles to other workers.

It dials a successor's data channel as what it is, a shuffle worker, and pushes committed maps as their writers did: the
same segments, sequence numbers and check values. The successor lets it in for the jobs that the manager told it to
expect from this worker, and for no other. What is here stays here until the job or the shuffle is released.

Maps that were announced are announced there. When all of them are, this worker has nothing more to decide about them:
it sends readers and writers there, and announces there what was begun here and commits later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import dataclass, field

import numpy as np

from sluice.core import end_tasks
from sluice.pki.tls import TlsIdentity
from sluice.runtime.messages import WorkerAddress
from sluice.runtime.shuffle.client import WorkerConnection
from sluice.runtime.shuffle.data_plane import (
    MAX_PARTITION,
    AttemptSuperseded,
    FrameType,
    Header,
    MapUnknown,
    Produced,
    SegmentChecks,
    SegmentCorrupt,
    ShuffleError,
    ShuffleUnavailable,
    pack_share,
)
from sluice.runtime.shuffle.worker.storage import Committed, Located, ShuffleData, ShuffleStore

_LOG = logging.getLogger(__name__)

FRAME_BYTES = 1 << 20
"""About so much data goes into one frame."""
FRAME_SEGMENTS = 1024
HOLD_SECONDS = 10.0
"""How long commits that have begun may take before the hand-over is put off."""
HELD_SECONDS = 0.5
"""For about so long who commits waits at first, while what was committed meanwhile is given."""
HELD_FACTOR = 1.25
"""So much longer each time, until the hand-over has caught up."""
LONGEST_HELD_SECONDS = 30.0
FREE_SECONDS = 0.05
"""For so long they may go on in between."""
FORWARD_SECONDS = 100.0
"""How long a commit waits until it is announced elsewhere; less than its writer waits."""
_ROW = struct.Struct("<IIII")


@dataclass(slots=True)
class _Shuffle:
    """A shuffle, to whom it goes, and which of its maps are there."""

    job_id: str
    number: int
    data: ShuffleData
    checks: SegmentChecks
    to: WorkerAddress
    given: set[int] = field(default_factory=set)
    superseded: set[int] = field(default_factory=set)
    giving: asyncio.Lock = field(default_factory=asyncio.Lock)
    settled: bool = False
    """Whether ``to``, or whoever had it before and is there, decides about it now."""
    announcing: set[asyncio.Task[None]] = field(default_factory=set)
    task: asyncio.Task[None] | None = None
    failure: ShuffleError | None = None

    def left(self) -> list[Committed]:
        """What is still to be given."""
        return [each for each in self.data.committed() if each.map_id not in self.given]


class HandOvers:
    """All hand-overs of one worker; used on its event loop.

    Args:
        identity: the worker's.
        store: what it keeps.
    """

    def __init__(self, identity: TlsIdentity, store: ShuffleStore) -> None:
        self._identity = identity
        self._store = store
        self._shuffles: dict[tuple[str, int], _Shuffle] = {}

    def hand_over(self, job_id: str, number: int, to: WorkerAddress) -> int:
        """Go on handing a shuffle over, in the background; returns how much is left: maps, not committed ones included,
        and peers that are not told yet that it goes on elsewhere.

        To be called again until nothing is left. What cannot be read here any more is left out: it would be lost for
        readers all the same.

        Raises:
            ShuffleError: why it does not go on since the last call.
        """
        job = self._store.job(job_id)
        try:
            data, checks = job.shuffle(number, create=False)
        except MapUnknown:
            self._shuffles.pop((job_id, number), None)
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
        if (left or not known.settled) and known.task is None:
            known.task = asyncio.create_task(_run(self._identity, known))
        rest = data.announced.parties(self._store.config.follow_seconds) if known.settled else 1
        return left + data.open_maps() + rest

    async def close(self) -> None:
        """End those that run."""
        running = [each.task for each in self._shuffles.values() if each.task is not None]
        announcing = [task for each in self._shuffles.values() for task in each.announcing]
        await end_tasks(*running, *announcing)


async def _run(identity: TlsIdentity, shuffle: _Shuffle) -> None:
    try:
        async with contextlib.AsyncExitStack() as stack:
            receiver = _Receiver(identity, shuffle)
            stack.push_async_callback(receiver.close)
            before = len(shuffle.given)
            for each in shuffle.left():
                await receiver.give(each)
            if not shuffle.settled:
                await _settle(identity, shuffle, receiver)
        if count := len(shuffle.given) - before:
            _LOG.info("%d maps of shuffle %s are with %s now", count, shuffle.data.name, shuffle.to.name)
    except ShuffleError as error:
        _LOG.warning("shuffle %s cannot be handed over to %s: %s", shuffle.data.name, shuffle.to.name, error)
        shuffle.failure = error
    finally:
        shuffle.task = None


async def _settle(identity: TlsIdentity, shuffle: _Shuffle, receiver: _Receiver) -> None:
    """Let the successor decide about what is announced."""
    pipeline = shuffle.data.announced
    if pipeline.moved is None or not await _is_there(identity, pipeline.moved, shuffle.job_id):
        held = HELD_SECONDS
        while not (pipeline.over or await _move(identity, shuffle, receiver, held)):
            held = min(held * HELD_FACTOR, LONGEST_HELD_SECONDS)
            await asyncio.sleep(FREE_SECONDS)
    # Else the one that has it already has decided since, and hands over itself.
    shuffle.settled = True


async def _move(identity: TlsIdentity, shuffle: _Shuffle, receiver: _Receiver, seconds: float) -> bool:
    """Give the rest while nobody commits, and let the successor decide; False when ``seconds`` are too short."""
    pipeline = shuffle.data.announced
    try:
        if not await asyncio.to_thread(pipeline.hold, HOLD_SECONDS):
            raise ShuffleUnavailable(f"commits to shuffle {shuffle.data.name} do not end")
        until = time.monotonic() + seconds
        for each in shuffle.left():
            if time.monotonic() > until:
                return False
            await receiver.give(each)
        for share, maps in pipeline.complete_shares:
            await receiver.complete(pack_share(share, maps), len(maps))
        shuffle.data.forward = _forwarding(identity, shuffle)
        pipeline.move(shuffle.to)
    finally:
        pipeline.let_go()
    return True


async def _is_there(identity: TlsIdentity, worker: WorkerAddress, job_id: str) -> bool:
    """Whether a worker still expects us: it has not ended since."""
    try:
        connection = await WorkerConnection.open(identity, worker, "push", job_id)
    except ShuffleError:
        return False
    await connection.close()
    return True


def _forwarding(identity: TlsIdentity, shuffle: _Shuffle) -> Callable[[int], None]:
    """What announces a map at the successor that was committed here after the hand-over; for threads to call."""
    loop = asyncio.get_running_loop()

    async def announce(map_id: int) -> None:
        receiver = _Receiver(identity, shuffle)
        try:
            for each in shuffle.data.committed():
                if each.map_id == map_id:
                    await receiver.give(each)
        finally:
            await receiver.close()
        if map_id in shuffle.superseded:
            raise AttemptSuperseded(f"attempt {map_id} of shuffle {shuffle.data.name} does not count", map_id=map_id)

    async def noted(map_id: int) -> None:
        task = asyncio.create_task(announce(map_id))
        shuffle.announcing.add(task)
        task.add_done_callback(shuffle.announcing.discard)
        await task

    def forward(map_id: int) -> None:
        announced = asyncio.run_coroutine_threadsafe(noted(map_id), loop)
        try:
            announced.result(FORWARD_SECONDS)
        except (CancelledError, TimeoutError) as error:
            announced.cancel()
            raise ShuffleUnavailable(f"map {map_id} cannot be announced at {shuffle.to.name}") from error

    return forward


class _Receiver:
    """The successor of a shuffle, connected to when there is something to say."""

    def __init__(self, identity: TlsIdentity, shuffle: _Shuffle) -> None:
        self._identity = identity
        self._shuffle = shuffle
        self._connection: WorkerConnection | None = None

    async def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            await self._connection.close()

    async def give(self, each: Committed) -> None:
        """Have it there, once, if it can be read here."""
        shuffle = self._shuffle
        async with shuffle.giving:
            if each.map_id in shuffle.given:
                return
            try:
                await self._give(each)
            except SegmentCorrupt:
                pass
            except AttemptSuperseded:
                shuffle.superseded.add(each.map_id)
            shuffle.given.add(each.map_id)

    async def complete(self, payload: bytes, maps: int) -> None:
        """Say that a share is complete; readers hear it there if it has not all of it."""
        with contextlib.suppress(MapUnknown):
            await (await self._connected()).produced(self._shuffle.number, Produced.COMPLETE, payload, maps)

    async def _connected(self) -> WorkerConnection:
        if self._connection is None:
            self._connection = await WorkerConnection.open(
                self._identity, self._shuffle.to, "push", self._shuffle.job_id
            )
        return self._connection

    async def _give(self, each: Committed) -> None:
        """Push one map and commit it. The successor may have it already, as a replica: then its pushes are refused, and
        the commit is not.
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
        index = shuffle.data.announced.indexes.get(each.map_id)
        await connection.commit(shuffle.number, each.map_id, each.segments, each.size, index)


def _plan(data: ShuffleData, map_id: int) -> list[Located]:
    return list(data.plan(0, MAX_PARTITION, np.array([map_id], np.int64), ordered=True))


def _frame(data: ShuffleData, checks: SegmentChecks, at: Located, row: int) -> tuple[int, bytes]:
    """The payload of a PUSH that begins with segment ``row``, checked, and the row after its last."""
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
