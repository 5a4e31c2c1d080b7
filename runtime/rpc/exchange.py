"""One stream to one peer: asks and tells in both directions, batched, bounded, watched for silence.

No sockets here: an :class:`Exchange` talks to a :class:`MessageStream` and is told what arrives.
Reading never pauses, so answers always get through; what a peer may have under way is bounded by
:mod:`runtime.rpc.window` instead, and a peer that does not read is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pki.identity import SpiffeId
from runtime.rpc import envelope as wire
from runtime.rpc.caller import Caller
from runtime.rpc.contract import Method
from runtime.rpc.endpoint import Invocation
from runtime.rpc.errors import (
    ErrorText,
    PeerUnreachable,
    ProtocolViolation,
    RpcError,
    RpcTimeout,
    describe,
    rebuild,
)
from runtime.rpc.local import Deliver, Request
from runtime.rpc.mailbox import refuse_to_wait_on_main_thread
from runtime.rpc.window import SendWindow, has_room

MAX_UNSENT_BYTES = 64 << 20
"""Bytes that wait to be sent at which a peer counts as not reading, and is given up."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a peer, in seconds.

    Attributes:
        hello: for its stream, and then for its first envelope.
        ping_interval: of silence, after which it is asked for a sign of life.
        ping_timeout: of silence, after which it is given up.
        goodbye: for what is still to be sent when the stream is closed.
    """

    hello: float = 10.0
    ping_interval: float = 10.0
    ping_timeout: float = 30.0
    goodbye: float = 2.0


class MessageStream(Protocol):
    """The transport below: whole messages, in order."""

    async def send(self, message: bytes) -> None:
        """Send one message; waits while the peer's flow control says so."""

    async def finish(self) -> None:
        """End this direction in order."""

    def abort(self) -> None:
        """Drop the connection at once."""

    async def gone(self) -> None:
        """Wait, for a bounded time, until nothing of the connection is left."""


class Exchange:
    """Both directions of one stream, from ``Hello`` to the end. Created inside a running event loop."""

    def __init__(
        self, local: SpiffeId, peer: SpiffeId, stream: MessageStream, deliver: Deliver, patience: Patience
    ) -> None:
        self.peer = peer
        self._local = local
        self._stream = stream
        self._deliver = deliver
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self.caller = Caller(peer)
        # Outgoing calls.
        self._next_id = 0
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._window = SendWindow()
        # Incoming calls.
        self._incoming: dict[int, _RemoteAnswer] = {}
        self._incoming_calls = 0
        self._incoming_bytes = 0
        self._consumed_tells = 0
        self._consumed_bytes = 0
        # Sending.
        self._outbox: deque[bytes] = deque()
        self._outbox_bytes = 0
        self._wake = asyncio.Event()
        self._closing = False
        self._writer = asyncio.create_task(self._write(), name=f"rpc writer to {peer}")
        # Life.
        self._last_heard = self._loop.time()
        self._asked_for_life = False
        self._watch = self._loop.call_later(patience.hello, self._check_hello)
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._end: RpcError | None = None
        self._ended = asyncio.Event()
        self._on_close: list[Callable[[], object]] = []
        self._enqueue(wire.encode_envelope(wire.Hello(wire.PROTOCOL_VERSION)))

    # --- for the owner ---------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the stream has ended."""
        return self._end is not None

    async def ready(self) -> None:
        """Wait for the peer's ``Hello``; raises the reason when the stream ends before."""
        await asyncio.shield(self._ready)

    async def wait_closed(self) -> None:
        """Wait until the stream has ended."""
        await self._ended.wait()

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once when the stream ends (soon, if it has)."""
        if self._end is not None:
            self._loop.call_soon(callback)
        else:
            self._on_close.append(callback)

    async def ask(self, method: Method, endpoint: str, token: bytes | None, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401
        """Call over the stream and wait for the result."""
        refuse_to_wait_on_main_thread(f"{method.name} of {endpoint}")
        self._check_open()
        payload = method.encode_arguments(arguments)
        self._next_id += 1
        call_id = self._next_id
        data = wire.encode_envelope(wire.Call(call_id, endpoint, method.name, token, payload))
        future: asyncio.Future[bytes] = self._loop.create_future()
        waiting = self._window.submit(len(payload), lambda: self._enqueue(data))
        self._pending[call_id] = future
        try:
            async with asyncio.timeout(method.rules.timeout):
                return method.decode_result(await future)
        except TimeoutError as error:
            raise RpcTimeout(
                f"{method.name} of {endpoint} at {self.peer} gave no answer in {method.rules.timeout} s"
            ) from error
        finally:
            del self._pending[call_id]
            if not waiting.sent:
                self._window.abandon(waiting)
            elif self._end is None:
                if future.cancelled():
                    self._enqueue(wire.encode_envelope(wire.Cancel(call_id)))
                self._window.release(1, len(payload))

    async def tell(self, method: Method, endpoint: str, token: bytes | None, arguments: tuple[Any, ...]) -> None:
        """Send a one-way call; returns when it is queued for sending, waits for room before that."""
        self._check_open()
        payload = method.encode_arguments(arguments)
        data = wire.encode_envelope(wire.Tell(endpoint, method.name, token, payload))
        queued: asyncio.Future[None] = self._loop.create_future()

        def send() -> None:
            self._enqueue(data)
            if not queued.done():
                queued.set_result(None)

        waiting = self._window.submit(len(payload), send)
        if waiting.sent:
            return
        refuse_to_wait_on_main_thread(f"room for {method.name} of {endpoint}")
        self._next_id += 1
        number = self._next_id
        self._pending[number] = queued  # type: ignore[assignment]  # fails with the others when the stream ends
        try:
            async with asyncio.timeout(method.rules.timeout):
                await queued
        except TimeoutError as error:
            raise RpcTimeout(f"no room for {method.name} of {endpoint} in {method.rules.timeout} s") from error
        finally:
            del self._pending[number]
            self._window.abandon(waiting)

    async def close(self, reason: str) -> None:
        """Say goodbye, send what waits (for a bounded time), and end. Pending asks fail."""
        if self._end is None and not self._closing:
            self._enqueue(wire.encode_envelope(wire.Goodbye(reason[: wire.MAX_NAME_CHARS])))
            self._closing = True
            self._wake.set()
            await asyncio.wait({self._writer}, timeout=self._patience.goodbye)
        self.end(PeerUnreachable(f"the connection to {self.peer} was closed here: {reason}"))
        await self._stream.gone()

    def end(self, reason: RpcError) -> None:
        """The stream is over: fail what waits, tell who asked to be told. Idempotent."""
        if self._end is not None:
            return
        self._end = reason
        _log.info("rpc stream %s - %s ended: %s", self._local, self.peer, reason.what)
        self._watch.cancel()
        if self._writer is not asyncio.current_task():
            self._writer.cancel()
        self._stream.abort()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(PeerUnreachable(reason.what, reason.remedy))
        self._incoming.clear()
        self._outbox.clear()
        if not self._ready.done():
            self._ready.set_exception(reason)
            self._ready.exception()  # looked at: not everyone waits for it
        self._ended.set()
        for callback in self._on_close:
            self._loop.call_soon(callback)
        self._on_close.clear()

    # --- for the transport -------------------------------------------------------------------------

    def message_received(self, data: bytes) -> None:
        """One gRPC message arrived. Whatever is wrong with it ends this stream and no other."""
        self._last_heard = self._loop.time()
        self._asked_for_life = False
        try:
            for each in wire.decode_batch(data):
                if self._end is not None:
                    return
                self._handle(each)
        except ProtocolViolation as violation:
            _log.warning("rpc peer %s broke the protocol: %s", self.peer, violation.what)
            self.end(ProtocolViolation(f"{self.peer} broke the protocol: {violation.what}"))

    def stream_ended(self, reason: str) -> None:
        """The transport is gone, or the peer ended its direction."""
        self.end(PeerUnreachable(f"the connection to {self.peer} ended: {reason}"))

    # --- receiving -----------------------------------------------------------------------------------

    def _handle(self, each: wire.Envelope) -> None:  # noqa: C901, PLR0912  # one flat table of envelope kinds
        if not self._ready.done():
            self._greet(each)
            return
        match each:
            case wire.Reply():
                future = self._pending.get(each.id)
                if future is not None and not future.done():
                    future.set_result(each.result)
            case wire.Failure():
                future = self._pending.get(each.id)
                if future is not None and not future.done():
                    text = ErrorText(each.error, each.what, each.remedy, each.remote_traceback)
                    future.set_exception(rebuild(text))
            case wire.Call():
                if each.id in self._incoming:
                    raise ProtocolViolation("the same call twice")
                answer = self._incoming[each.id] = _RemoteAnswer(self, each.id, len(each.arguments))
                self._take(each, answer)
            case wire.Tell():
                self._take(each, _TellAnswer(self, len(each.arguments)))
            case wire.Cancel():
                cancelled = self._incoming.get(each.id)
                if cancelled is not None:
                    cancelled.abandon()
            case wire.Consumed():
                try:
                    self._window.release(each.tells, each.size)
                except RpcError as error:
                    raise ProtocolViolation(error.what) from error
            case wire.Ping():
                self._enqueue(wire.encode_envelope(wire.Pong()))
            case wire.Pong():
                pass
            case wire.Goodbye():
                self.end(PeerUnreachable(f"{self.peer} closed the connection: {each.reason!r}"))
            case wire.Hello():
                raise ProtocolViolation("a second hello")

    def _greet(self, each: wire.Envelope) -> None:
        if not isinstance(each, wire.Hello):
            raise ProtocolViolation("it did not say hello first")
        if each.version != wire.PROTOCOL_VERSION:
            raise ProtocolViolation(f"it speaks version {each.version}, this is {wire.PROTOCOL_VERSION}")
        self._ready.set_result(None)
        self._watch.cancel()
        self._watch = self._loop.call_later(self._patience.ping_interval, self._check_silence)

    def _take(self, call: wire.Call | wire.Tell, answer: _RemoteAnswer | _TellAnswer) -> None:
        if not has_room(self._incoming_calls, self._incoming_bytes):
            raise ProtocolViolation("more calls under way than agreed")
        self._incoming_calls += 1
        self._incoming_bytes += len(call.arguments)
        try:
            request = Request(call.endpoint, call.method, call.token, call.arguments)
            answer.invocation = self._deliver(self.caller, request, answer)
        except RpcError as error:
            _log.warning("refused a call of %s: %s", self.peer, error.what)
            answer.fail(error)

    # --- sending -------------------------------------------------------------------------------------

    def answered(self, call_id: int, size: int, data: bytes | None) -> None:
        """An incoming ask is done; ``data`` is its encoded answer, None when nobody waits for one."""
        if self._incoming.pop(call_id, None) is None:
            return
        self._incoming_calls -= 1
        self._incoming_bytes -= size
        if data is not None:
            self._enqueue(data)

    def consumed(self, size: int) -> None:
        """An incoming tell is done."""
        self._incoming_calls -= 1
        self._incoming_bytes -= size
        self._consumed_tells += 1
        self._consumed_bytes += size
        self._wake.set()

    def _check_open(self) -> None:
        if self._end is not None or self._closing:
            reason = self._end or PeerUnreachable(f"the connection to {self.peer} is being closed")
            raise PeerUnreachable(reason.what, reason.remedy)

    def _enqueue(self, data: bytes) -> None:
        if self._end is not None or self._closing:
            return
        self._outbox.append(data)
        self._outbox_bytes += len(data)
        self._wake.set()
        if self._outbox_bytes > MAX_UNSENT_BYTES:
            self.end(PeerUnreachable(f"{self.peer} does not read: {self._outbox_bytes} bytes wait to be sent to it"))

    def _next_batch(self) -> bytes:
        """Whatever waits, up to the bounds of one message: under load many envelopes share one."""
        batch: list[bytes] = []
        size = 0
        if self._consumed_tells:
            batch.append(wire.encode_envelope(wire.Consumed(self._consumed_tells, self._consumed_bytes)))
            self._consumed_tells = self._consumed_bytes = 0
        while self._outbox and len(batch) < wire.MAX_BATCH_ENVELOPES:
            if size and size + len(self._outbox[0]) > wire.BATCH_TARGET_BYTES:
                break
            batch.append(self._outbox.popleft())
            size += len(batch[-1])
        self._outbox_bytes -= size
        return wire.join_batch(batch)

    async def _write(self) -> None:
        try:
            while not self._closing or self._outbox:
                await self._wake.wait()
                self._wake.clear()
                while self._outbox or self._consumed_tells:
                    await self._stream.send(self._next_batch())
            await self._stream.finish()
        except Exception as error:  # noqa: BLE001  # foreign errors of the transport end here, as the reason
            self.end(PeerUnreachable(f"cannot send to {self.peer}: {error or type(error).__name__}"))

    # --- life ----------------------------------------------------------------------------------------

    def _check_hello(self) -> None:
        self.end(PeerUnreachable(f"{self.peer} did not say hello within {self._patience.hello} s"))

    def _check_silence(self) -> None:
        silence = self._loop.time() - self._last_heard
        # Only an unanswered question counts: after a stall of this process the answers are yet to be read.
        if silence >= self._patience.ping_timeout and self._asked_for_life:
            self.end(PeerUnreachable(f"{self.peer} gave no sign of life for {self._patience.ping_timeout} s"))
            return
        if silence >= self._patience.ping_interval:
            self._asked_for_life = True
            self._enqueue(wire.encode_envelope(wire.Ping()))
        self._watch = self._loop.call_later(self._patience.ping_interval, self._check_silence)


class _RemoteAnswer:
    """Sends the outcome of one incoming ask, unless the caller has given up."""

    __slots__ = ("_exchange", "_id", "_size", "invocation")

    def __init__(self, exchange: Exchange, call_id: int, size: int) -> None:
        self._exchange = exchange
        self._id = call_id
        self._size = size
        self.invocation: Invocation | None = None

    def succeed(self, result: Any) -> None:  # noqa: ANN401  # any declared type
        invocation = self.invocation
        if invocation is None or self._exchange.closed:
            return
        try:
            data = wire.encode_envelope(wire.Reply(self._id, invocation.method.encode_result(result)))
        except Exception as error:  # noqa: BLE001  # a result that cannot be sent is a failure of the call
            self.fail(error)
        else:
            self._exchange.answered(self._id, self._size, data)

    def fail(self, error: BaseException) -> None:
        text = describe(error)
        failure = wire.Failure(self._id, text.error, text.what, text.remedy, text.remote_traceback)
        self._exchange.answered(self._id, self._size, wire.encode_envelope(failure))

    def abandon(self) -> None:
        """The caller has given up."""
        if self.invocation is not None:
            self.invocation.cancel()
        self._exchange.answered(self._id, self._size, None)


class _TellAnswer:
    """Makes room for further tells."""

    __slots__ = ("_exchange", "_size", "invocation")

    def __init__(self, exchange: Exchange, size: int) -> None:
        self._exchange = exchange
        self._size = size
        self.invocation: Invocation | None = None

    def succeed(self, result: Any) -> None:  # noqa: ANN401, ARG002  # nothing goes back
        self._exchange.consumed(self._size)

    def fail(self, error: BaseException) -> None:  # noqa: ARG002  # logged where it was raised
        self._exchange.consumed(self._size)
