"""Shuffles that are read while they are written.

    async with Producer(client, shuffle=3) as producer:      # leaving it completes the shuffle, an exception aborts it
        writer = producer.writer(map_index=0, map_id=17)
        await writer.write(partition=5, data=b"...")
        await writer.commit()

    async for segment in follow(client, shuffle=3, first=5, end=6):      # meanwhile, elsewhere
        segment.partition, segment.map_id, segment.data

A reader gets each map when it is committed, and of each map one attempt, whichever workers fail: where that cannot be
kept, it ends with an error. Its end without one means that it has had all that counts. Where a worker is drained
meanwhile, all go on at its successor.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self

from sluice.core import end_tasks
from sluice.runtime.messages import WorkerAddress
from sluice.runtime.shuffle.client.client import (
    ELSEWHERE,
    FETCH_CREDIT_BYTES,
    MapWriter,
    Segment,
    ShuffleClient,
    segments_of,
)
from sluice.runtime.shuffle.data_plane import (
    MAX_ERROR_TEXT_BYTES,
    AttemptLost,
    AttemptSuperseded,
    FrameRefused,
    FrameType,
    Header,
    Produced,
    ProducerSilent,
    SegmentChecks,
    Share,
    ShuffleError,
    ShuffleUnavailable,
    pack_share,
    parse_maps,
)

_LOG = logging.getLogger(__name__)

SIGN_OF_LIFE_SECONDS = 10.0
"""So often a producer says that it goes on."""
TRIES = 2
"""How often a reader asks each worker without having got a map in between."""
_ASK_ANOTHER = (*ELSEWHERE, ProducerSilent, AttemptLost)
"""Errors of one worker after which a replica may know better."""
_NOT_AGAIN = (ProducerSilent, AttemptLost)
"""Those that the same worker would only repeat."""


class AnnouncedWriter(MapWriter):
    """Writes one attempt of one map of a shuffle that may be read meanwhile.

    With replicas it goes on as long as one of the workers takes it. What it began at a worker it ends there.
    """

    def __init__(self, client: ShuffleClient, shuffle: int, map_index: int, map_id: int) -> None:
        super().__init__(_unsealed(client), shuffle, map_id, client.placement(map_index))
        self._announced_as = map_index
        self._failed: dict[WorkerAddress, ShuffleError] = {}
        self._began = False

    async def flush(self) -> None:
        """Send what is collected, to where the shuffle is when the first of it is sent."""
        if not self._began:
            await self._begin()
        await super().flush()

    async def _begin(self) -> None:
        places = await asyncio.gather(*(self._begin_for(worker) for worker in self._workers))
        # Two of the workers may have one successor.
        self._workers = tuple(dict.fromkeys(place for place in places if place is not None))
        self._failed.clear()
        self._began = True

    async def _begin_for(self, worker: WorkerAddress) -> WorkerAddress | None:
        with self._one_may_fail(worker):
            return await self._client.successors(self._shuffle).at(worker, self._begin_at)
        return None

    async def _begin_at(self, place: WorkerAddress) -> WorkerAddress:
        connection = await self._client.connection(place, "push")
        await connection.begin_map(self._shuffle, self._map_id)
        return place

    async def commit(self) -> tuple[WorkerAddress, ...]:
        """Make it the attempt of its map that counts, and readable; returns the workers that have it.

        Raises:
            AttemptSuperseded: another attempt of the map counts.
            ShuffleError: no worker has all of it.
        """
        held: list[WorkerAddress] = []
        try:
            await self.flush()
            for worker in self._workers:  # one after the other: the first one there is decides which attempt counts
                if worker not in self._failed:
                    with self._one_may_fail(worker):
                        await self._commit(worker)
                        held.append(worker)
        except AttemptSuperseded:
            await self.abort()
            raise
        finally:
            self._end_pushing()
        return tuple(held)

    async def _push(self, worker: WorkerAddress, header: Header, payload: bytes) -> None:
        if worker not in self._failed:
            with self._one_may_fail(worker):
                await super()._push(worker, header, payload)

    @contextlib.contextmanager
    def _one_may_fail(self, worker: WorkerAddress) -> Iterator[None]:
        try:
            yield
        except AttemptSuperseded:
            raise
        except (ShuffleError, TimeoutError) as error:
            known = error if isinstance(error, ShuffleError) else ShuffleUnavailable(f"{worker.name} takes nothing")
            self._failed[worker] = known
            _LOG.warning("map %d of shuffle %d goes on without %s: %s", self._map_id, self._shuffle, worker.name, known)
            if len(self._failed) == len(self._workers):
                raise known from error


def _unsealed(client: ShuffleClient) -> ShuffleClient:
    """``client`` when it seals nothing: which maps there are a follower has from workers alone."""
    if client.seal is not None:
        raise ShuffleError("a sealed shuffle cannot be followed", "read it when its maps are committed")
    return client


class Producer:
    """The one place that says which maps a shuffle has, and when it is complete.

    Args:
        client: a client with the workers of the shuffle's allocation, in the same order as that of its readers.
        shuffle: a number that no other shuffle of the job ever has.
    """

    def __init__(self, client: ShuffleClient, shuffle: int) -> None:
        self._client = client
        self._shuffle = shuffle
        self._maps: dict[int, int] = {}
        self._living: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        # One for each: a worker that stands still must not keep the others from hearing of us.
        self._living = [
            asyncio.create_task(self._live(worker), name=f"shuffle-{self._shuffle}-producer")
            for worker in self._client.workers
        ]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.complete()
            else:
                await self.abort(str(error) or type(error).__name__)
        finally:
            await end_tasks(*self._living)

    def writer(self, map_index: int, map_id: int) -> AnnouncedWriter:
        """Write one attempt of a map, whose id no other attempt ever has; what it commits is counted in."""
        return _CountedWriter(self, self._client, self._shuffle, map_index, map_id)

    def count_in(self, map_index: int, map_id: int) -> None:
        """An attempt that an :class:`AnnouncedWriter` of another process has committed."""
        self._maps[map_index] = map_id

    async def complete(self) -> None:
        """Say that the maps counted in are all there are.

        Raises:
            ShuffleError: a part of them is with no worker that answers; the shuffle is given up then.
        """
        workers = self._client.workers
        shares = [Share(len(workers), index) for index in range(len(workers))]
        said = [
            asyncio.gather(
                *(self._complete(worker, share) for worker in self._client.placement(share.remainder)),
                return_exceptions=True,
            )
            for share in shares
        ]
        for errors in await asyncio.gather(*said):
            if None not in errors:
                error = errors[0] or ShuffleUnavailable("no worker answers")
                await self.abort(str(error))
                raise error

    async def abort(self, reason: str) -> None:
        """Give the shuffle up; readers get :class:`ProducerAborted` with ``reason``."""
        text = reason.encode()[:MAX_ERROR_TEXT_BYTES].decode(errors="ignore").encode()
        said = (self._say(worker, Produced.ABORTED, text) for worker in self._client.workers)
        await asyncio.gather(*said, return_exceptions=True)

    async def _complete(self, worker: WorkerAddress, share: Share) -> None:
        maps = [map_id for index, map_id in self._maps.items() if share.has(index)]
        await self._say(worker, Produced.COMPLETE, pack_share(share, maps), len(maps))

    async def _live(self, worker: WorkerAddress) -> None:
        while True:
            with contextlib.suppress(ShuffleError):
                await self._client.successors(self._shuffle).at(worker, self._live_at)
            await asyncio.sleep(SIGN_OF_LIFE_SECONDS)

    async def _live_at(self, place: WorkerAddress) -> None:
        connection = await self._client.connection(place, "push")
        await connection.live(self._shuffle, SIGN_OF_LIFE_SECONDS)

    async def _say(self, worker: WorkerAddress, what: Produced, payload: bytes = b"", maps: int = 0) -> None:
        async def say(place: WorkerAddress) -> None:
            connection = await self._client.connection(place, "push")
            await connection.produced(self._shuffle, what, payload, maps)

        await self._client.successors(self._shuffle).at(worker, say)


class _CountedWriter(AnnouncedWriter):
    def __init__(self, producer: Producer, client: ShuffleClient, shuffle: int, map_index: int, map_id: int) -> None:
        super().__init__(client, shuffle, map_index, map_id)
        self._producer = producer
        self._place = map_index, map_id

    async def commit(self) -> tuple[WorkerAddress, ...]:
        held = await super().commit()
        self._producer.count_in(*self._place)
        return held


async def follow(client: ShuffleClient, shuffle: int, first: int, end: int) -> AsyncIterator[Segment]:
    """The segments of partitions ``first`` … ``end`` - 1 of a shuffle, each map's as soon as it is committed.

    Maps come as they are committed, the segments of one by (partition, sequence). Nothing is read ahead of the caller
    but what the credit of each worker allows.

    Raises:
        ProducerAborted: the producer gave the shuffle up.
        ProducerSilent: nobody produces it, or not any more.
        AttemptLost: an attempt that was read does not count any more.
        ShuffleError: no worker that is left has all of it. What was yielded before is not all in each of these cases.
    """
    queue: asyncio.Queue[Segment | BaseException | None] = asyncio.Queue(maxsize=1)
    count = len(_unsealed(client).workers)
    readers = [_ShareReader(client, shuffle, (first, end), Share(count, rest), queue) for rest in range(count)]
    tasks = [asyncio.create_task(reader.run(), name=f"shuffle-{shuffle}-follow") for reader in readers]
    try:
        while count:
            match await queue.get():
                case None:
                    count -= 1
                case BaseException() as error:
                    raise error
                case Segment() as segment:
                    yield segment
    finally:
        await end_tasks(*tasks)


class _ShareReader:
    """Follows the maps of one share, at the first of their workers that answers."""

    def __init__(
        self,
        client: ShuffleClient,
        shuffle: int,
        partitions: tuple[int, int],
        share: Share,
        queue: asyncio.Queue[Segment | BaseException | None],
    ) -> None:
        self._client = client
        self._shuffle = shuffle
        self._partitions = partitions
        self._share = share
        self._queue = queue
        self._checks = SegmentChecks(client.integrity_key, shuffle)
        self._attempts: dict[int, int] = {}
        self._had: set[int] = set()
        self._seen: set[tuple[int, int]] = set()
        """Segments of maps that were not read to their end."""
        self._batch: frozenset[int] = frozenset()
        """The maps that the worker is sending."""
        self._received = (0, 0)
        """How many segments and bytes of them have come."""

    async def run(self) -> None:
        """Until the share is complete (None in the queue) or cannot be read (an exception)."""
        try:
            await self._follow()
        except Exception as error:  # noqa: BLE001  it is the caller's, who waits at the queue
            await self._queue.put(error)
        else:
            await self._queue.put(None)

    async def _follow(self) -> None:
        workers = list(self._client.placement(self._share.remainder))
        left = len(workers) * TRIES
        while True:
            worker, before = workers[0], len(self._had)
            try:
                await self._client.successors(self._shuffle).at(worker, self._follow_at)
            except _ReadTwice:
                raise
            except _ASK_ANOTHER as error:
                left = left - 1 if len(self._had) == before else len(workers) * TRIES - 1
                del workers[0]
                if not isinstance(error, _NOT_AGAIN):
                    workers.append(worker)
                if not workers or not left:
                    raise
                _LOG.info("shuffle %d is followed at %s now: %s", self._shuffle, workers[0].name, error)
            else:
                return

    async def _follow_at(self, worker: WorkerAddress) -> None:
        connection = await self._client.connection(worker, "fetch")
        payload = pack_share(self._share, self._had)
        first, end = self._partitions
        header = Header(
            FrameType.FOLLOW,
            shuffle=self._shuffle,
            partition=first,
            count=len(self._had),
            aux=end,
            extra=FETCH_CREDIT_BYTES,
        )
        self._batch = frozenset()
        total = (0, 0)
        async with contextlib.aclosing(connection.stream(header, payload)) as answers:
            async for answer, data in answers:
                match answer.kind:
                    case FrameType.MAPS:
                        self._announced(worker, parse_maps(answer, data))
                    case FrameType.DATA:
                        await self._yield(worker, answer, data)
                    case FrameType.MAPS_SENT:
                        total = total[0] + self._received[0], total[1] + self._received[1]
                        self._sent(worker, answer)
                    case FrameType.END:
                        break
                    case kind:
                        raise FrameRefused(f"shuffle worker {worker.name} answered FOLLOW with {kind.name}")
        if _sums(answer) != _wire_sums(total) or self._batch:
            raise ShuffleUnavailable(f"shuffle worker {worker.name} ended before all was sent")

    def _announced(self, worker: WorkerAddress, maps: list[tuple[int, int]]) -> None:
        """A batch begins; nothing in it may be another attempt of what was read."""
        if not maps:
            return
        if self._batch:
            raise FrameRefused(f"shuffle worker {worker.name} began with maps before it ended others")
        for map_id, index in maps:
            if index % self._share.modulus != self._share.remainder or map_id in self._had:
                raise FrameRefused(f"shuffle worker {worker.name} sent map {index}, which was not asked for")
            known = self._attempts.setdefault(index, map_id)
            if known != map_id:
                raise _ReadTwice(
                    f"map {index} of shuffle {self._shuffle} was read as attempt {known}, and attempt {map_id} counts "
                    f"at {worker.name}",
                    "read all of it again",
                    map_id=known,
                )
        self._batch = frozenset(map_id for map_id, _ in maps)
        self._received = (0, 0)

    async def _yield(self, worker: WorkerAddress, header: Header, payload: bytes) -> None:
        """Pass on the segments that are new."""
        first, end = self._partitions
        segments = segments_of(header, payload, self._checks)
        for segment in segments:
            if segment.map_id not in self._batch or not first <= segment.partition < end:
                raise FrameRefused(f"shuffle worker {worker.name} sent what was not asked for")
            place = segment.map_id, segment.sequence
            if place not in self._seen:
                await self._queue.put(segment)
                self._seen.add(place)
        count, size = self._received
        self._received = count + len(segments), size + sum(len(each.data) for each in segments)

    def _sent(self, worker: WorkerAddress, header: Header) -> None:
        """A batch is whole."""
        if _sums(header) != _wire_sums(self._received):
            raise ShuffleUnavailable(f"shuffle worker {worker.name} did not send all of the maps that it announced")
        self._had |= self._batch
        self._seen = {place for place in self._seen if place[0] not in self._batch}
        self._batch = frozenset()


class _ReadTwice(AttemptLost):
    """Found out here: no other worker can know better."""


def _sums(header: Header) -> tuple[int, int]:
    return header.count, header.extra


def _wire_sums(total: tuple[int, int]) -> tuple[int, int]:
    return total[0] & 0xFFFFFFFF, total[1]
