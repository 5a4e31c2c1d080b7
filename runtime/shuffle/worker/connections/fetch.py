"""A fetch connection: a reader asks for partitions of maps, and gets them as fast as it grants credit."""

from __future__ import annotations

import contextlib
import mmap
import time

from sluice.runtime.shuffle.data_plane import (
    DATA_ENTRY,
    FLAG_ORDERED,
    HEADER_BYTES,
    MAX_DATA_BYTES,
    MAX_PAYLOAD_BYTES,
    FrameRefused,
    FrameType,
    Header,
    JobNotAllowed,
    QuotaExceeded,
    ShuffleError,
    parse_follow,
    parse_map_ids,
)
from sluice.runtime.shuffle.worker.connections.fetch_request import Fetch
from sluice.runtime.shuffle.worker.connections.following import FollowingFetch, FollowingFetches
from sluice.runtime.shuffle.worker.connections.session import Session
from sluice.runtime.shuffle.worker.storage import (
    CONNECTION_BYTES,
    REQUEST_BYTES,
    Holding,
    Located,
    RetryableQuotaExceeded,
    ShuffleStore,
)

MAX_REQUESTS = 1024
"""Maximum concurrent fetches on one connection."""
MAX_SEGMENTS_PER_ANSWER = 2 << 10
USUAL_PAYLOAD_BYTES = MAX_PAYLOAD_BYTES
"""A request with a larger payload gets its own buffer for the map ids."""
NO_ROOM_SECONDS = 0.1
"""Interval at which reads that found no memory try again."""


class FetchConnection:
    """Serves the fetches of one reader in turn, in the order of their positions on disk."""

    def __init__(self, session: Session, store: ShuffleStore) -> None:
        self._session = session
        self._store = store
        self._job = session.job
        self._fetches: dict[int, Fetch] = {}
        self._head = (0, 0, 0)
        self._answer_bytes = min(store.config.answer_bytes, MAX_DATA_BYTES)
        size = HEADER_BYTES + MAX_SEGMENTS_PER_ANSWER * DATA_ENTRY.itemsize + self._answer_bytes
        self._holding = Holding(self._job.connections)
        self._holding.take(CONNECTION_BYTES + size)
        self._buffer = memoryview(mmap.mmap(-1, size))
        self._followers: FollowingFetches | None = None
        self._starved: dict[int, Fetch] = {}

    def serve(self) -> None:
        """Serve until the peer ends the connection; raises the error that ends it otherwise."""
        while True:
            following = self._followers is not None and self._feed(self._followers)
            for starved in list(self._starved.values()):
                self._advance(starved)
                if self._starved:
                    break  # the others would find no memory either
            ready = [fetch for fetch in self._fetches.values() if fetch.ready]
            if not (ready or following or self._starved) or self._session.stream.readable():
                header = self._session.next_header()
                if header is None:
                    return
                self._request(header)
                continue
            if not ready:
                if self._starved:
                    self._job.connections.budget.wait(NO_ROOM_SECONDS)
                continue
            fetch = self._next(ready)
            try:
                self._answer(fetch)
            except RetryableQuotaExceeded as error:
                if fetch.window is None:  # a batch for a follower cannot be located again: the reader asks again
                    self._fail(error, fetch.header)
                else:
                    self._job.connections.budget.wait(NO_ROOM_SECONDS)
            except ShuffleError as error:
                self._fail(error, fetch.header)

    def close(self) -> None:
        """Release what the connection and its requests use."""
        if self._followers is not None:
            self._followers.close()
        for fetch in self._fetches.values():
            fetch.close()
        self._holding.close()

    def _next(self, ready: list[Fetch]) -> Fetch:
        """Choose as an elevator does: the nearest position ahead, or the first of all if there is none ahead."""
        if len(ready) == 1:
            return ready[0]
        places = [(fetch.place, index) for index, fetch in enumerate(ready)]
        ahead = [each for each in places if each[0] >= self._head]
        self._head, index = min(ahead or places)
        return ready[index]

    def _request(self, header: Header) -> None:
        match header.kind:
            case FrameType.FETCH | FrameType.FOLLOW:
                try:
                    (self._fetch if header.kind is FrameType.FETCH else self._follow)(header)
                except (FrameRefused, JobNotAllowed):
                    raise
                except ShuffleError as error:
                    self._fail(error, header)
            case FrameType.CREDIT:
                # An unknown fetch has ended in the meantime.
                if (fetch := self._fetches.get(header.request)) is not None:
                    fetch.grant(header.extra, header.count)
            case FrameType.CANCEL:
                self._forget(header.request)
            case _:
                raise FrameRefused(f"a frame of type {header.kind.name} is not allowed on a fetch connection")

    def _fetch(self, header: Header) -> None:
        with contextlib.ExitStack() as stack:
            holding = stack.enter_context(Holding(self._job.connections))
            maps = parse_map_ids(header, self._payload(header, holding, header.length))
            self._check_request(header)
            data, checks = self._job.shuffle(header.shuffle, create=False)
            data.check_committed(maps)
            ordered = bool(header.flags & FLAG_ORDERED)
            plan = data.plan(header.partition, header.aux, maps, ordered=ordered, holding=holding)
            fetch = Fetch(header, data, checks, plan, header.extra, time.monotonic(), holding=holding)
            self._fetches[header.request] = fetch
            stack.pop_all()
        self._advance(fetch)

    def _payload(self, header: Header, holding: Holding, kept: int) -> memoryview:
        """Read the payload of a request. The request and ``kept`` more bytes are charged to ``holding``.

        Raises:
            QuotaExceeded: there is no room for the request; its payload was skipped.
        """
        try:
            holding.take(REQUEST_BYTES + kept)
        except QuotaExceeded:
            self._session.skip(header.length)
            raise
        if header.length <= USUAL_PAYLOAD_BYTES:
            return self._session.payload(header)
        return self._session.payload(header, memoryview(bytearray(header.length)))

    def _advance(self, fetch: Fetch) -> None:
        """Find the next segments of a fetch, or end it. The fetch waits while there is no room for them."""
        self._starved.pop(fetch.header.request, None)
        try:
            more = fetch.advance()
        except RetryableQuotaExceeded:
            self._starved[fetch.header.request] = fetch
        except ShuffleError as error:
            self._fail(error, fetch.header)
        else:
            if not more:
                self._forget(fetch.header.request)
                self._end(fetch)

    def _check_request(self, header: Header) -> None:
        if header.request in self._fetches:
            raise FrameRefused(f"request {header.request} is in progress already")
        if len(self._fetches) >= MAX_REQUESTS:
            raise FrameRefused(f"the connection has more than {MAX_REQUESTS} concurrent fetches")

    def _follow(self, header: Header) -> None:
        """Begin a fetch that follows one writer: the reader gets its partitions of each map once it is committed."""
        with contextlib.ExitStack() as stack:
            holding = stack.enter_context(Holding(self._job.connections))
            share = parse_follow(header, self._payload(header, holding, 0))
            self._check_request(header)
            # The reader may come before the first writer.
            data, checks = self._job.shuffle(header.shuffle, create=True)
            partitions, patience = (header.partition, header.aux), self._store.config.follow_seconds
            follower = data.announced.follow(
                share, partitions, patience, maps_received=header.count, bytes_taken=max(0, header.map_id)
            )
            stack.pop_all()
        fetch = FollowingFetch(
            header, data, checks, iter(()), header.extra, time.monotonic(), follower=follower, holding=holding
        )
        self._fetches[header.request] = fetch
        if self._followers is None:
            self._followers = FollowingFetches(self._session, self._store.config.follow_seconds)
        self._followers.add(fetch)

    def _feed(self, followers: FollowingFetches) -> bool:
        """Send new maps to the following fetches, end those that are complete, and wait if there is nothing to do.

        Returns whether there are idle following fetches left.
        """
        quiet = True
        for fetch in followers.idle():
            try:
                if followers.announce(fetch):
                    quiet = False
                elif fetch.follower.complete:
                    self._forget(fetch.header.request)
                    self._end(fetch)
            except ShuffleError as error:
                self._fail(error, fetch.header)
        if not followers.idle():
            return False
        if quiet and not any(fetch.ready for fetch in self._fetches.values()):
            followers.wait()
        return True

    def _forget(self, request: int) -> None:
        fetch = self._fetches.pop(request, None)
        self._starved.pop(request, None)
        if fetch is not None:
            fetch.close()
        if isinstance(fetch, FollowingFetch) and self._followers is not None:
            self._followers.remove(fetch)

    def _answer(self, fetch: Fetch) -> None:
        """Send the next DATA frame of a fetch, and END after the last one."""
        window, row = fetch.window, fetch.row
        if window is None:
            raise FrameRefused("the fetch has no segments left")
        end, size = _fill(window.lengths, row, min(self._answer_bytes, fetch.credit))
        table = HEADER_BYTES + (end - row) * DATA_ENTRY.itemsize
        if table + size <= len(self._buffer):
            self._send(fetch, row, end, self._buffer[: table + size])
            return
        with Holding(self._job.connections) as holding:
            holding.take(table + size)
            self._send(fetch, row, end, memoryview(bytearray(table + size)))

    def _send(self, fetch: Fetch, row: int, end: int, view: memoryview) -> None:
        window = fetch.window
        if window is None:
            raise FrameRefused("the fetch has no segments left")
        count = end - row
        table = HEADER_BYTES + count * DATA_ENTRY.itemsize
        size = len(view) - table
        data = view[table:]
        if not fetch.read(window, row, end, data):
            return
        if self._store.config.verify:
            _verify(fetch, window, row, end, data)
        answer = Header(
            FrameType.DATA,
            shuffle=fetch.header.shuffle,
            partition=window.partitions[row],
            request=fetch.header.request,
            length=len(view) - HEADER_BYTES,
            count=count,
        )
        view[:HEADER_BYTES] = answer.pack()
        view[HEADER_BYTES:table] = window.entries[row * DATA_ENTRY.itemsize : end * DATA_ENTRY.itemsize]
        self._session.send(view)
        self._job.counters.fetched(size)
        fetch.row = end
        fetch.segments += count
        fetch.size += size
        fetch.credit -= size
        if not isinstance(fetch, FollowingFetch):
            self._advance(fetch)
        elif not fetch.advance():
            self._session.send(fetch.sent())

    def _end(self, fetch: Fetch) -> None:
        answer = Header(
            FrameType.END,
            shuffle=fetch.header.shuffle,
            request=fetch.header.request,
            count=fetch.segments & 0xFFFFFFFF,
            extra=fetch.size,
        )
        self._session.send(answer.pack())
        if not isinstance(fetch, FollowingFetch):  # a following fetch takes as long as its producer
            self._job.counters.fetch_ended(time.monotonic() - fetch.started)

    def _fail(self, error: ShuffleError, header: Header) -> None:
        self._forget(header.request)
        self._session.refuse(error, header, "fetch")


def _fill(lengths: list[int], row: int, room: int) -> tuple[int, int]:
    """Return the end of the segments from ``row`` on that fit into ``room`` bytes, at least one, and their size."""
    size, end = lengths[row], row + 1
    last = min(len(lengths), row + MAX_SEGMENTS_PER_ANSWER)
    while end < last and size + lengths[end] <= room:
        size += lengths[end]
        end += 1
    return end, size


def _verify(fetch: Fetch, window: Located, row: int, end: int, view: memoryview) -> None:
    value = fetch.checks.value
    start = 0
    for index in range(row, end):
        stop = start + window.lengths[index]
        check = value(window.partitions[index], window.maps[index], window.sequences[index], view[start:stop])
        if check != window.checks[index]:
            raise window.damaged(index, "has changed")
        start = stop
