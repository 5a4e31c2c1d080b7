"""Readers that follow a producer: committed maps are announced to them, and sent from memory if possible."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sluice.runtime.shuffle.data_plane import MAP_ENTRY, FrameType, Header
from sluice.runtime.shuffle.worker.connections.fetch_request import Fetch
from sluice.runtime.shuffle.worker.connections.session import Session
from sluice.runtime.shuffle.worker.storage import Located, ReadPlan, ShareCursor, cost_of, windows

KEEP_ALIVES = 4
"""How many keep-alives a waiting reader gets within the time after which a silent producer counts as gone."""


@dataclass(slots=True, kw_only=True)
class FollowingFetch(Fetch):
    """A request that is answered in batches of maps. A batch is announced (MAPS), sent, and closed with MAPS_SENT.

    The segments of a batch are sorted by (partition, map, sequence), so that a batch that began from memory can
    continue from disk.
    """

    follower: ShareCursor
    heard: float = 0.0
    """When the reader was last sent a frame, in monotonic seconds."""
    _maps: tuple[int, ...] = ()
    _moves: int | None = None
    _before: tuple[int, int] = (0, 0)
    _charged: int = 0
    """The charge for the segments of the batch, if they are in memory."""
    _written: ReadPlan | None = None
    """The plan of the batch, if its segments are on disk."""

    def grant(self, size: int, maps: int) -> None:
        """Record that the reader took ``size`` more bytes and has ``maps`` maps in all; grant that much credit."""
        Fetch.grant(self, size, maps)
        self.follower.take(size, maps)

    def close(self) -> None:
        """Give back the memory of the request, and leave the share. The reader may come back and ask for the rest."""
        Fetch.close(self)
        self.follower.close()

    def begin(self, maps: list[tuple[int, int]]) -> bytes:
        """Begin a batch; returns the frame that announces it."""
        self._maps = tuple(map_id for map_id, _ in maps)
        self._before = self.segments, self.size
        self._locate()
        payload = np.array(maps, MAP_ENTRY).tobytes()
        header = Header(
            FrameType.MAPS,
            shuffle=self.header.shuffle,
            request=self.header.request,
            length=len(payload),
            count=len(maps),
        )
        return header.pack() + payload

    def sent(self) -> bytes:
        """End a batch; returns the frame that closes it, with the number of its segments and bytes."""
        segments, size = self._before
        self._give_back()
        return Header(
            FrameType.MAPS_SENT,
            shuffle=self.header.shuffle,
            request=self.header.request,
            count=(self.segments - segments) & 0xFFFFFFFF,
            extra=self.size - size,
        ).pack()

    def read(self, window: Located, row: int, end: int, view: memoryview) -> bool:
        """Read segments, from memory if they are there; False if they left it, and :attr:`window` was located again."""
        if self._moves is None:
            self.data.read(window, row, end, view)
            return True
        if self.data.copy(window, self._moves, row, end, view):
            return True
        self._locate()
        self.advance()
        return False

    def _locate(self) -> None:
        """Locate what is left of the batch, in memory or on disk."""
        first, end = self.header.partition, self.header.aux
        self.window, self.row = None, 0
        self._give_back()
        found = self.data.locate_in_memory(first, end, frozenset(self._maps))
        if found is not None:
            rows, self._moves = found
            self.holding.take(cost_of(len(rows)))
            self._charged = cost_of(len(rows))
            plan: Iterator[Located] = windows(rows, np.zeros(len(rows), np.int32))
        else:
            wanted = np.array(sorted(self._maps), np.int64)
            self.data.check_committed(wanted)
            self._moves = None
            plan = self._written = self.data.plan(first, end, wanted, ordered=True, holding=self.holding)
        self.plan = self._rest(plan, self.segments - self._before[0])

    def _give_back(self) -> None:
        """Give back the memory of the batch."""
        self.holding.charge(-self._charged)
        self._charged = 0
        if self._written is not None:
            self._written.close()
            self._written = None

    def _rest(self, plan: Iterator[Located], skip: int) -> Iterator[Located]:
        """Yield ``plan`` without its first ``skip`` segments, which were sent already."""
        for window in plan:
            if skip >= len(window):
                skip -= len(window)
                continue
            yield window if not skip else window.after(skip)
            skip = 0


class FollowingFetches:
    """The following requests of one connection. The connection's thread sleeps here while there is nothing to send.

    Args:
        session: the session of the connection.
        patience: how long readers wait for a silent producer, in seconds. Keep-alives are sent more often.
    """

    def __init__(self, session: Session, patience: float) -> None:
        self._session = session
        self._interval = patience / KEEP_ALIVES
        self._fetches: dict[int, FollowingFetch] = {}
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def add(self, fetch: FollowingFetch) -> None:
        """Add a request, and listen for new maps of its shuffle."""
        fetch.heard = time.monotonic()
        self._fetches[fetch.header.request] = fetch
        fetch.data.announced.listen(self.wake)

    def remove(self, fetch: FollowingFetch) -> None:
        """Remove a request, and stop listening if it was the last one of its shuffle."""
        del self._fetches[fetch.header.request]
        if all(each.data is not fetch.data for each in self._fetches.values()):
            fetch.data.announced.unlisten(self.wake)

    def wake(self) -> None:
        """Wake the thread of the connection; may be called from any thread."""
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def idle(self) -> list[FollowingFetch]:
        """The requests that have been sent everything that was announced to them."""
        return [fetch for fetch in self._fetches.values() if fetch.window is None]

    def announce(self, fetch: FollowingFetch) -> bool:
        """Announce new maps to an idle request, or send a keep-alive if one is due; returns whether there were maps.

        Raises:
            ShuffleError: the request cannot continue.
        """
        if maps := fetch.follower.next():
            self._send(fetch, fetch.begin(maps))
            if not fetch.advance():
                self._send(fetch, fetch.sent())
            return True
        if not fetch.follower.complete and time.monotonic() - fetch.heard >= self._interval:
            self._send(fetch, Header(FrameType.MAPS, request=fetch.header.request).pack())
        return False

    def wait(self) -> None:
        """Wait until there may be new maps, the peer sends something, or a keep-alive is due."""
        self._session.stream.wait(self._wake, self._interval)
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def close(self) -> None:
        """Remove all requests."""
        for fetch in list(self._fetches.values()):
            self.remove(fetch)
        os.close(self._wake)

    def _send(self, fetch: FollowingFetch, frame: bytes) -> None:
        self._session.send(frame)
        fetch.heard = time.monotonic()
