"""An asynchronous client of the workers' data plane, to write and read shuffle partitions from Python.

    async with ShuffleClient(identity, workers, integrity_key, replicas=2) as client:
        writer = client.writer(shuffle=3, map_id=17, map_index=0)
        await writer.write(partition=5, data=b"...")
        where = await writer.commit()
        async for segment in client.read(3, where, [17], 5, 6):
            segment.partition, segment.map_id, segment.data

``identity`` is that of a job's driver or executor; it gives access to the data of this job only. The client does not
interpret the contents of segments. It computes check values when it writes and verifies them when it reads, so it
detects any damage in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import msgspec
import numpy as np

from sluice.pki.tls import TlsIdentity
from sluice.runtime.messages import WorkerAddress
from sluice.runtime.shuffle.client.connection import Answers, WorkerConnection
from sluice.runtime.shuffle.data_plane import (
    DATA_ENTRY,
    FLAG_ORDERED,
    MAX_SEGMENT_BYTES,
    MAX_SEGMENTS_PER_PUSH,
    SEAL_BYTES,
    SEGMENT_ENTRY,
    DiskFailed,
    FrameRefused,
    FrameType,
    Header,
    MapSealer,
    MapUnknown,
    SealedBlocks,
    SealKeys,
    SegmentChecks,
    SegmentCorrupt,
    SegmentOpener,
    ShuffleError,
    ShuffleUnavailable,
    parse_data_table,
)

__all__ = ["MapWriter", "Segment", "ShuffleClient", "WorkerAddress"]

FRAME_BYTES = 512 << 10
"""A writer sends its buffer when it has at least this size."""
FETCH_CREDIT_BYTES = 8 << 20
"""How many bytes may be in flight to a reader."""

ELSEWHERE = (MapUnknown, SegmentCorrupt, DiskFailed, ShuffleUnavailable)
"""Errors after which the client tries another replica."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of a partition of a map. Its check value was verified."""

    partition: int
    map_id: int
    sequence: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Pushing:
    """The pushes of one writer on one connection. They form one request, which is answered only in case of an error."""

    connection: WorkerConnection
    request: int
    answers: Answers

    def check(self) -> None:
        """Raise the error with which the worker answered a push, if there is one."""
        if not self.answers.empty() and isinstance(answer := self.answers.get_nowait(), ShuffleError):
            raise answer


class MapWriter:
    """Writes the output of one map attempt to one worker, or the same output to several workers as replicas."""

    def __init__(self, client: ShuffleClient, shuffle: int, map_id: int, workers: Sequence[WorkerAddress]) -> None:
        self._client = client
        self._shuffle = shuffle
        self._map_id = map_id
        self._workers = tuple(workers)
        self._checks = SegmentChecks(client.integrity_key, shuffle)
        self._pending: list[tuple[int, int, int, int]] = []
        self._data: list[bytes] = []
        self._pending_bytes = 0
        self._segments = 0
        self._size = 0
        self._pushing: dict[WorkerAddress, _Pushing] = {}
        self._sealer = None if client.seal is None else MapSealer(client.seal, shuffle, map_id)
        self._partitions: set[int] = set()

    @property
    def partitions(self) -> frozenset[int]:
        """The partitions that have a segment. Readers of a sealed shuffle need them."""
        return frozenset(self._partitions)

    async def write(self, partition: int, data: bytes) -> None:
        """Add a segment of at most 4 MiB; waits while the workers are short of memory.

        Raises:
            ShuffleError: a worker refused it or is unreachable. The attempt cannot continue.
        """
        most = MAX_SEGMENT_BYTES if self._sealer is None else MAX_SEGMENT_BYTES - SEAL_BYTES
        if len(data) > most:
            raise FrameRefused(f"a segment has {len(data)} bytes", f"at most {most} are allowed")
        self._partitions.add(partition)
        await self._add(partition, data if self._sealer is None else self._sealer.seal(partition, data))

    async def _add(self, partition: int, data: bytes) -> None:
        check = self._checks.value(partition, self._map_id, self._segments, data)
        self._pending.append((partition, self._segments, len(data), check))
        self._data.append(data)
        self._segments += 1
        self._size += len(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= FRAME_BYTES or len(self._pending) >= MAX_SEGMENTS_PER_PUSH:
            await self.flush()

    async def flush(self) -> None:
        """Send the buffered segments."""
        if not self._pending:
            return
        table = np.array(self._pending, SEGMENT_ENTRY)
        payload = b"".join([table.tobytes(), *self._data])
        header = Header(
            FrameType.PUSH,
            shuffle=self._shuffle,
            map_id=self._map_id,
            length=len(payload),
            count=len(table),
        )
        self._pending, self._data, self._pending_bytes = [], [], 0
        await asyncio.gather(*(self._push(worker, header, payload) for worker in self._workers))

    async def commit(self) -> tuple[WorkerAddress, ...]:
        """Make the map readable; returns the workers that have it.

        Raises:
            ShuffleError: a worker does not have all of the map.
        """
        try:
            if self._sealer is not None:
                for partition in self._sealer.unfinished:
                    await self._add(partition, self._sealer.seal(partition, b"", last=True))
            await self.flush()
            await asyncio.gather(*(self._commit(worker) for worker in self._workers))
        finally:
            self._end_pushing()
        return self._workers

    async def abort(self) -> None:
        """Tell the workers to discard this attempt."""
        self._end_pushing()
        header = Header(FrameType.ABORT, shuffle=self._shuffle, map_id=self._map_id)
        for worker in self._workers:
            with contextlib.suppress(ShuffleError):
                connection = await self._client.connection(worker, "push")
                await connection.send(header.pack())

    async def _push(self, worker: WorkerAddress, header: Header, payload: bytes) -> None:
        connection = await self._client.connection(worker, "push")
        pushing = self._pushing.get(worker)
        if pushing is None or pushing.connection is not connection:
            pushing = self._pushing[worker] = _Pushing(connection, *connection.begin_request())
        pushing.check()
        await connection.push(msgspec.structs.replace(header, request=pushing.request), payload)

    async def _commit(self, worker: WorkerAddress) -> None:
        connection = await self._client.connection(worker, "push")
        try:
            await connection.commit(self._shuffle, self._map_id, self._segments, self._size)
        except ShuffleError:
            if worker in self._pushing:
                self._pushing[worker].check()  # the reason why a segment was refused is more specific
            raise

    def _end_pushing(self) -> None:
        for pushing in self._pushing.values():
            pushing.connection.end_request(pushing.request)
        self._pushing.clear()


class ShuffleClient:
    """The connections of one process of a job to the shuffle's workers.

    Args:
        identity: that of the job's driver or of an executor.
        workers: the live workers of the shuffle, in the order of the allocation.
        integrity_key: the job's integrity key, 16 hexadecimal digits.
        replicas: the number of workers that store the output of each map.
        seal: the keys with which writers seal all segments, and without which readers accept none; None: no sealing.
    """

    def __init__(
        self,
        identity: TlsIdentity,
        workers: Sequence[WorkerAddress],
        integrity_key: str,
        *,
        replicas: int = 1,
        seal: SealKeys | None = None,
    ) -> None:
        if not 1 <= replicas <= len(workers):
            raise ShuffleError(f"{replicas} replicas with {len(workers)} workers", "use 1 to the number of workers")
        self._identity = identity
        self.workers = tuple(workers)
        """The workers of the shuffle, in the order of the allocation."""
        self._replicas = replicas
        self.seal = seal
        """The job's keys, if its shuffles are sealed."""
        self.integrity_key = bytes.fromhex(integrity_key)
        self._connections: dict[tuple[str, str], WorkerConnection] = {}
        self._opening: dict[tuple[str, str], asyncio.Lock] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            await connection.close()

    def writer(self, shuffle: int, map_id: int, map_index: int, attempt: int = 0) -> MapWriter:
        """Return a writer for one attempt of one map. ``map_id`` must be unique to the attempt."""
        count = len(self.workers)
        first = (map_index + attempt) % count
        return MapWriter(self, shuffle, map_id, [self.workers[(first + i) % count] for i in range(self._replicas)])

    async def read(
        self,
        shuffle: int,
        where: Sequence[WorkerAddress],
        maps: Sequence[int],
        first: int,
        end: int,
        *,
        ordered: bool = False,
        blocks: Mapping[int, Collection[int]] | None = None,
    ) -> AsyncIterator[Segment]:
        """Yield the verified segments of partitions ``first`` … ``end`` - 1 of ``maps``, in ascending partition order.

        Args:
            shuffle: the number of the shuffle.
            where: the workers that all these maps were committed to. If one fails, the next one is asked for the rest.
            maps: the ids of the maps.
            first, end: the range of partitions.
            ordered: whether to sort the segments of each partition by (map, sequence).
            blocks: the partitions of each map that have segments, from :attr:`MapWriter.partitions` of its writer. A
                sealed shuffle cannot be read without them.

        Raises:
            ShuffleError: no worker could deliver the rest. The segments that were yielded before are correct.
        """
        seen: set[tuple[int, int]] = set()
        sealed = None if self.seal is None else _Sealed(self.seal, shuffle, maps, blocks, (first, end), ordered=ordered)
        for position, worker in enumerate(where):
            try:
                found = self._read_from(worker, shuffle, maps, (first, end), ordered=ordered)
                async for segment in found if sealed is None else sealed.opened(found):
                    place = segment.map_id, segment.sequence
                    if place not in seen:
                        seen.add(place)
                        yield segment
            except (*ELSEWHERE, FrameRefused):
                if position + 1 == len(where):
                    raise
            else:
                return

    async def _read_from(
        self, worker: WorkerAddress, shuffle: int, maps: Sequence[int], partitions: tuple[int, int], *, ordered: bool
    ) -> AsyncIterator[Segment]:
        checks = SegmentChecks(self.integrity_key, shuffle)
        connection = await self.connection(worker, "fetch")
        payload = np.array(maps, "<i8").tobytes()
        first, end = partitions
        segments = size = 0
        wanted = frozenset(maps)
        header = Header(
            FrameType.FETCH,
            shuffle=shuffle,
            partition=first,
            count=len(maps),
            aux=end,
            extra=FETCH_CREDIT_BYTES,
            flags=FLAG_ORDERED if ordered else 0,
        )
        async with contextlib.aclosing(connection.stream(header, payload)) as answers:
            async for answer, data in answers:
                if answer.kind is not FrameType.DATA:
                    break
                for segment in segments_of(answer, data, checks):
                    if segment.map_id not in wanted or not first <= segment.partition < end:
                        raise FrameRefused(f"shuffle worker {worker.name} sent a segment that was not requested")
                    segments += 1
                    size += len(segment.data)
                    yield segment
        if answer.kind is not FrameType.END or (answer.count, answer.extra) != (segments & 0xFFFFFFFF, size):
            raise ShuffleUnavailable(f"shuffle worker {worker.name} ended a fetch before it had sent all segments")

    async def connection(self, worker: WorkerAddress, direction: Literal["push", "fetch"]) -> WorkerConnection:
        """Return the shared connection to ``worker`` in this direction; opens one if none is usable."""
        key = worker.name, direction
        async with self._opening.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is None or not connection.usable:
                if connection is not None:
                    await connection.close()
                connection = self._connections[key] = await WorkerConnection.open(self._identity, worker, direction)
            return connection


class _Sealed:
    """Opens the sealed segments of one read, and detects segments that workers omit, repeat or forge."""

    def __init__(
        self,
        keys: SealKeys,
        shuffle: int,
        maps: Sequence[int],
        blocks: Mapping[int, Collection[int]] | None,
        partitions: tuple[int, int],
        *,
        ordered: bool,
    ) -> None:
        if blocks is None or not blocks.keys() >= set(maps):
            raise ShuffleError("a sealed shuffle is read without knowing what each map has written", "pass blocks")
        self._opener = SegmentOpener(keys, shuffle)
        self._written = {each: blocks[each] for each in maps}
        self._partitions = partitions
        self._ordered = ordered
        self._had: set[tuple[int, int]] = set()
        self._greatest = (-1, -1, -1)

    async def opened(self, found: AsyncIterator[Segment]) -> AsyncIterator[Segment]:
        """Yield the opened segments of one worker, except those that an earlier worker delivered.

        Raises:
            ShuffleError: the worker did not deliver all segments, or a segment is wrong.
        """
        blocks = SealedBlocks(self._written, self._partitions, ordered=self._ordered)
        here: set[tuple[int, int]] = set()
        async for segment in found:
            place = segment.map_id, segment.sequence
            data, last = self._opener.open(segment.partition, *place, segment.data)
            if place in here:
                raise SegmentCorrupt(f"segment {segment.sequence} of map {segment.map_id} came twice")
            here.add(place)
            blocks.add(segment.partition, *place, last)
            if place not in self._had:
                self._take(segment)
                if data or not last:
                    yield dataclasses.replace(segment, data=data)
        blocks.finish()

    def _take(self, segment: Segment) -> None:
        """Record a new segment; raises if it comes too late because an earlier worker omitted it."""
        place = segment.map_id, segment.sequence
        self._had.add(place)
        at = (segment.partition, *(place if self._ordered else (-1, -1)))
        if at < self._greatest:
            raise SegmentCorrupt(f"segment {segment.sequence} of map {segment.map_id} came out of order")
        self._greatest = at


def segments_of(header: Header, payload: bytes, checks: SegmentChecks) -> list[Segment]:
    """Return the segments of a DATA frame; raises :class:`SegmentCorrupt`, which names the first damaged one."""
    at = header.count * DATA_ENTRY.itemsize
    view = memoryview(payload)
    found = []
    for partition, sequence, map_id, length, check in parse_data_table(header, payload):
        data = view[at : at + length]
        if checks.value(partition, map_id, sequence, data) != check:
            raise SegmentCorrupt(
                f"segment {sequence} of map {map_id} in partition {partition} arrived damaged",
                partition=partition,
                map_id=map_id,
            )
        found.append(Segment(partition, map_id, sequence, bytes(data)))
        at += length
    return found
