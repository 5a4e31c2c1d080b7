"""The mailbox of an endpoint: a bounded queue, and one task that runs its messages one after the other."""

from __future__ import annotations

import abc
import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from sluice.runtime.rpc.errors import EndpointStopped, MailboxFull, RpcError

MAILBOX_CAPACITY = 10_000
"""Default maximum number of messages that wait in a mailbox."""

FAIR_SHARE = 64
"""Messages run in a row before other tasks of the process get a turn."""

_MAIN_THREADS: set[asyncio.Task[Any] | None] = set()


def refuse_to_wait_on_main_thread(what: str, endpoint: str) -> None:
    """Raise :class:`RpcError` when called from a handler: waiting would block its endpoint, and may deadlock."""
    if asyncio.current_task() in _MAIN_THREADS:
        raise RpcError(
            f"{what} of {endpoint} was asked from the main thread of an endpoint, which must not wait for another",
            "use self.hand_off(...) or return self.deferred(...)",
        )


class Message(abc.ABC):
    """A unit of work for the main thread of an endpoint."""

    __slots__ = ()

    @abc.abstractmethod
    async def run(self) -> None:
        """Do the work; must not raise."""

    def discard(self) -> None:  # noqa: B027  most messages have nothing to clean up
        """Called when the endpoint stopped before the message was run."""


class Mailbox:
    """Runs its messages in order, one at a time, each to completion.

    After :meth:`stop`, it finishes the current message, awaits ``on_stop`` on the main thread, and discards the waiting
    messages.
    """

    def __init__(self, name: str, capacity: int = MAILBOX_CAPACITY) -> None:
        self._name = name
        self._queue: deque[Message] = deque()
        self._wake = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self.capacity = capacity
        self.deepest = 0
        self.processed = 0
        self.refused = 0
        self.busy_seconds = 0.0
        self.longest_seconds = 0.0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> bool:
        """Whether messages are accepted."""
        return self._task is not None and not self._stopping

    @property
    def on_main_thread(self) -> bool:
        """Whether the calling code runs on the main thread."""
        return self._task is not None and asyncio.current_task() is self._task

    @property
    def started(self) -> bool:
        """Whether it has been started."""
        return self._task is not None

    def start(self, on_start: Callable[[], Awaitable[None]], on_stop: Callable[[], Awaitable[None]]) -> None:
        """Start to run messages; ``on_start`` runs before the first one."""
        self._task = asyncio.create_task(self._drain(on_start, on_stop), name=f"endpoint {self._name}")
        _MAIN_THREADS.add(self._task)
        self._task.add_done_callback(_MAIN_THREADS.discard)

    def put(self, message: Message, *, bounded: bool = True) -> None:
        """Append ``message``.

        ``bounded=False`` is for messages of the endpoint itself (timers, results of handed-off work).
        Raises :class:`MailboxFull` or :class:`EndpointStopped`.
        """
        if not self.running:
            raise EndpointStopped(f"endpoint {self._name} is not running")
        depth = len(self._queue)
        if bounded and depth >= self.capacity:
            self.refused += 1
            raise MailboxFull(
                f"endpoint {self._name} has {self.capacity} messages waiting", "send fewer calls, or retry later"
            )
        self._queue.append(message)
        if depth >= self.deepest:
            self.deepest = depth + 1
        if not depth:
            self._wake.set()

    async def stop(self) -> None:
        """Stop after the current message and wait until ``on_stop`` has ended (without waiting on the main thread)."""
        self.stop_soon()
        if self._task is not None and not self.on_main_thread:
            await asyncio.wait([self._task])

    def stop_soon(self) -> None:
        """Stop after the current message, without waiting."""
        self._stopping = True
        self._wake.set()

    def abort(self) -> None:
        """Cancel the main thread at once; for an endpoint that failed to start."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

    async def _drain(self, on_start: Callable[[], Awaitable[None]], on_stop: Callable[[], Awaitable[None]]) -> None:
        try:
            await on_start()
            taken, clock = 0, time.perf_counter
            while not self._stopping:
                if not self._queue:
                    self._wake.clear()
                    await self._wake.wait()
                    taken = 0
                    continue
                begun = clock()
                await self._queue.popleft().run()
                spent = clock() - begun
                self.processed += 1
                self.busy_seconds += spent
                self.longest_seconds = max(self.longest_seconds, spent)
                taken += 1
                if taken >= FAIR_SHARE:
                    taken = 0
                    await asyncio.sleep(0)
            await on_stop()
        finally:
            self._stopping = True
            while self._queue:
                self._queue.popleft().discard()
