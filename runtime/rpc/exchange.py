"""Asks and tells in both directions with one peer, with bounds in both directions.

There are no sockets here: an :class:`Exchange` uses a ``RpcConnection``. Reading never pauses, so answers always get
through. Instead, ``transport.window`` bounds a peer's calls in flight, and the connection to a peer that does not read
is closed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from sluice.pki import SpiffeId
from sluice.runtime.rpc import envelope as wire
from sluice.runtime.rpc.answers import RemoteAnswer, TellAnswer
from sluice.runtime.rpc.call import Caller, Deliver
from sluice.runtime.rpc.contract import Method
from sluice.runtime.rpc.dead_letters import DeadLetters
from sluice.runtime.rpc.deadlines import Deadlines, Expired
from sluice.runtime.rpc.errors import ErrorText, PeerUnreachable, ProtocolViolation, RpcError, RpcTimeout, rebuild
from sluice.runtime.rpc.mailbox import refuse_to_wait_on_main_thread
from sluice.runtime.rpc.proxy import make_proxy
from sluice.runtime.rpc.transport import MessageStream, RpcConnection, SendWindow, StreamTimeouts, has_room

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")


class Exchange:
    """The calls in both directions of one connection; for endpoints, it is a
    :class:`~sluice.runtime.rpc.call.RemotePeer`.

    Create it inside a running event loop.
    """

    def __init__(
        self,
        local: SpiffeId,
        identity: SpiffeId,
        stream: MessageStream,
        deliver: Deliver,
        timeouts: StreamTimeouts,
        *,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        self._identity = identity
        self._dead_letters = dead_letters or DeadLetters()
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._caller = Caller(identity, self)
        # Outgoing calls.
        self._next_id = 0
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._window = SendWindow()
        self._deadlines = Deadlines()
        # Incoming calls.
        self._incoming: dict[int, RemoteAnswer] = {}
        self._incoming_calls = 0
        self._incoming_bytes = 0
        self._highest_id = -1
        self._consumed_tells = 0
        self._consumed_bytes = 0
        self._on_close: list[Callable[[], object]] = []
        self._handlers: dict[type[wire.Envelope], Callable[[Any], None]] = {
            wire.Reply: self._replied,
            wire.Call: self._called,
            wire.Tell: self._told,
            wire.Failure: self._failed,
            wire.Cancel: self._cancelled,
            wire.Consumed: self._has_consumed,
            wire.Goodbye: self._left,
        }
        self.connection = RpcConnection(local, identity, stream, self, timeouts)

    def __repr__(self) -> str:
        return f"<Exchange with {self.identity}{' closed' if self.closed else ''}>"

    # --- for the owner ---------------------------------------------------------------------------

    @property
    def identity(self) -> SpiffeId:
        """The identity in the peer's certificate."""
        return self._identity

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        return self.connection.closed

    def gateway(self, protocol: Callable[..., _T], endpoint: str, *, token: bytes | None = None) -> _T:
        """Return a proxy of ``endpoint`` at the peer, whose calls carry the fencing ``token``.

        Asks raise what the method raised (see ``remotable``), ``RpcTimeout``, ``PeerUnreachable`` or another
        ``RpcError``. Calls over one stream are delivered in the order in which they were made.
        """
        return make_proxy(protocol, self, endpoint, token)

    async def wait_closed(self) -> None:
        """Wait until the connection has ended."""
        await self.connection.wait_closed()

    async def ready(self) -> None:
        """Wait for the peer's ``Hello``; raises the reason if the connection ends before it."""
        await asyncio.shield(self.connection.ready)

    def on_close(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` once when the connection ends, or soon if it has ended already.

        The callback should use ``endpoint.post``; endpoints should rather use ``endpoint.watch``.
        """
        if self.connection.closed:
            self._loop.call_soon(callback)
        else:
            self._on_close.append(callback)

    async def ask(self, method: Method, endpoint: str, token: bytes | None, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401
        """Call over the connection and wait for the result."""
        refuse_to_wait_on_main_thread(method.name, endpoint)
        connection = self.connection
        if not connection.accepts:
            self._refuse()
        payload = method.encode_arguments(arguments)
        size = len(payload)
        self._next_id = call_id = self._next_id + 1
        data = wire.encode_envelope(wire.Call(call_id, endpoint, method.name, token, payload))
        future: asyncio.Future[bytes] = self._loop.create_future()
        waiting = None
        if self._window.take(size):
            connection.send(data)
        else:
            waiting = self._window.submit(size, lambda: connection.send(data))
        self._pending[call_id] = future
        timeout = method.rules.timeout
        self._deadlines.watch(future, timeout)
        given_up = True
        try:
            answer = await future
            given_up = False
        except (asyncio.CancelledError, Expired) as reason:
            if isinstance(reason, Expired):
                raise RpcTimeout(
                    f"{method.name} of {endpoint} at {self._identity} gave no answer in {timeout} s"
                ) from None
            raise
        except BaseException:
            given_up = False
            raise
        finally:
            del self._pending[call_id]
            self._deadlines.forget(future, timeout)
            if waiting is not None and not waiting.sent:
                self._window.abandon(waiting)
            elif not connection.closed:
                if given_up:
                    connection.send(wire.encode_envelope(wire.Cancel(call_id)))
                self._window.release(1, size)
        return method.decode_result(answer)

    async def tell(self, method: Method, endpoint: str, token: bytes | None, arguments: tuple[Any, ...]) -> None:
        """Send a one-way call; wait for room, and return when the call is queued for sending."""
        if not self.connection.accepts:
            self._refuse()
        payload = method.encode_arguments(arguments)
        data = wire.encode_envelope(wire.Tell(endpoint, method.name, token, payload))
        if self._window.take(len(payload)):
            self.connection.send(data)
            return
        refuse_to_wait_on_main_thread(f"room for {method.name}", endpoint)
        queued: asyncio.Future[Any] = self._loop.create_future()

        def send() -> None:
            self.connection.send(data)
            if not queued.done():
                queued.set_result(None)

        waiting = self._window.submit(len(payload), send)
        self._next_id += 1
        number = self._next_id
        self._pending[number] = queued  # fails with the others when the connection ends
        self._deadlines.watch(queued, method.rules.timeout)
        try:
            await queued
        except Expired:
            raise RpcTimeout(f"no room for {method.name} of {endpoint} in {method.rules.timeout} s") from None
        finally:
            del self._pending[number]
            self._deadlines.forget(queued, method.rules.timeout)
            self._window.abandon(waiting)

    async def close(self, reason: str = "no longer needed") -> None:
        """Say goodbye, send what waits (for a bounded time), then end. Pending asks raise ``PeerUnreachable``."""
        await self.connection.close(reason)

    # --- for the connection ------------------------------------------------------------------------------

    def handle(self, envelope: wire.Envelope) -> None:
        """Handle an envelope of the peer."""
        self._handlers[type(envelope)](envelope)

    def before_batch(self) -> None:
        """Report all tells consumed so far in one envelope."""
        if self._consumed_tells:
            self.connection.send(wire.encode_envelope(wire.Consumed(self._consumed_tells, self._consumed_bytes)))
            self._consumed_tells = self._consumed_bytes = 0

    def connection_ended(self, reason: RpcError) -> None:
        """Fail pending calls and run the callbacks."""
        self._deadlines.close()
        for future in self._pending.values():
            if not future.done():
                future.set_exception(PeerUnreachable(reason.what, reason.remedy))
        self._incoming.clear()
        for callback in self._on_close:
            self._loop.call_soon(callback)
        self._on_close.clear()

    # --- receiving ---------------------------------------------------------------------------------

    def _replied(self, reply: wire.Reply) -> None:
        future = self._pending.get(reply.id)
        if future is not None and not future.done():
            future.set_result(reply.result)

    def _failed(self, failure: wire.Failure) -> None:
        future = self._pending.get(failure.id)
        if future is not None and not future.done():
            text = ErrorText(failure.error, failure.what, failure.remedy, failure.remote_traceback)
            future.set_exception(rebuild(text))

    def _called(self, call: wire.Call) -> None:
        # Ids increase on a stream, so a correct peer never repeats one.
        if call.id <= self._highest_id:
            raise ProtocolViolation("a call id that was used before")
        self._highest_id = call.id
        size = len(call.arguments)
        self._make_room(size)
        answer = self._incoming[call.id] = RemoteAnswer(self, call.id, size)
        try:
            answer.invocation = self._deliver(self._caller, call, answer)
        except RpcError as error:
            _LOG.warning("refused a call of %s: %s", self._identity, error.what)
            answer.fail(error)

    def _told(self, tell: wire.Tell) -> None:
        size = len(tell.arguments)
        self._make_room(size)
        answer = TellAnswer(self, size)
        try:
            self._deliver(self._caller, tell, answer)
        except RpcError as error:
            self._dead_letters.add(tell.endpoint, tell.method, str(self._identity), type(error).__name__)
            answer.fail(error)

    def _make_room(self, size: int) -> None:
        if not has_room(self._incoming_calls, self._incoming_bytes):
            raise ProtocolViolation("more calls in flight than allowed")
        self._incoming_calls += 1
        self._incoming_bytes += size

    def _cancelled(self, cancel: wire.Cancel) -> None:
        answer = self._incoming.get(cancel.id)
        if answer is not None:
            answer.abandon()

    def _has_consumed(self, consumed: wire.Consumed) -> None:
        try:
            self._window.release(consumed.tells, consumed.size)
        except RpcError as error:
            raise ProtocolViolation(error.what) from error

    def _left(self, goodbye: wire.Goodbye) -> None:
        self.connection.end(PeerUnreachable(f"{self._identity} closed the connection: {goodbye.reason!r}"))

    # --- answering ---------------------------------------------------------------------------------

    def answered(self, call_id: int, size: int, data: bytes | None) -> None:
        """An incoming ask is done. ``data`` is its encoded answer, or None when the caller has given up."""
        if self._incoming.pop(call_id, None) is None:
            return
        self._incoming_calls -= 1
        self._incoming_bytes -= size
        if data is not None:
            self.connection.send(data)

    def consumed(self, size: int) -> None:
        """An incoming tell is done."""
        self._incoming_calls -= 1
        self._incoming_bytes -= size
        self._consumed_tells += 1
        self._consumed_bytes += size
        self.connection.schedule_batch()

    def _refuse(self) -> None:
        reason = self.connection.end_reason or PeerUnreachable(f"the connection to {self._identity} is being closed")
        raise PeerUnreachable(reason.what, reason.remedy)
