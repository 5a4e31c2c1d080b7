"""Write and read shuffle partitions from Python: an asynchronous client of the workers' data plane.

    async with ShuffleClient(identity, workers, integrity_key, replicas=2) as client:
        writer = client.writer(shuffle=3, map_id=17, map_index=0)
        await writer.write(partition=5, data=b"...")
        where = await writer.commit()
        async for segment in client.read(3, where, [17], 5, 6):
            segment.partition, segment.map_id, segment.data

``identity`` is a job's (driver or executor): a job reaches its own data only. What a segment holds is the caller's
business. Check values are computed here and verified here, so that whatever happens in between is found out.
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
"""A writer sends what it has when it has this much."""
FETCH_CREDIT_BYTES = 8 << 20
"""So many bytes may be on their way to a reader."""

ELSEWHERE = (MapUnknown, SegmentCorrupt, DiskFailed, ShuffleUnavailable)
"""Errors after which another replica may help."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of one partition of one map, verified."""

    partition: int
    map_id: int
    sequence: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Pushing:
    """The pushes of one writer on one connection: a request whose only answers are errors."""

    connection: WorkerConnection
    request: int
    answers: Answers

    def check(self) -> None:
        """Raises the error with which a push was answered."""
        if not self.answers.empty() and isinstance(answer := self.answers.get_nowait(), ShuffleError):
            raise answer


class MapWriter:
    """Writes the output of one map attempt to one worker, or with replicas to several alike."""

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
        """Those that have a segment: a reader of what is sealed has to know them."""
        return frozenset(self._partitions)

    async def write(self, partition: int, data: bytes) -> None:
        """Add a segment of at most 4 MiB; waits while the workers are short of memory.

        Raises:
            ShuffleError: a worker refused it, or is gone; the attempt cannot go on.
        """
        most = MAX_SEGMENT_BYTES if self._sealer is None else MAX_SEGMENT_BYTES - SEAL_BYTES
        if len(data) > most:
            raise FrameRefused(f"a segment of {len(data)} bytes", f"at most {most}")
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
        """Send what is collected."""
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
        """Make all of it readable; returns the workers that have it.

        Raises:
            ShuffleError: a worker does not have all of it.
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
        """Tell the workers that nothing of this counts."""
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
                self._pushing[worker].check()  # why a segment was refused says more
            raise

    def _end_pushing(self) -> None:
        for pushing in self._pushing.values():
            pushing.connection.end_request(pushing.request)
        self._pushing.clear()


class ShuffleClient:
    """All that one process of a job does with the shuffle's workers.

    Args:
        identity: of the job's driver or of an executor.
        workers: the live workers of the shuffle, in the order of its allocation.
        integrity_key: the job's, 16 hexadecimal digits.
        replicas: to how many workers each map's output goes.
        seal: seals what is written, and takes nothing else when it reads; None: nothing is sealed.
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
            raise ShuffleError(f"{replicas} replicas on {len(workers)} workers", "at least 1, at most one each")
        self._identity = identity
        self.workers = tuple(workers)
        """Those of the allocation, in its order."""
        self._replicas = replicas
        self.seal = seal
        """Of the job, if its shuffles are sealed."""
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
        """End all connections."""
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            await connection.close()

    def writer(self, shuffle: int, map_id: int, map_index: int, attempt: int = 0) -> MapWriter:
        """Write one attempt of one map, whose id no other attempt ever has."""
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
        """The segments of partitions ``first`` … ``end`` - 1 of ``maps``, each verified, partitions ascending.

        ``where`` are the workers that all these maps were committed to: when one fails, the next one is asked for what
        is missing. ``ordered``: each partition's segments by (map, sequence).
        ``blocks``: which partitions of each map have segments, as its writer said (:attr:`MapWriter.partitions`); what
        is sealed cannot be read without.

        Raises:
            ShuffleError: none of them has it; what was yielded before is right but not all.
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
                        raise FrameRefused(f"shuffle worker {worker.name} sent what was not asked for")
                    segments += 1
                    size += len(segment.data)
                    yield segment
        if answer.kind is not FrameType.END or (answer.count, answer.extra) != (segments & 0xFFFFFFFF, size):
            raise ShuffleUnavailable(f"shuffle worker {worker.name} ended a fetch before all was sent")

    async def connection(self, worker: WorkerAddress, direction: Literal["push", "fetch"]) -> WorkerConnection:
        """The one connection to ``worker`` in this direction, opened when there is none that works."""
        key = worker.name, direction
        async with self._opening.setdefault(key, asyncio.Lock()):
            connection = self._connections.get(key)
            if connection is None or not connection.usable:
                if connection is not None:
                    await connection.close()
                connection = self._connections[key] = await WorkerConnection.open(self._identity, worker, direction)
            return connection


class _Sealed:
    """Opens what one read gets from workers, and finds out what they keep back, repeat or invent."""

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
        """What one worker gives and none before it: the worker has to give all that there is, or there is an error."""
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
        """What an earlier worker has kept back may be too late now."""
        place = segment.map_id, segment.sequence
        self._had.add(place)
        at = (segment.partition, *(place if self._ordered else (-1, -1)))
        if at < self._greatest:
            raise SegmentCorrupt(f"segment {segment.sequence} of map {segment.map_id} came out of order")
        self._greatest = at


def segments_of(header: Header, payload: bytes, checks: SegmentChecks) -> list[Segment]:
    """The segments in a DATA frame; raises :class:`SegmentCorrupt` naming the first that is not what was written."""
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
