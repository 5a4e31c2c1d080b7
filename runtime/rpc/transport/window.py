"""The send window of one peer limits the calls in flight. Further calls wait, in order, until earlier ones are done.

Both ends count by the same rule (:func:`has_room`). A correct sender never exceeds the receiver's limit, so a sender
that does violates the protocol.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sluice.runtime.rpc.errors import MailboxFull, RpcError

MAX_OPEN_CALLS = 1024
"""Maximum number of calls in flight to one peer: sent and not yet done."""

MAX_OPEN_BYTES = 32 << 20
"""Bytes of arguments in flight to one peer at which further calls wait; one call may exceed it."""

MAX_WAITING_CALLS = 16_384
"""Maximum number of calls to one peer that wait for room; more are refused."""


def has_room(calls: int, size: int) -> bool:
    """Whether another call may be sent while ``calls`` with a total of ``size`` bytes are in flight."""
    return calls < MAX_OPEN_CALLS and size < MAX_OPEN_BYTES


class Waiting:
    """A submitted call: sent, or waiting for room."""

    __slots__ = ("abandoned", "send", "sent", "size")

    def __init__(self, size: int, send: Callable[[], None]) -> None:
        self.size = size
        self.send = send
        self.sent = False
        self.abandoned = False


class SendWindow:
    """Sends calls in the order of submission, with no more in flight than :func:`has_room` allows."""

    def __init__(self) -> None:
        self._calls = 0
        self._size = 0
        self._waiting: deque[Waiting] = deque()
        self._live = 0

    def take(self, size: int) -> bool:
        """Count another call as in flight if it may be sent at once. False: it has to wait, see :meth:`submit`."""
        if self._waiting or not has_room(self._calls, self._size):
            return False
        self._calls += 1
        self._size += size
        return True

    def submit(self, size: int, send: Callable[[], None]) -> Waiting:
        """Call ``send`` now, or when there is room; raises :class:`MailboxFull` when too many calls wait."""
        waiting = Waiting(size, send)
        if not self._waiting and has_room(self._calls, self._size):
            self._send(waiting)
            return waiting
        if self._live >= MAX_WAITING_CALLS:
            raise MailboxFull(f"{MAX_WAITING_CALLS} calls wait for this peer", "send fewer calls, or retry later")
        self._waiting.append(waiting)
        self._live += 1
        return waiting

    def abandon(self, waiting: Waiting) -> None:
        """Give up a call that was not sent yet."""
        if not waiting.sent and not waiting.abandoned:
            waiting.abandoned = True
            self._live -= 1
            self._advance()

    def release(self, calls: int, size: int) -> None:
        """Count calls as done, and send waiting ones; raises :class:`RpcError` if fewer were in flight."""
        if calls > self._calls or size > self._size:
            raise RpcError(f"{calls} calls of {size} bytes are reported as done, more than are in flight")
        self._calls -= calls
        self._size -= size
        if self._waiting:
            self._advance()

    def _advance(self) -> None:
        while self._waiting:
            if not self._waiting[0].abandoned:
                if not has_room(self._calls, self._size):
                    return
                self._live -= 1
                self._send(self._waiting[0])
            self._waiting.popleft()

    def _send(self, waiting: Waiting) -> None:
        waiting.sent = True
        self._calls += 1
        self._size += waiting.size
        waiting.send()
