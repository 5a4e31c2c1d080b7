"""A session with one peer: numbered envelopes in order, each once, over one stream after the other.

Nothing is known here of calls. A line greets, packs what is to be sent into batches (once a turn of the event loop, so
that what belongs together travels together), watches for silence, and tells its user what arrives.

When both sides grant ``Patience.resume`` seconds, a session outlives its stream: the dialing side connects again and
names it, both say how much they have received, and send the rest. Only the identity that began a session can come
back to it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from sluice.core.errors import SluiceError
from sluice.pki.spiffe_id import SpiffeId
from sluice.runtime.rpc import envelope as wire
from sluice.runtime.rpc.errors import PeerUnreachable, ProtocolViolation, RpcError
from sluice.runtime.rpc.outbox import Outbox

MAX_UNSENT_BYTES = 64 << 20
"""Bytes that wait to be sent, or to be acknowledged, at which a peer counts as not reading, and is given up."""

ACKNOWLEDGE_ENVELOPES = 256
ACKNOWLEDGE_BYTES = 1 << 20
"""So much of a session that may be resumed is acknowledged at once; less with the next look for silence."""

MAX_SESSIONS_PER_PEER = 8
"""Sessions that one identity may have at a time; further ones end with their stream."""

REDIAL_FIRST_SECONDS = 0.05
REDIAL_MAX_SECONDS = 1.0
"""Pause after an attempt to connect again that did not lead to a greeting; it doubles up to the largest."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a peer, in seconds.

    Attributes:
        hello: for its stream, and then for its first envelope.
        ping_interval: of silence, after which it is asked for a sign of life.
        ping_timeout: of silence, after which it is given up.
        goodbye: for what is still to be sent when the stream is closed.
        resume: for another stream after one broke; zero: the end of a stream is the end of everything on it.
    """

    hello: float = 10.0
    ping_interval: float = 10.0
    ping_timeout: float = 30.0
    goodbye: float = 2.0
    resume: float = 0.0


class MessageStream(Protocol):
    """The transport below: whole messages, in order."""

    def attach(self, receiver: Leg) -> None:
        """Deliver to ``receiver`` from now on."""

    @property
    def writable(self) -> bool:
        """Whether what is sent leaves at once; the receiver's ``resume_sending`` tells when it does again."""
        ...

    def send(self, message: bytes) -> None:
        """Send one message."""

    def finish(self) -> None:
        """End this direction in order, and the connection when all is sent."""

    def abort(self) -> None:
        """Drop the connection at once."""

    async def gone(self) -> None:
        """Wait, for a bounded time, until nothing of the connection is left."""

    @property
    def revoked(self) -> bool:
        """Whether the peer's certificate is revoked by now."""
        ...


class User(Protocol):
    """Who speaks over a line."""

    def handle(self, envelope: wire.Envelope) -> None:
        """An envelope arrived, other than those of the line itself; may raise :class:`ProtocolViolation`."""

    def before_batch(self) -> None:
        """A batch is about to be made: the last occasion to add to it."""

    def line_ended(self, reason: RpcError) -> None:
        """Nothing will arrive any more, and nothing can be sent. Called once."""


Redial = Callable[[], Awaitable[MessageStream]]
"""Connect to the same peer again; raises ``SluiceError``."""


class Sessions:
    """The sessions that peers may come back to, a few of each peer."""

    def __init__(self) -> None:
        self._lines: dict[SpiffeId, dict[bytes, Line]] = {}

    def __len__(self) -> int:
        return sum(len(lines) for lines in self._lines.values())

    def find(self, peer: SpiffeId, session: bytes) -> Line | None:
        """The line of an earlier stream of exactly that peer."""
        return self._lines.get(peer, {}).get(session)

    def add(self, line: Line, session: bytes) -> bool:
        """Keep ``line``; False when its peer has too many already."""
        lines = self._lines.setdefault(line.peer, {})
        if len(lines) >= MAX_SESSIONS_PER_PEER:
            return False
        lines[session] = line
        return True

    def discard(self, line: Line) -> None:
        """Forget ``line``."""
        lines = self._lines.get(line.peer, {})
        if lines.get(line.session) is line:
            del lines[line.session]
            if not lines:
                del self._lines[line.peer]


class Leg:
    """One stream of a line; what a stream says that has been replaced is not heard."""

    __slots__ = ("line", "stream")

    def __init__(self, line: Line, stream: MessageStream) -> None:
        self.line = line
        self.stream = stream
        stream.attach(self)

    def message_received(self, data: bytes) -> None:
        """One message arrived."""
        if self.line.leg is self:
            self.line.message_received(data)

    def stream_ended(self, reason: str) -> None:
        """The stream is over."""
        if self.line.leg is self:
            self.line.stream_ended(reason)

    def resume_sending(self) -> None:
        """The stream is writable again."""
        if self.line.leg is self:
            self.line.resume_sending()


class Line:
    """From the first greeting to the end. Created inside a running event loop.

    Args:
        local: who this process is.
        peer: who the other one is, by its certificate.
        stream: the first stream.
        user: who speaks.
        patience: how long to wait.
        redial: of the dialing side, to come back by.
        sessions: of the accepting side; None on the dialing side.
    """

    def __init__(
        self,
        local: SpiffeId,
        peer: SpiffeId,
        stream: MessageStream,
        user: User,
        patience: Patience,
        *,
        redial: Redial | None = None,
        sessions: Sessions | None = None,
    ) -> None:
        self.peer = peer
        self._local = local
        self._user = user
        self._patience = patience
        self._redial = redial
        self._sessions = sessions
        self._loop = asyncio.get_running_loop()
        # The session.
        self.session = b""
        """The name of the session; empty when it ends with its stream."""
        self._received = 0
        self._acknowledged = 0
        self._unacknowledged_bytes = 0
        self._outbox = Outbox()
        self._redialing: asyncio.Task[None] | None = None
        self._broken_at: float | None = None
        self._redial_pause = 0.0
        # The stream.
        self.leg: Leg | None = Leg(self, stream)
        self._stream: MessageStream = stream
        self._greeted = False
        self._flush_scheduled = False
        self._closing = False
        self._finished: asyncio.Future[None] = self._loop.create_future()
        # Life.
        self._last_heard = self._loop.time()
        self._asked_for_life = False
        self._watch = self._loop.call_later(patience.hello, self._check_hello)
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self.end_reason: RpcError | None = None
        self._ended = asyncio.Event()
        if sessions is None:
            wanted = secrets.token_bytes(wire.SESSION_BYTES) if redial is not None and patience.resume > 0 else b""
            self.session = wanted
            self._send_urgent(wire.Hello(wire.PROTOCOL_VERSION, wanted))

    # --- for the user ----------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the line has ended."""
        return self.end_reason is not None

    @property
    def suspended(self) -> bool:
        """Whether it waits for another stream."""
        return self.leg is None and self.end_reason is None

    @property
    def accepts(self) -> bool:
        """Whether something may still be sent."""
        return self.end_reason is None and not self._closing

    def send(self, data: bytes) -> None:
        """Send an encoded envelope, one of :data:`envelope.NUMBERED`, with the next batch."""
        if self.end_reason is not None or self._closing:
            return
        self._outbox.add(data)
        if self._outbox.size > MAX_UNSENT_BYTES:
            self.end(PeerUnreachable(f"{self.peer} does not read: {self._outbox.size} bytes wait for it"))
        elif not self._flush_scheduled:
            self.schedule_batch()

    def schedule_batch(self) -> None:
        """Send what waits, and what the user adds, in the next turn of the event loop."""
        if not self._flush_scheduled and self.end_reason is None:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    async def wait_closed(self) -> None:
        """Wait until the line has ended."""
        await self._ended.wait()

    async def close(self, reason: str) -> None:
        """Say goodbye, send what waits (for a bounded time), and end."""
        stream = self._stream
        if self.accepts and not self.suspended:
            self.send(wire.encode_envelope(wire.Goodbye(reason[: wire.MAX_NAME_CHARS])))
            self._closing = True
            done, _ = await asyncio.wait({self._finished}, timeout=self._patience.goodbye)
            if done and self.end_reason is None:
                await stream.gone()
        self.end(PeerUnreachable(f"the connection to {self.peer} was closed here: {reason}"))
        await stream.gone()

    def end(self, reason: RpcError) -> None:
        """It is over. Idempotent."""
        if self.end_reason is not None:
            return
        self.end_reason = reason
        _log.info("rpc line %s - %s ended: %s", self._local, self.peer, reason.what)
        self._watch.cancel()
        if self._redialing is not None and self._redialing is not asyncio.current_task():
            self._redialing.cancel()
        if self._sessions is not None:
            self._sessions.discard(self)
        self.leg = None
        self._stream.abort()
        self._outbox.clear()
        if not self._finished.done():
            self._finished.set_result(None)
        if not self.ready.done():
            self.ready.set_exception(reason)
            self.ready.exception()  # looked at: not everyone waits for it
        self._ended.set()
        self._user.line_ended(reason)

    # --- for the stream --------------------------------------------------------------------------------

    def message_received(self, data: bytes) -> None:
        """One gRPC message arrived. Whatever is wrong with it ends this line and no other."""
        self._last_heard = self._loop.time()
        self._asked_for_life = False
        try:
            for each in wire.decode_batch(data):
                if self.end_reason is not None:
                    return
                if type(each) in wire.NUMBERED and self._greeted:
                    self._received += 1
                    self._user.handle(each)
                else:
                    self._handle_own(each)
        except ProtocolViolation as violation:
            _log.warning("rpc peer %s broke the protocol: %s", self.peer, violation.what)
            self.end(ProtocolViolation(f"{self.peer} broke the protocol: {violation.what}"))
            return
        if self.session:
            self._unacknowledged_bytes += len(data)
            if (
                self._received - self._acknowledged >= ACKNOWLEDGE_ENVELOPES
                or self._unacknowledged_bytes >= ACKNOWLEDGE_BYTES
            ):
                self._acknowledge()

    def stream_ended(self, reason: str) -> None:
        """The transport is gone, or the peer ended its direction."""
        ended = PeerUnreachable(f"the connection to {self.peer} ended: {reason}")
        if self.session and self.ready.done() and not self._closing and not self._stream.revoked:
            self._suspend(ended)
        else:
            self.end(ended)

    def resume_sending(self) -> None:
        """What waited for the stream may go on."""
        if self._outbox or self._closing:
            self.schedule_batch()

    # --- greeting ---------------------------------------------------------------------------------------

    def _handle_own(self, each: wire.Envelope) -> None:
        if not self._greeted:
            if not isinstance(each, wire.Hello):
                raise ProtocolViolation("it did not say hello first")
            if each.version != wire.PROTOCOL_VERSION:
                raise ProtocolViolation(f"it speaks version {each.version}, this is {wire.PROTOCOL_VERSION}")
            if self._sessions is None:
                self._answered(each)
            else:
                self._asked(each, self._sessions)
        elif isinstance(each, wire.Ping):
            self._send_urgent(wire.Pong())
        elif isinstance(each, wire.Received):
            self._outbox.acknowledged(each.count)
        elif isinstance(each, wire.Hello):
            raise ProtocolViolation("a second hello")

    def _asked(self, hello: wire.Hello, sessions: Sessions) -> None:
        """As the accepting side: a peer begins a session, or comes back to one."""
        known = sessions.find(self.peer, hello.session)
        if not hello.resume:
            if known is not None or hello.received:
                raise ProtocolViolation("it begins a session that exists")
            if hello.session and self._patience.resume > 0 and sessions.add(self, hello.session):
                self.session = hello.session
                self._outbox.retain()
            self._send_urgent(wire.Hello(wire.PROTOCOL_VERSION, self.session))
            self._begin()
        elif known is None:
            # The greeting of a stream without session says it; then this one ends, in order.
            self._send_urgent(wire.Hello(wire.PROTOCOL_VERSION))
            self._greeted = self._closing = True
            self._watch.cancel()
            unknown = PeerUnreachable(f"{self.peer} wants to resume a session that is not known here")
            self._watch = self._loop.call_later(self._patience.goodbye, self.end, unknown)
        else:
            known.continue_on(self, hello)

    def continue_on(self, newcomer: Line, hello: wire.Hello) -> None:
        """The peer has come back on the stream of ``newcomer``, which ends."""
        self._outbox.rewind(hello.received)  # raises, in the newcomer's name, when the peer lies about the past
        _log.info("rpc line %s - %s goes on over another stream", self._local, self.peer)
        stream, old = newcomer._stream, self._stream
        newcomer.leg = None
        newcomer._stream = old  # the newcomer takes the old stream along
        self.leg, self._stream = Leg(self, stream), stream
        newcomer.end(PeerUnreachable(f"{self.peer} went on with an earlier session"))
        self._send_urgent(wire.Hello(wire.PROTOCOL_VERSION, self.session, resume=True, received=self._received))
        self._begin()

    def _answered(self, hello: wire.Hello) -> None:
        """As the dialing side: the peer takes the session, or does not."""
        if self.ready.done():
            if not hello.session:
                self.end(PeerUnreachable(f"{self.peer} does not know this session any more", "begin another one"))
                return
            if hello.session != self.session or not hello.resume:
                raise ProtocolViolation("it does not resume the session that was asked for")
            self._outbox.rewind(hello.received)
        elif hello.session not in (b"", self.session) or hello.resume or hello.received:
            raise ProtocolViolation("it answers for another session")
        elif hello.session:
            self._outbox.retain()
        else:
            self.session = b""
        self._begin()

    def _begin(self) -> None:
        self._greeted = True
        self._broken_at, self._redial_pause = None, 0.0
        self._acknowledged, self._unacknowledged_bytes = self._received, 0
        self._last_heard = self._loop.time()
        self._asked_for_life = False
        self._watch.cancel()
        self._watch = self._loop.call_later(self._patience.ping_interval, self._check_silence)
        if not self.ready.done():
            self.ready.set_result(None)
        self.schedule_batch()

    # --- between two streams ------------------------------------------------------------------------------

    def _suspend(self, reason: RpcError) -> None:
        _log.info("rpc line %s - %s waits for another stream: %s", self._local, self.peer, reason.what)
        self.leg, self._greeted = None, False
        self._outbox.drop_urgent()
        self._stream.abort()
        self._watch.cancel()
        # A stream that broke before it was greeted gains no time.
        self._broken_at = self._loop.time() if self._broken_at is None else self._broken_at
        self._watch = self._loop.call_at(self._broken_at + self._patience.resume, self.end, reason)
        if self._redial is not None and self._redialing is None:
            self._redialing = asyncio.create_task(self._come_back(self._redial), name=f"rpc redial {self.peer}")

    async def _come_back(self, redial: Redial) -> None:
        try:
            while self.suspended:
                await asyncio.sleep(self._redial_pause)
                self._redial_pause = min(max(2 * self._redial_pause, REDIAL_FIRST_SECONDS), REDIAL_MAX_SECONDS)
                try:
                    stream = await redial()
                except SluiceError as error:
                    _log.info("cannot reach %s again yet: %s", self.peer, error.what)
                    continue
                self.leg, self._stream = Leg(self, stream), stream
                self._send_urgent(wire.Hello(wire.PROTOCOL_VERSION, self.session, resume=True, received=self._received))
        finally:
            self._redialing = None

    # --- sending ----------------------------------------------------------------------------------------

    def _send_urgent(self, envelope: wire.Envelope) -> None:
        self._outbox.add_urgent(envelope)
        self.schedule_batch()

    def _acknowledge(self) -> None:
        self._acknowledged, self._unacknowledged_bytes = self._received, 0
        self._send_urgent(wire.Received(self._received))

    def _flush(self) -> None:
        self._flush_scheduled = False
        stream = self._stream
        if self.leg is None or self.end_reason is not None:
            return
        try:
            if self._greeted:
                self._user.before_batch()
            while stream.writable and (batch := self._outbox.next_batch(urgent_only=not self._greeted)):
                stream.send(batch)
            if self._closing and stream.writable and not self._finished.done():
                self._finished.set_result(None)
                stream.finish()
        except Exception as error:  # noqa: BLE001  # foreign errors of the transport end here, as the reason
            self.stream_ended(f"cannot send: {error or type(error).__name__}")

    # --- life -------------------------------------------------------------------------------------------

    def _check_hello(self) -> None:
        self.end(PeerUnreachable(f"{self.peer} did not say hello within {self._patience.hello} s"))

    def _check_silence(self) -> None:
        silence = self._loop.time() - self._last_heard
        # Only an unanswered question counts: after a stall of this process the answers are yet to be read.
        if silence >= self._patience.ping_timeout and self._asked_for_life:
            self.stream_ended(f"no sign of life for {self._patience.ping_timeout} s")
            return
        self._watch = self._loop.call_later(self._patience.ping_interval, self._check_silence)
        if silence >= self._patience.ping_interval:
            self._asked_for_life = True
            self._send_urgent(wire.Ping())
        if self.session and self._received != self._acknowledged:
            self._acknowledge()
