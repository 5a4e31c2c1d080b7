"""One connection with one peer: hello, batches, pings, and close.

A connection does not know about calls. Both ends say hello, send envelopes in batches (once per turn of the event
loop), detect a silent peer, and pass on what arrives, in order. The connection ends with its stream. Calls in flight
then fail, and the dialing side connects and registers again.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from sluice.pki import SpiffeId
from sluice.runtime.rpc import envelope as wire
from sluice.runtime.rpc.errors import PeerUnreachable, ProtocolViolation, RpcError
from sluice.runtime.rpc.heartbeat import MOST_STALLS
from sluice.runtime.rpc.transport.outbox import Outbox

MAX_UNSENT_BYTES = 64 << 20
"""Number of unsent bytes at which a peer counts as not reading, and its connection is closed."""

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StreamTimeouts:
    """Timeouts for a peer, in seconds.

    Attributes:
        hello: wait for its stream, and then for its first envelope.
        ping_interval: silence after which it is pinged.
        ping_timeout: silence after which the connection is closed.
        goodbye: wait for the remaining data to be sent when the stream is closed.
    """

    hello: float = 10.0
    ping_interval: float = 10.0
    ping_timeout: float = 30.0
    goodbye: float = 2.0


class MessageStream(Protocol):
    """The transport, which carries whole messages in order."""

    def attach(self, receiver: RpcConnection) -> None:
        """Deliver to ``receiver`` from now on."""

    @property
    def writable(self) -> bool:
        """Whether a message is sent at once; the receiver's ``resume_sending`` is called when it is again."""
        ...

    def send(self, message: bytes) -> None:
        """Send one message."""

    def finish(self) -> None:
        """End this direction cleanly, and close the connection when all data is sent."""

    def abort(self) -> None:
        """Drop the connection at once."""

    async def gone(self) -> None:
        """Wait, for a bounded time, until the connection is gone."""


class ConnectionUser(Protocol):
    """Receives the messages of a connection."""

    def handle(self, envelope: wire.Envelope) -> None:
        """Handle an envelope other than those of the connection itself; may raise :class:`ProtocolViolation`."""

    def before_batch(self) -> None:
        """Add envelopes to the next batch, which is about to be sent."""

    def connection_ended(self, reason: RpcError) -> None:
        """The connection has ended; called once."""


class RpcConnection:
    """A connection from the first hello to its end. Create it inside a running event loop.

    Args:
        local: the identity of this process.
        peer: the identity in the peer's certificate.
        stream: the transport.
        user: receives the envelopes.
        timeouts: how long to wait for the peer.
    """

    def __init__(
        self, local: SpiffeId, peer: SpiffeId, stream: MessageStream, user: ConnectionUser, timeouts: StreamTimeouts
    ) -> None:
        self.peer = peer
        self._local = local
        self._stream = stream
        self._user = user
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._outbox = Outbox()
        self._greeted = False
        self._flush_scheduled = False
        self._closing = False
        self._finished: asyncio.Future[None] = self._loop.create_future()
        self._last_heard = self._loop.time()
        self._asked_for_life = False
        self._stalls = 0
        self._watch = self._loop.call_later(timeouts.hello, self._check_hello)
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.version = 0
        """Version of the wire format on this connection: the lower of both ends'; 0 before the peer's hello."""
        self.end_reason: RpcError | None = None
        self._ended = asyncio.Event()
        stream.attach(self)
        self._send_urgent(wire.Hello(wire.PROTOCOL_VERSION))

    # --- for the user ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self.end_reason is not None

    @property
    def accepts(self) -> bool:
        """Whether envelopes can still be sent."""
        return self.end_reason is None and not self._closing

    def send(self, data: bytes) -> None:
        """Send an encoded envelope with the next batch."""
        if self.end_reason is not None or self._closing:
            return
        self._outbox.add(data)
        if self._outbox.size > MAX_UNSENT_BYTES:
            self.end(PeerUnreachable(f"{self.peer} does not read: {self._outbox.size} bytes wait for it"))
        elif not self._flush_scheduled:
            self.schedule_batch()

    def schedule_batch(self) -> None:
        """Send the waiting envelopes, and what the user adds, in the next turn of the event loop."""
        if not self._flush_scheduled and self.end_reason is None:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    async def wait_closed(self) -> None:
        """Wait until the connection has ended."""
        await self._ended.wait()

    async def close(self, reason: str) -> None:
        """Send a goodbye and the waiting envelopes (for a bounded time), then end the connection."""
        if self.accepts:
            self.send(wire.encode_envelope(wire.Goodbye(reason[: wire.MAX_NAME_CHARS])))
            self._closing = True
            done, _ = await asyncio.wait({self._finished}, timeout=self._timeouts.goodbye)
            if done and self.end_reason is None:
                await self._stream.gone()
        self.end(PeerUnreachable(f"the connection to {self.peer} was closed here: {reason}"))
        await self._stream.gone()

    def end(self, reason: RpcError) -> None:
        """End the connection. Idempotent."""
        if self.end_reason is not None:
            return
        self.end_reason = reason
        _LOG.info("rpc connection %s - %s ended: %s", self._local, self.peer, reason.what)
        self._watch.cancel()
        self._stream.abort()
        self._outbox.clear()
        if not self._finished.done():
            self._finished.set_result(None)
        if not self.ready.done():
            self.ready.set_exception(reason)
            self.ready.exception()  # mark as retrieved, since not every user waits for it
        self._ended.set()
        self._user.connection_ended(reason)

    # --- for the stream --------------------------------------------------------------------------------

    def message_received(self, data: bytes) -> None:
        """Handle one gRPC message. A violation in it ends only this connection."""
        if self.end_reason is not None:
            return
        self._last_heard = self._loop.time()
        self._asked_for_life = False
        try:
            for each in wire.decode_batch(data):
                if self.end_reason is not None:
                    return
                if self._greeted and type(each) not in wire.OF_THE_CONNECTION:
                    self._user.handle(each)
                else:
                    self._handle_own(each)
        except ProtocolViolation as violation:
            _LOG.warning("rpc peer %s broke the protocol: %s", self.peer, violation.what)
            self.end(ProtocolViolation(f"{self.peer} broke the protocol: {violation.what}", violation.remedy))

    def stream_ended(self, reason: str) -> None:
        """Handle the loss of the transport, or the end of the peer's direction."""
        self.end(PeerUnreachable(f"the connection to {self.peer} ended: {reason}"))

    def resume_sending(self) -> None:
        """Send the envelopes that waited for the stream."""
        if self._outbox or self._closing:
            self.schedule_batch()

    # --- inside ----------------------------------------------------------------------------------------

    def _handle_own(self, each: wire.Envelope) -> None:
        if not self._greeted:
            if not isinstance(each, wire.Hello):
                raise ProtocolViolation("it did not say hello first")
            self._begin(each.version)
        elif isinstance(each, wire.Ping):
            self._send_urgent(wire.Pong())
        elif isinstance(each, wire.Hello):
            raise ProtocolViolation("a second hello")

    def _begin(self, newest: int) -> None:
        if newest < wire.OLDEST_VERSION:
            raise ProtocolViolation(
                f"it supports RPC versions up to {newest}, and this process none below {wire.OLDEST_VERSION}",
                "upgrade by one release at a time, JobManagers first",
            )
        self.version = min(newest, wire.PROTOCOL_VERSION)
        self._greeted = True
        self._watch.cancel()
        self._watch = self._loop.call_later(self._timeouts.ping_interval, self._check_silence)
        self.ready.set_result(None)
        self.schedule_batch()

    def _send_urgent(self, envelope: wire.Envelope) -> None:
        self._outbox.add_urgent(envelope)
        self.schedule_batch()

    def _flush(self) -> None:
        self._flush_scheduled = False
        stream = self._stream
        if self.end_reason is not None:
            return
        try:
            if self._greeted:
                self._user.before_batch()
            while stream.writable and (batch := self._outbox.next_batch(urgent_only=not self._greeted)):
                stream.send(batch)
            if self._closing and stream.writable and not self._finished.done():
                self._finished.set_result(None)
                stream.finish()
        except Exception as error:  # noqa: BLE001  # any error of the transport ends the connection
            self.stream_ended(f"cannot send: {error or type(error).__name__}")

    def _check_hello(self) -> None:
        self.end(PeerUnreachable(f"{self.peer} did not say hello within {self._timeouts.hello} s"))

    def _check_silence(self) -> None:
        now = self._loop.time()
        silence = now - self._last_heard
        # Only an unanswered ping counts, and not right after a stall of this process: answers may still be unread.
        late = now - self._watch.when() >= self._timeouts.ping_interval
        self._stalls = self._stalls + 1 if late else 0
        stalled = 0 < self._stalls <= MOST_STALLS
        if silence >= self._timeouts.ping_timeout and self._asked_for_life and not stalled:
            self.stream_ended(f"no sign of life for {self._timeouts.ping_timeout} s")
            return
        self._watch = self._loop.call_later(self._timeouts.ping_interval, self._check_silence)
        if silence >= self._timeouts.ping_interval:
            self._asked_for_life = True
            self._send_urgent(wire.Ping())
