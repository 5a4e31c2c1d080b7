"""A push connection: map tasks push segments and commit maps."""

from __future__ import annotations

import itertools
import time

from sluice.pki import Role
from sluice.runtime.shuffle.data_plane import (
    MAX_PUSH_PAYLOAD_BYTES,
    MAX_SEGMENTS_PER_PUSH,
    SEGMENT_ENTRY,
    FrameRefused,
    FrameType,
    Header,
    JobNotAllowed,
    MapUnknown,
    ProducerStatement,
    PushEntry,
    SegmentChecks,
    SegmentCorrupt,
    ShuffleError,
    parse_produced,
    parse_push_table,
)
from sluice.runtime.shuffle.worker.connections.session import Session
from sluice.runtime.shuffle.worker.storage import (
    CONNECTION_BYTES,
    PUSHED_ROW_BYTES,
    Holding,
    Lease,
    ShuffleData,
    ShuffleStore,
)

USUAL_SEGMENTS = 1 << 10
"""The table of a frame with at most this many segments is included in the charge of the connection."""


class PushConnection:
    """Serves one pushing peer, frame by frame.

    The data of a frame is read from the socket directly into its place in the managed memory, and only when there is
    room. An error that concerns one map is answered, and later frames of the map are refused; other maps continue.
    """

    def __init__(self, session: Session, store: ShuffleStore) -> None:
        self._session = session
        self._store = store
        self._job = session.job
        self._of_worker = session.stream.peer.role is Role.SHUFFLE_WORKER
        self._holding = Holding(self._job.connections)
        self._holding.take(CONNECTION_BYTES)
        self._table = memoryview(bytearray(MAX_SEGMENTS_PER_PUSH * SEGMENT_ENTRY.itemsize))
        self._consumed = 0
        self._acknowledged = 0

    @property
    def credit(self) -> int:
        """How many unacknowledged bytes the peer may have now. Fewer while memory is short, but always one frame."""
        most = self._store.config.credit_bytes
        if self._store.pool.pressed.is_set():
            most //= 4
        return max(most, MAX_PUSH_PAYLOAD_BYTES)

    def serve(self) -> None:
        """Serve until the peer ends the connection; raises the error that ends it otherwise."""
        while (header := self._session.next_header()) is not None:
            match header.kind:
                case FrameType.PUSH:
                    self._push(header)
                case FrameType.COMMIT:
                    self._commit(header)
                case FrameType.ABORT:
                    self._abort(header)
                case FrameType.PRODUCE:
                    self._produce(header)
                case _:
                    raise FrameRefused(f"a frame of type {header.kind.name} is not allowed on a push connection")

    def close(self) -> None:
        """Release what the connection uses."""
        self._holding.close()

    def _push(self, header: Header) -> None:
        if header.count <= USUAL_SEGMENTS:
            self._take_frame(header)
            return
        try:
            self._holding.take(header.count * PUSHED_ROW_BYTES)
        except ShuffleError as error:
            self._session.skip(header.length)
            self._refuse(error, header)
            self._consume(header)
            return
        try:
            self._take_frame(header)
        finally:
            self._holding.charge(-header.count * PUSHED_ROW_BYTES)

    def _take_frame(self, header: Header) -> None:
        session = self._session
        size = header.count * SEGMENT_ENTRY.itemsize
        session.fill(self._table[:size])
        table = parse_push_table(header, self._table)
        data_bytes = header.length - size
        try:
            data, checks = self._job.shuffle(header.shuffle, create=True)
            self._job.metadata.check_quota(header.length)
            data.check_open(header.map_id, draining=self._store.draining)
            lease = self._store.pool.lease(self._job.job_id, [row[2] for row in table], size)
        except (FrameRefused, JobNotAllowed):
            raise
        except ShuffleError as error:
            session.skip(data_bytes)
            self._refuse(error, header)
        else:
            if lease.waited_seconds:
                self._job.counters.held_back(lease.waited_seconds)
            self._receive(header, table, lease, data, checks)
        self._consume(header)

    def _consume(self, header: Header) -> None:
        self._consumed += header.length
        if self._consumed - self._acknowledged >= self.credit // 4 or not self._session.stream.readable():
            self._acknowledge(header.request)

    def _receive(
        self, header: Header, table: list[PushEntry], lease: Lease, data: ShuffleData, checks: SegmentChecks
    ) -> None:
        pool, config = self._store.pool, self._store.config
        try:
            self._session.fill(*(pool.view[start:stop] for start, stop, _ in lease.extents))
        except BaseException:
            pool.abandon(lease)
            raise
        pool.received(lease)
        try:
            if config.verify:
                _verify(header.map_id, table, lease, pool.view, checks)
            through = lease.size >= header.count * config.write_through_bytes
            raw = bytes(self._table[: header.count * SEGMENT_ENTRY.itemsize])
            data.add(header.map_id, [row[1] for row in table], raw, lease, write_through=through)
        except FrameRefused:
            pool.release([lease])
            raise
        except ShuffleError as error:
            pool.release([lease])
            data.abort(header.map_id)
            self._refuse(error, header)
        else:
            self._job.counters.pushed(lease.size)

    def _refuse(self, error: ShuffleError, header: Header) -> None:
        error.map_id = header.map_id
        self._session.refuse(error, header, f"push of map {header.map_id}")

    def _acknowledge(self, request: int) -> None:
        self._acknowledged = self._consumed
        answer = Header(FrameType.PUSH_OK, request=request, aux=self.credit, extra=self._consumed)
        self._session.send(answer.pack())

    def _commit(self, header: Header) -> None:
        if header.aux and (self._of_worker or not header.partition):
            raise FrameRefused("the commit announces a map, but is not from one of the writers of its shuffle")
        start = time.monotonic()
        if self._acknowledged != self._consumed:
            self._acknowledge(header.request)
        try:
            # A map without output pushes nothing, so its commit may be the first frame of the shuffle.
            data, _ = self._job.shuffle(header.shuffle, create=header.count == 0)
            if header.aux:
                unread = data.announce(header.map_id, header.count, header.extra, header.aux - 1, header.partition)
            else:
                data.commit(header.map_id, header.count, header.extra)
                unread = 0
        except JobNotAllowed:
            raise
        except ShuffleError as error:
            error.map_id = header.map_id
            self._session.refuse(error, header, f"commit of map {header.map_id}")
            return
        self._job.counters.committed(time.monotonic() - start)
        answer = Header(
            FrameType.COMMIT_OK, shuffle=header.shuffle, map_id=header.map_id, request=header.request, extra=unread
        )
        self._session.send(answer.pack())

    def _abort(self, header: Header) -> None:
        try:
            data, _ = self._job.shuffle(header.shuffle, create=False)
        except MapUnknown:
            return
        data.abort(header.map_id)

    def _produce(self, header: Header) -> None:
        """Record what a writer of a pipelined shuffle states: its share is complete, given up, or may be forgotten."""
        if self._of_worker:
            raise FrameRefused("a shuffle worker may not send PRODUCE")
        said = parse_produced(header, self._session.payload(header))
        progress = None
        try:
            data, _ = self._job.shuffle(header.shuffle, create=True)
            match said.statement:
                case ProducerStatement.COMPLETE:
                    progress = data.announced.complete(said.share, said.maps)
                case ProducerStatement.ABORTED:
                    data.give_up(said.reason)
                case ProducerStatement.FORGET:
                    progress = data.forget(said.share, said.maps)
        except JobNotAllowed:
            raise
        except ShuffleError as error:
            self._session.refuse(error, header, f"{said.statement.name} of shuffle {header.shuffle}")
            return
        unread, partitions, maps = progress or (0, 0, 0)
        answer = Header(
            FrameType.PRODUCE_OK, shuffle=header.shuffle, request=header.request, count=partitions, aux=maps,
            extra=unread,
        )  # fmt: skip
        self._session.send(answer.pack())


def _verify(map_id: int, table: list[PushEntry], lease: Lease, view: memoryview, checks: SegmentChecks) -> None:
    rows = iter(table)
    value = checks.value
    for start, _, count in lease.extents:
        at = start
        for partition, sequence, length, check in itertools.islice(rows, count):
            if value(partition, map_id, sequence, view[at : at + length]) != check:
                raise SegmentCorrupt(
                    f"segment {sequence} of map {map_id} in partition {partition} arrived damaged",
                    partition=partition,
                    map_id=map_id,
                )
            at += length
