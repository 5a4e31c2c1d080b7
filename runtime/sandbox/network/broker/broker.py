"""The thread that answers the calls of all boxes of this process."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Coroutine
from typing import TypeVar

from sluice.runtime.sandbox.network.broker.connecting import CallHandler
from sluice.runtime.sandbox.network.broker.refused_calls import refused_call
from sluice.runtime.sandbox.network.sockets import Call, kernel
from sluice.runtime.sandbox.seccomp import architecture_of

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

MAX_WAITING = 512
"""Maximum number of calls of one box in progress; further ones wait in the kernel."""
MAX_CALLS_A_SECOND = 1000
"""Maximum number of calls of one box per second; further ones wait for the next second."""
HAND_OVER_SECONDS = 60.0
"""Timeout for a box to send its seccomp listener."""


class Broker:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._run, name="network of boxes", daemon=True)
        thread.start()

    def _run(self) -> None:
        # If a signal interrupted a query about a call, the call would wrongly appear to be no longer pending.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, coroutine: Coroutine[None, None, T], *, timeout: float = 30.0) -> T:
        """Run a coroutine in the broker's thread and wait for its result; call this from other threads only."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout)


@functools.cache
def broker() -> Broker:
    """The broker of this process; the first call starts it."""
    return Broker()


class BoxCalls:
    """Answers the calls of one box, from its start to its end; used in the broker's thread."""

    def __init__(self, box: str, handler: CallHandler) -> None:
        self._box = box
        self._handler = handler
        self._numbers = architecture_of()
        self._listener: int | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._reading = False
        self._second = 0.0
        self._calls = 0

    @property
    def ended(self) -> bool:
        """Whether the box no longer makes calls."""
        return self._closed

    def begin(self, channel: socket.socket) -> None:
        """Serve the box at the other end of ``channel``."""
        task = asyncio.get_running_loop().create_task(self._serve(channel))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, channel: socket.socket) -> None:
        """Receive the seccomp listener over ``channel``, close the channel, and answer calls from then on."""
        loop = asyncio.get_running_loop()
        with channel:
            channel.setblocking(False)
            try:
                async with asyncio.timeout(HAND_OVER_SECONDS):
                    fds = await _received(loop, channel)
            except (TimeoutError, OSError) as error:
                _LOG.warning("the box of %s did not hand over its network: %s", self._box, error)
                fds = []
            if len(fds) != 1:
                for fd in fds:
                    os.close(fd)
                self._closed = True
                return
            if self._closed:
                os.close(fds[0])
                return
            self._listener = fds[0]
            self._resume()
            with contextlib.suppress(OSError):
                channel.send(b".")

    def close(self) -> None:
        """Stop answering. All calls fail from now on."""
        self._closed = True
        self._pause()
        for task in self._tasks:
            task.cancel()
        if self._listener is not None:
            os.close(self._listener)
            self._listener = None

    def _resume(self) -> None:
        if not self._reading and self._listener is not None:
            self._reading = True
            asyncio.get_running_loop().add_reader(self._listener, self._next)

    def _pause(self) -> None:
        if self._reading and self._listener is not None:
            self._reading = False
            asyncio.get_running_loop().remove_reader(self._listener)

    def _next(self) -> None:
        if self._listener is None:
            return
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        events = sum(events for _, events in poll.poll(0))
        if not events & select.POLLIN:  # a signal interrupted the pending call
            if events & select.POLLHUP:  # the box has no processes left
                self.close()
            return
        try:
            notification = kernel.receive(self._listener)
        except FileNotFoundError:
            return
        task = asyncio.get_running_loop().create_task(self._answer(self._listener, notification))
        self._tasks.add(task)
        task.add_done_callback(self._answered)
        self._count()

    def _count(self) -> None:
        now = time.monotonic()
        if now - self._second >= 1.0:
            self._second, self._calls = now, 0
        self._calls += 1
        if self._calls >= MAX_CALLS_A_SECOND:
            self._pause()
            asyncio.get_running_loop().call_later(max(0.0, self._second + 1.0 - now), self._resume)
        elif len(self._tasks) >= MAX_WAITING:
            self._pause()

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._calls < MAX_CALLS_A_SECOND:
            self._resume()

    async def _answer(self, listener: int, notification: kernel.Notification) -> None:
        call = None
        try:
            if notification.number in (self._numbers.connect, self._numbers.listen):
                call = Call(listener, notification)
                connects = call.number == self._numbers.connect
                error = await (self._handler.connect(call) if connects else self._handler.listen(call))
            else:
                error = self._handler.refuse(refused_call(self._numbers, notification))
        except OSError as failure:
            error = failure.errno or errno.EPERM
        except Exception:  # noqa: BLE001 - any error refuses the call
            _LOG.exception("cannot answer a system call of a job; the call is refused")
            error = errno.EPERM
        finally:
            if call is not None:
                call.close()
        delivered = kernel.answer(listener, notification.id, error=error)
        if not delivered and call is not None:
            self._handler.answer_lost(call, error)


async def _received(loop: asyncio.AbstractEventLoop, channel: socket.socket) -> list[int]:
    readable = asyncio.Event()
    loop.add_reader(channel, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(channel)
    _, fds, _, _ = socket.recv_fds(channel, 1, 4)
    return fds
