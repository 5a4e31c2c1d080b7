"""An exchange over one stream, without sockets: batching, slow readers, silence, and how streams end."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import pytest

from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.rpc import (
    MailboxFull,
    PeerUnreachable,
    ProtocolViolation,
    RpcTimeout,
    StreamTimeouts,
    envelope as wire,
    rpc,
)
from sluice.runtime.rpc.call import (
    Answer,
    Caller,
    Invocation,
    Request,
)
from sluice.runtime.rpc.contract import gateway_of
from sluice.runtime.rpc.exchange import Exchange
from sluice.runtime.rpc.proxy import make_proxy
from sluice.runtime.rpc.transport.connection import MAX_UNSENT_BYTES, RpcConnection
from sluice.runtime.rpc.transport.window import MAX_OPEN_CALLS
from tests.waiting import until

LOCAL = SpiffeId.process("sluice.local", Role.JOBMANAGER, "jm")
PEER = SpiffeId.process("sluice.local", Role.TASKMANAGER, "tm")
ENDLESS = StreamTimeouts(hello=3600, ping_interval=3600, ping_timeout=3600, goodbye=0.05)


class Things(Protocol):
    @rpc(allow={Role.JOBMANAGER})
    async def get(self, number: int) -> int: ...

    @rpc(allow={Role.JOBMANAGER}, timeout=0.05)
    async def get_soon(self, number: int) -> int: ...

    @rpc(allow={Role.JOBMANAGER}, oneway=True, timeout=0.05)
    async def note(self, data: bytes) -> None: ...


METHODS = gateway_of(Things).methods


class MemoryStream:
    """A fake transport whose peer is the test.

    It decodes and keeps what is sent, and can make the sender wait.
    """

    def __init__(self) -> None:
        self.messages: list[list[wire.Envelope]] = []
        self.receiver: RpcConnection
        self.writable = True
        self.finished = False
        self.aborted = False
        self.broken: Exception | None = None

    def attach(self, receiver: RpcConnection) -> None:
        self.receiver = receiver

    def open(self) -> None:
        self.writable = True
        self.receiver.resume_sending()

    def send(self, message: bytes) -> None:
        if self.broken is not None:
            raise self.broken
        self.messages.append(wire.decode_batch(message))

    def finish(self) -> None:
        self.finished = True

    def abort(self) -> None:
        self.aborted = True

    async def gone(self) -> None:
        """Return at once; there is nothing to wait for."""

    @property
    def sent(self) -> list[wire.Envelope]:
        return [each for message in self.messages for each in message]


class Served:
    """Stands for the service: it keeps calls and answers none by itself."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []

    def __call__(self, caller: Caller, request: Request, answer: Answer) -> Invocation:
        if request.method == "full":
            raise MailboxFull("no room")
        self.answers.append(answer)
        unused: Any = None  # the invocation's endpoint: these are never run
        return Invocation(unused, METHODS["get"], (), token=request.token, caller=caller, answer=answer)


class Fixture:
    """An exchange over a :class:`MemoryStream`."""

    def __init__(self, timeouts: StreamTimeouts = ENDLESS, *, greeted: bool = True) -> None:
        self.stream = MemoryStream()
        self.served = Served()
        self.exchange = Exchange(LOCAL, PEER, self.stream, self.served, timeouts)
        self.things = make_proxy(Things, self.exchange, "things", None)
        if greeted:
            self.receive(wire.Hello(wire.PROTOCOL_VERSION))

    def receive(self, *envelopes: wire.Envelope) -> None:
        self.stream.receiver.message_received(wire.join_batch([wire.encode_envelope(each) for each in envelopes]))

    def sent(self, kind: type[wire.Envelope]) -> list[Any]:
        return [each for each in self.stream.sent if isinstance(each, kind)]


async def test_hello_is_sent_first_and_waiting_calls_share_a_message() -> None:
    fixture = Fixture()
    asks = [asyncio.create_task(fixture.things.get(number)) for number in range(100)]
    await until(lambda: len(fixture.sent(wire.Call)) == 100)
    assert fixture.stream.sent[0] == wire.Hello(wire.PROTOCOL_VERSION)
    assert len(fixture.stream.messages) <= 3
    calls: list[wire.Call] = fixture.sent(wire.Call)
    assert [METHODS["get"].decode_arguments(call.arguments) for call in calls] == [(n,) for n in range(100)]
    fixture.receive(*(wire.Reply(call.id, call.arguments[1:]) for call in reversed(calls)))
    assert await asyncio.gather(*asks) == list(range(100))
    fixture.exchange.connection.end(PeerUnreachable("done"))


async def test_a_batch_stays_within_its_target_and_a_large_envelope_travels_alone() -> None:
    fixture = Fixture()
    fixture.stream.writable = False
    for _ in range(20):
        await fixture.things.note(bytes(wire.BATCH_TARGET_BYTES // 4))
    await fixture.things.note(bytes(2 * wire.BATCH_TARGET_BYTES))
    fixture.stream.open()
    await until(lambda: len(fixture.sent(wire.Tell)) == 21)
    sizes = [
        sum(len(each.arguments) for each in batch if isinstance(each, wire.Tell)) for batch in fixture.stream.messages
    ]
    assert all(size <= wire.BATCH_TARGET_BYTES for size in sizes[:-1])
    assert len(fixture.stream.messages[-1]) == 1
    fixture.exchange.connection.end(PeerUnreachable("done"))


async def test_tells_wait_for_window_space_until_the_peer_has_consumed_some() -> None:
    fixture = Fixture()
    for _ in range(MAX_OPEN_CALLS):
        await fixture.things.note(b"")
    with pytest.raises(RpcTimeout, match="no room for note"):
        await fixture.things.note(b"never sent")
    waiting = asyncio.create_task(fixture.things.note(b"sent later"))
    await until(lambda: len(fixture.sent(wire.Tell)) == MAX_OPEN_CALLS)
    fixture.receive(wire.Consumed(1, len(METHODS["note"].encode_arguments((b"",)))))
    await waiting
    await until(lambda: len(fixture.sent(wire.Tell)) == MAX_OPEN_CALLS + 1)
    assert b"sent later" in fixture.sent(wire.Tell)[-1].arguments
    fixture.exchange.connection.end(PeerUnreachable("done"))


async def test_received_tells_are_reported_as_consumed() -> None:
    fixture = Fixture()
    fixture.receive(*(wire.Tell("things", "note", None, b"12345") for _ in range(10)))
    fixture.receive(wire.Tell("things", "full", None, b"refused"))
    for answer in fixture.served.answers[:4]:
        answer.succeed(None)
    fixture.served.answers[4].fail(ValueError("too"))
    await until(lambda: fixture.sent(wire.Consumed) != [])
    assert sum(each.tells for each in fixture.sent(wire.Consumed)) == 6
    assert sum(each.size for each in fixture.sent(wire.Consumed)) == 5 * 5 + len(b"refused")
    fixture.exchange.connection.end(PeerUnreachable("done"))


async def test_a_timeout_sends_cancel_and_a_late_reply_is_ignored() -> None:
    fixture = Fixture()
    with pytest.raises(RpcTimeout):
        await fixture.things.get_soon(1)
    await until(lambda: fixture.sent(wire.Cancel) != [])
    (call,) = fixture.sent(wire.Call)
    assert fixture.sent(wire.Cancel) == [wire.Cancel(call.id)]
    fixture.receive(wire.Reply(call.id, b"\x01"))
    assert not fixture.exchange.closed
    fixture.exchange.connection.end(PeerUnreachable("done"))


async def test_an_ask_that_was_never_sent_sends_no_cancel() -> None:
    fixture = Fixture()
    asks = [asyncio.create_task(fixture.things.get(number)) for number in range(MAX_OPEN_CALLS)]
    await until(lambda: len(fixture.sent(wire.Call)) == MAX_OPEN_CALLS)
    with pytest.raises(RpcTimeout):
        await fixture.things.get_soon(1)
    fixture.receive(wire.Ping())
    await until(lambda: fixture.sent(wire.Pong) != [])
    assert fixture.sent(wire.Cancel) == []
    assert len(fixture.sent(wire.Call)) == MAX_OPEN_CALLS
    fixture.exchange.connection.end(PeerUnreachable("done"))
    results = await asyncio.gather(*asks, return_exceptions=True)
    assert {type(result) for result in results} == {PeerUnreachable}


async def test_a_cancelled_call_gets_no_reply_and_frees_its_window_space() -> None:
    fixture = Fixture()
    fixture.receive(wire.Call(1, "things", "get", None, b"\x91\x01"), wire.Cancel(1))
    (answer,) = fixture.served.answers
    answer.succeed(1)
    for number in range(2, MAX_OPEN_CALLS + 2):
        fixture.receive(wire.Call(number, "things", "get", None, b"\x91\x01"))
    assert not fixture.exchange.closed
    fixture.receive(wire.Ping())
    await until(lambda: fixture.sent(wire.Pong) != [])
    assert fixture.sent(wire.Reply) == []
    fixture.exchange.connection.end(PeerUnreachable("done"))


async def test_a_refused_call_is_answered_with_a_failure_at_once() -> None:
    fixture = Fixture()
    fixture.receive(wire.Call(5, "things", "full", None, b""))
    await until(lambda: fixture.sent(wire.Failure) != [])
    (failure,) = fixture.sent(wire.Failure)
    assert (failure.id, failure.error, failure.what) == (5, "sluice.runtime.rpc.errors.MailboxFull", "no room")
    fixture.exchange.connection.end(PeerUnreachable("done"))


async def test_a_result_that_cannot_be_encoded_is_answered_with_a_failure() -> None:
    fixture = Fixture()
    fixture.receive(wire.Call(5, "things", "get", None, b""))
    fixture.served.answers[0].succeed(object())
    await until(lambda: fixture.sent(wire.Failure) != [])
    fixture.exchange.connection.end(PeerUnreachable("done"))


async def test_a_stream_is_aborted_if_the_peer_does_not_read() -> None:
    fixture = Fixture()
    fixture.stream.writable = False
    answers = MAX_UNSENT_BYTES // (1 << 20) + 2
    fixture.receive(*(wire.Call(number, "things", "get", None, b"") for number in range(answers)))
    for answer in fixture.served.answers:
        answer.succeed(bytes(1 << 20))
    assert fixture.exchange.closed
    assert fixture.stream.aborted


async def test_a_silent_peer_is_pinged_and_then_given_up() -> None:
    fixture = Fixture(StreamTimeouts(hello=1, ping_interval=0.01, ping_timeout=0.05))
    await fixture.exchange.connection.wait_closed()
    assert fixture.sent(wire.Ping) != []
    with pytest.raises(PeerUnreachable, match="no sign of life"):
        await fixture.things.get(1)


async def test_a_peer_that_answers_pings_stays_connected() -> None:
    patience = 1.5  # a stall of this process between a ping and its answer counts
    fixture = Fixture(StreamTimeouts(hello=1, ping_interval=0.05, ping_timeout=patience))
    loop = asyncio.get_running_loop()
    began, answered = loop.time(), 0
    while loop.time() - began < 1.2 * patience:
        await until(lambda: len(fixture.sent(wire.Ping)) > answered)  # noqa: B023  # awaited within the turn
        answered = len(fixture.sent(wire.Ping))
        fixture.receive(wire.Pong())
    assert not fixture.exchange.closed
    fixture.exchange.connection.end(PeerUnreachable("done"))


async def test_a_peer_that_sends_no_hello_is_given_up() -> None:
    fixture = Fixture(StreamTimeouts(hello=0.02), greeted=False)
    with pytest.raises(PeerUnreachable, match="did not say hello"):
        await fixture.exchange.ready()


async def test_ready_waits_for_hello_and_can_be_awaited_again_after_a_cancellation() -> None:
    fixture = Fixture(greeted=False)
    first = asyncio.create_task(fixture.exchange.ready())
    await asyncio.sleep(0)
    first.cancel()
    fixture.receive(wire.Hello(wire.PROTOCOL_VERSION))
    await fixture.exchange.ready()
    fixture.exchange.connection.end(PeerUnreachable("done"))


@pytest.mark.parametrize("newest", [wire.OLDEST_VERSION, wire.PROTOCOL_VERSION, wire.PROTOCOL_VERSION + 7])
async def test_two_peers_use_the_lower_of_their_newest_versions(newest: int) -> None:
    fixture = Fixture(greeted=False)
    assert fixture.exchange.connection.version == 0
    fixture.receive(wire.Hello(newest))
    await fixture.exchange.ready()
    assert fixture.exchange.connection.version == min(newest, wire.PROTOCOL_VERSION)
    fixture.exchange.connection.end(PeerUnreachable("done"))


async def test_a_peer_with_only_unsupported_old_versions_is_refused() -> None:
    fixture = Fixture(greeted=False)
    fixture.receive(wire.Hello(wire.OLDEST_VERSION - 1))
    with pytest.raises(ProtocolViolation, match=r"supports RPC versions up to \d+") as caught:
        await fixture.exchange.ready()
    assert "JobManagers first" in caught.value.remedy


async def test_goodbye_ends_the_stream_with_its_reason() -> None:
    fixture = Fixture()
    asking = asyncio.create_task(fixture.things.get(1))
    await until(lambda: fixture.sent(wire.Call) != [])
    fixture.receive(wire.Goodbye("maintenance"), wire.Ping())
    with pytest.raises(PeerUnreachable, match="maintenance"):
        await asking


async def test_close_sends_waiting_messages_then_goodbye_then_finishes() -> None:
    fixture = Fixture()
    await fixture.things.note(b"last words")
    await fixture.exchange.close("enough")
    assert fixture.stream.finished
    assert [type(each) for each in fixture.stream.sent] == [wire.Hello, wire.Tell, wire.Goodbye]
    assert fixture.stream.sent[-1] == wire.Goodbye("enough")
    await fixture.exchange.close("again")


async def test_close_does_not_wait_for_a_peer_that_does_not_read() -> None:
    fixture = Fixture()
    fixture.stream.writable = False
    await fixture.exchange.close("enough")
    assert fixture.stream.aborted
    assert not fixture.stream.finished


async def test_a_transport_error_is_the_reason_of_failed_calls() -> None:
    fixture = Fixture()
    fixture.stream.broken = OSError("cable gone")
    with pytest.raises(PeerUnreachable, match="cable gone"):
        await fixture.things.get(1)


async def test_a_protocol_violation_ends_the_stream_and_later_messages_are_ignored() -> None:
    fixture = Fixture()
    fixture.receive(wire.Hello(wire.PROTOCOL_VERSION), wire.Call(1, "things", "get", None, b""))
    assert fixture.exchange.closed
    fixture.receive(wire.Call(2, "things", "get", None, b""))
    assert fixture.served.answers == []
    with pytest.raises(PeerUnreachable, match="second hello"):
        await fixture.things.get(1)
