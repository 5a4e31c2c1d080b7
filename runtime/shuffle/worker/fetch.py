"""A connection of the other direction: readers ask for partitions of maps, and get them as fast as they give credit."""

from __future__ import annotations

import logging
import mmap
import time

import numpy as np
import numpy.typing as npt

from runtime.shuffle.errors import FrameRefused, JobNotAllowed, ShuffleError
from runtime.shuffle.wire import (
    DATA_ENTRY,
    FLAG_ORDERED,
    HEADER_BYTES,
    MAX_DATA_BYTES,
    MAX_FETCH_PAYLOAD_BYTES,
    MAX_SEGMENT_BYTES,
    FrameType,
    Header,
    parse_follow,
    parse_map_ids,
)
from runtime.shuffle.worker.follow import Followers, FollowingFetch
from runtime.shuffle.worker.located import Located
from runtime.shuffle.worker.requests import Fetch
from runtime.shuffle.worker.session import Session
from runtime.shuffle.worker.store import ShuffleStore

_LOG = logging.getLogger(__name__)

MAX_REQUESTS = 1024
"""Fetches at the same time on one connection."""
MAX_SEGMENTS_PER_ANSWER = 16 << 10


class FetchConnection:
    """Serves one reading peer: all its fetches in turns, in the order of their places on disk."""

    def __init__(self, session: Session, store: ShuffleStore) -> None:
        self._session = session
        self._store = store
        self._job = session.job
        self._fetches: dict[int, Fetch] = {}
        self._head = (0, 0, 0)
        self._answer_bytes = min(store.config.answer_bytes, MAX_DATA_BYTES)
        table = MAX_SEGMENTS_PER_ANSWER * DATA_ENTRY.itemsize
        self._buffer = memoryview(mmap.mmap(-1, HEADER_BYTES + table + max(MAX_SEGMENT_BYTES, MAX_DATA_BYTES)))
        self._map_ids = memoryview(mmap.mmap(-1, MAX_FETCH_PAYLOAD_BYTES))
        self._followers: Followers | None = None

    def serve(self) -> None:
        """Until the peer is done; raises what ends the connection."""
        try:
            self._serve()
        finally:
            if self._followers is not None:
                self._followers.close()

    def _serve(self) -> None:
        while True:
            following = self._followers is not None and self._feed(self._followers)
            ready = [fetch for fetch in self._fetches.values() if fetch.ready]
            if not (ready or following) or self._session.stream.readable():
                header = self._session.next_header()
                if header is None:
                    return
                self._request(header)
                continue
            if not ready:
                continue
            fetch = self._next(ready)
            try:
                self._answer(fetch)
            except ShuffleError as error:
                self._fail(error, fetch.header)

    def _next(self, ready: list[Fetch]) -> Fetch:
        """Like an elevator: the nearest ahead, or the first of all when there is none."""
        if len(ready) == 1:
            return ready[0]
        places = [(fetch.place, index) for index, fetch in enumerate(ready)]
        ahead = [each for each in places if each[0] >= self._head]
        self._head, index = min(ahead or places)
        return ready[index]

    def _request(self, header: Header) -> None:
        match header.kind:
            case FrameType.FETCH:
                maps = parse_map_ids(header, self._session.payload(header, self._map_ids))
                try:
                    self._fetch(header, maps)
                except (FrameRefused, JobNotAllowed):
                    raise
                except ShuffleError as error:
                    self._fail(error, header)
            case FrameType.FOLLOW:
                self._follow(header)
            case FrameType.CREDIT:
                # A fetch that is not known has ended meanwhile.
                if (fetch := self._fetches.get(header.request)) is not None:
                    fetch.credit += header.extra
            case FrameType.CANCEL:
                self._forget(header.request)
            case _:
                raise FrameRefused(f"a frame of type {header.kind.name} on a connection for fetches")

    def _fetch(self, header: Header, maps: npt.NDArray[np.int64]) -> None:
        self._check_request(header)
        data, checks = self._job.shuffle(header.shuffle, create=False)
        data.check_committed(maps)
        plan = data.plan(header.partition, header.aux, maps, ordered=bool(header.flags & FLAG_ORDERED))
        fetch = Fetch(header, data, checks, plan, header.extra, time.monotonic())
        if fetch.advance():
            self._fetches[header.request] = fetch
        else:
            self._end(fetch)

    def _check_request(self, header: Header) -> None:
        if header.request in self._fetches:
            raise FrameRefused(f"request {header.request} is being answered already")
        if len(self._fetches) >= MAX_REQUESTS:
            raise FrameRefused(f"more than {MAX_REQUESTS} fetches at the same time")

    def _follow(self, header: Header) -> None:
        """A reader wants what the maps of its share have for it, as they are committed."""
        share, had = parse_follow(header, self._session.payload(header, self._map_ids))
        self._check_request(header)
        try:
            # Nobody may have written to it yet.
            data, checks = self._job.shuffle(header.shuffle, create=True)
        except JobNotAllowed:
            raise
        except ShuffleError as error:
            self._fail(error, header)
            return
        follower = data.pipeline.follow(share, had.tolist(), self._store.config.follow_seconds)
        fetch = FollowingFetch(header, data, checks, iter(()), header.extra, time.monotonic(), follower=follower)
        self._fetches[header.request] = fetch
        if self._followers is None:
            self._followers = Followers(self._session, self._store.config.follow_seconds)
        self._followers.add(fetch)

    def _feed(self, followers: Followers) -> bool:
        """Begin what has become readable, end what is complete, and wait when there is nothing else to do.

        Whether there are readers left that wait for what is not there yet.
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
        if isinstance(fetch, FollowingFetch) and self._followers is not None:
            self._followers.remove(fetch)

    def _answer(self, fetch: Fetch) -> None:
        """Send the next DATA frame of a fetch, and END after its last."""
        at, row = fetch.at, fetch.row
        if at is None:
            raise FrameRefused("a fetch without anything left")
        end, size = _fill(at.lengths, row, min(self._answer_bytes, fetch.credit))
        count = end - row
        table = HEADER_BYTES + count * DATA_ENTRY.itemsize
        view = self._buffer[: table + size]
        data = view[table:]
        if not fetch.read(at, row, end, data):
            return
        if self._store.config.verify:
            _verify(fetch, at, row, end, data)
        answer = Header(
            FrameType.DATA,
            shuffle=fetch.header.shuffle,
            partition=at.partitions[row],
            request=fetch.header.request,
            length=len(view) - HEADER_BYTES,
            count=count,
        )
        view[:HEADER_BYTES] = answer.pack()
        view[HEADER_BYTES:table] = at.entries[row * DATA_ENTRY.itemsize : end * DATA_ENTRY.itemsize]
        self._session.send(view)
        self._job.counters.fetched(size, count)
        fetch.row = end
        fetch.segments += count
        fetch.size += size
        fetch.credit -= size
        if fetch.advance():
            return
        if isinstance(fetch, FollowingFetch):
            self._session.send(fetch.sent())
        else:
            del self._fetches[fetch.header.request]
            self._end(fetch)

    def _end(self, fetch: Fetch) -> None:
        answer = Header(
            FrameType.END,
            shuffle=fetch.header.shuffle,
            request=fetch.header.request,
            count=fetch.segments & 0xFFFFFFFF,
            extra=fetch.size,
        )
        self._session.send(answer.pack())
        if not isinstance(fetch, FollowingFetch):  # which takes as long as its producer
            self._job.counters.fetch_ended(time.monotonic() - fetch.started)

    def _fail(self, error: ShuffleError, header: Header) -> None:
        self._forget(header.request)
        _LOG.warning("%s: fetch refused: %s", self._session.stream.peer, error)
        self._session.send_error(error, header)


def _fill(lengths: list[int], row: int, room: int) -> tuple[int, int]:
    """How far from ``row`` on the segments fit into ``room``, at least one; and their bytes."""
    size, end = lengths[row], row + 1
    last = min(len(lengths), row + MAX_SEGMENTS_PER_ANSWER)
    while end < last and size + lengths[end] <= room:
        size += lengths[end]
        end += 1
    return end, size


def _verify(fetch: Fetch, at: Located, row: int, end: int, view: memoryview) -> None:
    value = fetch.checks.value
    start = 0
    for index in range(row, end):
        stop = start + at.lengths[index]
        check = value(at.partitions[index], at.maps[index], at.sequences[index], view[start:stop])
        if check != at.checks[index]:
            raise at.damaged(index, "has changed")
        start = stop
