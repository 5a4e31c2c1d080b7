"""Tracks the connections given to programs: counts their bytes, detects their end, and terminates them.

Only the job holds descriptors of such a connection, because a descriptor kept here would keep it open after the program
closes it. So the tracker queries the kernel, and duplicates a descriptor of the job to terminate a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.runtime.sandbox.network.events import Connection, ConnectionObserver, Traffic
from sluice.runtime.sandbox.network.sockets import (
    Key,
    LastCounters,
    SocketTable,
    connect,
    cookie_of,
    final_counters,
    take,
)

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
"""The interval for querying the kernel about open connections."""
MAX_LOOKS = 1000
"""Maximum number of connections in one query round."""
END_SECONDS = 0.5
"""How long to try to end a connection, but at least until every process was searched once."""
_RETRY_SECONDS = 0.02
_INFO_BYTES = 256
_UNSPECIFIED = struct.pack("=H14x", socket.AF_UNSPEC)


@dataclass(slots=True)
class Tracked:
    """A connection that is tracked."""

    connection: Connection
    key: Key
    inode: int
    began: float
    traffic: Traffic = field(default_factory=Traffic)
    reason: str = ""
    gone: bool = False


class Tracker:
    """The connections of one network; used in the broker's thread."""

    def __init__(self, observer: ConnectionObserver, table: SocketTable, last: LastCounters, namespace: int) -> None:
        """``namespace``: the inode of the network namespace whose processes hold the connections."""
        self._observer = observer
        self._table = table
        self._last = last
        self._namespace = namespace
        self._open: dict[int, Tracked] = {}
        self._looking: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection, given: socket.socket) -> None:
        """Track ``connection``, whose socket ``given`` was just handed to a program."""
        try:
            key = Key.of(given, cookie_of(given))
        except OSError:  # already closed
            if connection.to.recorded:
                self._observer.opened(connection)
                info = given.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
                self._observer.closed(connection, _traffic(connection, final_counters(info)) or Traffic(), 0.0, "")
            return
        self._last.watch(key.cookie)
        self.follow(Tracked(connection, key, _inode(given), time.monotonic()))

    def follow(self, tracked: Tracked) -> None:
        """Report the start of a connection, and query it from now on."""
        self._open[tracked.connection.id] = tracked
        if tracked.connection.to.recorded:
            self._observer.opened(tracked.connection)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    async def end(self, wanted: Callable[[Connection], bool], reason: str) -> int:
        """End the connections selected by ``wanted`` at once; return their number."""
        ending = [each for each in self._open.values() if wanted(each.connection)]
        for each in ending:
            each.reason = reason
        self._examine(ending)
        until = time.monotonic() + END_SECONDS
        left = ending
        thorough = False
        while left:
            await asyncio.to_thread(self._reset, left, thorough)
            self._examine(left)
            left = [each for each in left if each.connection.id in self._open]
            if thorough and time.monotonic() > until:
                for each in left:
                    if not each.gone:
                        _LOG.warning("cannot end connection %d of a job", each.connection.id)
                        self._observer.stuck(each.connection)
                break
            if left:
                thorough = True
                await asyncio.sleep(_RETRY_SECONDS)
        return len(ending)

    def close(self, reason: str) -> None:
        """Report the end of all connections, after the boxes have ended."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        self._examine(list(self._open.values()))
        for each in list(self._open.values()):
            self._ended(each, each.reason or reason)

    def _look(self) -> None:
        self._looking = None
        some = list(self._open.values())[:MAX_LOOKS]
        for each in some:  # move to the end, so that the next round starts with the others
            self._open[each.connection.id] = self._open.pop(each.connection.id)
        self._examine(some)
        if self._open:
            self._looking = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)

    def _examine(self, some: list[Tracked]) -> None:
        for each in some:
            if each.connection.id not in self._open:
                continue
            state = self._table.find(each.key)
            found = (state.counters if state is not None else None) or self._last.of(each.key.cookie)
            if state is None and found is None and not each.gone:
                each.gone = True  # the kernel reports the final counters a moment later
                continue
            if (traffic := _traffic(each.connection, found)) is not None:
                # A socket that was closed with a reset has lost its counters.
                traffic = Traffic(max(traffic.sent, each.traffic.sent), max(traffic.received, each.traffic.received))
                if traffic != each.traffic and each.connection.to.recorded:
                    self._observer.moved(each.connection, traffic)
                each.traffic = traffic
            if state is None or not state.open:
                self._ended(each, each.reason)

    def _ended(self, tracked: Tracked, reason: str) -> None:
        del self._open[tracked.connection.id]
        self._last.forget(tracked.key.cookie)
        if tracked.connection.to.recorded:
            self._observer.closed(tracked.connection, tracked.traffic, time.monotonic() - tracked.began, reason)

    def _reset(self, some: list[Tracked], thorough: bool) -> None:
        wanted = {each.inode: each.key.cookie for each in some}
        # The job may have passed a descriptor to a process outside, over a socket that the operator shows to jobs.
        for fd in take(None if thorough else self._namespace, set(wanted), thorough=thorough):
            with socket.socket(fileno=fd) as taken:
                if cookie_of(taken) not in wanted.values():
                    continue  # the descriptor refers to another socket by now
                with contextlib.suppress(OSError):
                    taken.shutdown(socket.SHUT_RDWR)
                connect(taken.fileno(), _UNSPECIFIED)  # drops unsent data and resets the peer


def _traffic(connection: Connection, counters: tuple[int, int] | None) -> Traffic | None:
    """The traffic without the preamble, which the program did not send."""
    if counters is None:
        return None
    sent, received = counters
    return Traffic(max(0, sent - len(connection.to.preamble)), received)


def _inode(of: socket.socket) -> int:
    return os.fstat(of.fileno()).st_ino
