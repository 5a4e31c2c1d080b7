"""Server-sent events (WHATWG HTML, 9.2): streams that are bounded in number, life and memory.

A stream holds no queue. What it sends next is looked up when the client has taken what came before; a client that takes
nothing for :data:`STALL_SECONDS` is cut off. So is one whose credential is revoked
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
"""Most streams that may be open at a time in one JobManager."""
MAX_STREAMS_OF_ONE = 20
"""Most streams of one principal."""
STREAM_SECONDS = 900.0
"""A stream ends after this; the client comes back and is authenticated again."""
KEEP_ALIVE_SECONDS = 5.0
"""An idle stream sends a comment this often, below the idle time-outs of proxies on the way."""
STALL_SECONDS = 30.0
RETRY_MILLIS = 1000
"""How long a client waits after the end of a stream before it comes back."""


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
        """One event, with its document in JSON; ``identifier`` is where a client goes on later."""
        data = msgspec.json.encode(document)
        head = f"id: {identifier}\nevent: {event}\ndata: " if identifier else f"event: {event}\ndata: "
        await self._write(head.encode() + data + b"\n\n")

    async def breathe(self) -> None:
        """Send a comment if nothing was sent for a while."""
        if self._clock() - self._said >= KEEP_ALIVE_SECONDS:
            await self._write(b":\n\n")

    async def begin(self) -> None:
        """What comes first."""
        await self._write(f"retry: {RETRY_MILLIS}\n\n".encode())

    async def _write(self, data: bytes) -> None:
        async with asyncio.timeout(STALL_SECONDS):
            await self._response.write(data)
        self._said = self._clock()


Produce = Callable[[EventStream], Awaitable[None]]


@dataclass
class Streams:
    """All streams of this process.

    Attributes:
        open: those that are open, with who has opened them.
    """

    open: OpenStreams
    clock: Callable[[], float] = field(default=time.monotonic)
    _places: Counter[str] = field(default_factory=Counter)
    """The number of streams of each principal, from the request for one until its end."""

    async def serve(self, call: Call[Any], produce: Produce) -> web.StreamResponse:
        """Answer ``call`` with the events that ``produce`` sends, until it returns.

        Raises:
            TooManyStreams: as many as there may be are open already.
        """
        principal = call.who.name
        self._take_place(principal)
        # Its own task: cutting the stream must not cancel the connection, which others may use.
        task = asyncio.create_task(self._serve(call, produce))
        task.add_done_callback(lambda _: self._give_place_back(principal))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise

    def _take_place(self, principal: str) -> None:
        """Check the limits and take a place in one step, before any stream of a burst is open."""
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
                    await stream.send("problem", problem_of(NotAsserted("the credential is not valid any more")))
                    await response.write_eof()
        except (TimeoutError, ClientConnectionError):
            if call.request.transport is not None:
                call.request.transport.abort()
        else:
            with contextlib.suppress(ClientConnectionError):
                await response.write_eof()
        return response

    async def _produce(self, stream: EventStream, produce: Produce) -> None:
        """Report an error inside the stream, because the status was sent long ago."""
        await stream.begin()
        try:
            await produce(stream)
        except FeedClosed:
            lost = LeadershipLost("this JobManager does not lead any more", "come back: another one does")
            await stream.send("problem", problem_of(lost))
        except SluiceError as error:
            await stream.send("problem", problem_of(error))
