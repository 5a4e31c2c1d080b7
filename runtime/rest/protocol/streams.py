"""Server-sent events (WHATWG HTML, 9.2): streams with limits for their number, lifetime and memory.

A stream has no queue: it looks up what to send next when the client has received the previous event. A client that
receives nothing for :data:`STALL_SECONDS` is disconnected, and so is one whose credential is revoked
(``pki.assertions.open_streams``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import ClientConnectionError, web

from sluice.core import SluiceError
from sluice.pki.assertions import OpenStreams, StreamEnded
from sluice.runtime.ha import LeadershipLost
from sluice.runtime.jobmanager.dispatcher import FeedClosed
from sluice.runtime.rest.protocol.problems import NotAsserted, TooManyStreams, problem_of
from sluice.runtime.rest.protocol.route import EVENT_STREAM, Call

MAX_STREAMS = 500
"""Maximum number of open streams of one JobManager."""
MAX_STREAMS_OF_ONE = 20
"""Maximum number of open streams of one principal."""
STREAM_SECONDS = 900.0
"""Maximum lifetime of a stream. The client then reconnects and is authenticated again."""
KEEP_ALIVE_SECONDS = 5.0
"""An idle stream sends a comment this often, more often than the idle timeouts of proxies."""
STALL_SECONDS = 30.0
RETRY_MILLIS = 1000
"""How long a client waits before it reconnects after the end of a stream."""


class EventStream:
    """One open stream."""

    def __init__(self, response: web.StreamResponse, clock: Callable[[], float]) -> None:
        self._response = response
        self._clock = clock
        self._end = clock() + STREAM_SECONDS
        self._said = clock()

    @property
    def over(self) -> bool:
        """Whether the stream has reached its maximum age."""
        return self._clock() >= self._end

    async def send(self, event: str, document: object, identifier: str = "") -> None:
        """Send an event with a JSON document. A client that reconnects sends the last ``identifier``."""
        data = msgspec.json.encode(document)
        head = f"id: {identifier}\nevent: {event}\ndata: " if identifier else f"event: {event}\ndata: "
        await self._write(head.encode() + data + b"\n\n")

    async def breathe(self) -> None:
        """Send a comment if nothing was sent for a while."""
        if self._clock() - self._said >= KEEP_ALIVE_SECONDS:
            await self._write(b":\n\n")

    async def begin(self) -> None:
        """Send the reconnection time as the first message."""
        await self._write(f"retry: {RETRY_MILLIS}\n\n".encode())

    async def _write(self, data: bytes) -> None:
        async with asyncio.timeout(STALL_SECONDS):
            await self._response.write(data)
        self._said = self._clock()


Produce = Callable[[EventStream], Awaitable[None]]


@dataclass
class Streams:
    """All event streams of this process.


    Attributes:
        open: the open streams with the callers that opened them.
    """

    open: OpenStreams
    clock: Callable[[], float] = field(default=time.monotonic)
    _places: Counter[str] = field(default_factory=Counter)
    """The number of streams per principal, counted from the request to the end of the stream."""

    async def serve(self, call: Call[Any], produce: Produce) -> web.StreamResponse:
        """Respond to ``call`` with the events that ``produce`` sends, until it returns.


        Raises:
            TooManyStreams: the maximum number of streams is open already.
        """
        principal = call.who.name
        self._take_place(principal)
        # In its own task: ending the stream must not cancel the connection, which other requests may share.
        task = asyncio.create_task(self._serve(call, produce))
        task.add_done_callback(lambda _: self._give_place_back(principal))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise

    def _take_place(self, principal: str) -> None:
        """Check the limits and count the stream in one step, before any stream of a burst is open."""
        if self._places.total() >= MAX_STREAMS or self._places[principal] >= MAX_STREAMS_OF_ONE:
            raise TooManyStreams(
                "too many streams are open", f"at most {MAX_STREAMS_OF_ONE} of one principal: close others first"
            )
        self._places[principal] += 1

    def _give_place_back(self, principal: str) -> None:
        self._places[principal] -= 1
        if not self._places[principal]:
            del self._places[principal]

    async def _serve(self, call: Call[Any], produce: Produce) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"content-type": f"{EVENT_STREAM}; charset=utf-8", "cache-control": "no-store"}
        )
        stream = EventStream(response, self.clock)
        try:
            with self.open.entered(call.who):
                await response.prepare(call.request)
                await self._produce(stream, produce)
        except StreamEnded:
            if response.prepared:
                with contextlib.suppress(TimeoutError, ClientConnectionError):
                    await stream.send("problem", problem_of(NotAsserted("the credential is no longer valid")))
                    await response.write_eof()
        except (TimeoutError, ClientConnectionError):
            if call.request.transport is not None:
                call.request.transport.abort()
        else:
            with contextlib.suppress(ClientConnectionError):
                await response.write_eof()
        return response

    async def _produce(self, stream: EventStream, produce: Produce) -> None:
        """Run ``produce``. An error is reported inside the stream, because the status has been sent already."""
        await stream.begin()
        try:
            await produce(stream)
        except FeedClosed:
            lost = LeadershipLost("this JobManager no longer leads", "reconnect to reach the new leader")
            await stream.send("problem", problem_of(lost))
        except SluiceError as error:
            await stream.send("problem", problem_of(error))
