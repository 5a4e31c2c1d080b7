"""Requests, one-way messages and callbacks over one real mutual TLS stream."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.connections import ConnectionLog
from sluice.runtime.rpc import (
    CallNotPermitted,
    EndpointNotFound,
    EndpointStopped,
    FencingTokenMismatch,
    InvalidArguments,
    MessageTooLarge,
    MethodNotFound,
    PeerUnreachable,
    RemoteFailure,
    RpcTimeout,
    rpc,
)
from sluice.runtime.rpc.envelope import MAX_ENVELOPE_BYTES
from sluice.runtime.rpc.exchange import Exchange
from sluice.runtime.rpc.transport.grpc_stream import READ_BUFFER_BYTES, GrpcStream
from sluice.runtime.rpc.transport.window import MAX_OPEN_CALLS
from tests.hostile import TRUST_DOMAIN
from tests.integration.rpc.world import (
    JOB,
    OTHER_JOB,
    Callback,
    EchoGateway,
    FencedEcho,
    Pair,
    Sample,
    SlotBusy,
    World,
    jobmanager,
    taskmanager,
)
from tests.waiting import until


async def test_an_ask_returns_the_declared_type(pair: Pair) -> None:
    sample = Sample("a", (1, 2, 3))
    assert await pair.gateway.echo(sample) == sample
    assert await pair.gateway.add(40, right=2) == 42
    assert await pair.gateway.add(41) == 42


async def test_the_caller_is_identified_by_its_certificate(pair: Pair) -> None:
    assert await pair.gateway.who_am_i() == f"spiffe://{TRUST_DOMAIN}/taskmanager/tm-1"
    assert pair.peer.identity == jobmanager()
    assert [peer.identity for peer in pair.server.peers()] == [taskmanager()]


async def test_tells_and_asks_of_one_pair_stay_in_order(pair: Pair) -> None:
    for number in range(0, 100, 2):
        await pair.gateway.note(number)
        await pair.gateway.record(number + 1)
    assert await pair.gateway.notes() == tuple(range(100))


async def test_a_thousand_concurrent_asks_stay_in_order(pair: Pair) -> None:
    answers = await asyncio.gather(*(pair.gateway.record(number) for number in range(1000)))
    assert answers == list(range(1000))
    assert pair.echo.seen == list(range(1000))


async def test_calls_beyond_the_window_wait_their_turn_and_stay_in_order(pair: Pair) -> None:
    count = 3 * MAX_OPEN_CALLS
    both = [
        *(pair.gateway.record(number) if number % 2 else pair.gateway.note(number) for number in range(count)),
    ]
    await asyncio.gather(*both)
    await pair.gateway.record(count)
    assert pair.echo.seen == list(range(count + 1))


async def test_the_server_calls_the_client_back_over_the_clients_stream(pair: Pair) -> None:
    await pair.client.start(Callback())
    assert await asyncio.gather(*(pair.gateway.call_me_back(number) for number in range(50))) == [
        2 * number for number in range(50)
    ]


async def test_a_typed_error_arrives_with_its_type_and_the_remote_traceback(pair: Pair) -> None:
    with pytest.raises(SlotBusy, match=r"slot 3 is busy \(ask for another\)") as caught:
        await pair.gateway.fail_typed()
    assert caught.value.remedy == "ask for another"
    trace: str = caught.value.remote_traceback  # type: ignore[attr-defined]  # set on whatever arrives
    assert "in fail_typed" in trace
    assert any("in fail_typed" in note for note in caught.value.__notes__)


async def test_an_untyped_error_arrives_as_a_remote_failure_that_names_its_type(pair: Pair) -> None:
    with pytest.raises(RemoteFailure, match="KeyError: 'nothing of that name'") as caught:
        await pair.gateway.fail_untyped()
    assert "in fail_untyped" in caught.value.remote_traceback


async def test_an_error_of_a_third_party_is_not_mistaken_for_the_peers_own(pair: Pair) -> None:
    """A missing endpoint at the TaskManager must not look like one missing at the JobManager."""
    with pytest.raises(RemoteFailure, match="EndpointNotFound"):
        await pair.gateway.call_me_back(1)


async def test_a_timeout_fails_the_ask_and_cancels_the_remote_call(pair: Pair) -> None:
    with pytest.raises(RpcTimeout, match=r"hang_briefly of echo .* 0\.2 s"):
        await pair.gateway.hang_briefly()
    await until(pair.echo.hang_cancelled.is_set)
    assert await pair.gateway.add(1) == 2


async def test_cancelling_an_ask_cancels_its_deferred_remote_call(pair: Pair) -> None:
    asking = asyncio.create_task(pair.gateway.hang())
    await until(pair.echo.hanging.is_set)
    asking.cancel()
    await until(pair.echo.hang_cancelled.is_set)
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_stopping_an_endpoint_fails_its_deferred_calls(pair: Pair) -> None:
    asking = asyncio.create_task(pair.gateway.hang())
    await until(pair.echo.hanging.is_set)
    await pair.server.stop(pair.echo)
    with pytest.raises(EndpointStopped):
        await asking
    with pytest.raises(EndpointNotFound):
        await pair.gateway.add(1)


async def test_large_values_pass_up_to_the_limit(pair: Pair) -> None:
    data = bytes(MAX_ENVELOPE_BYTES - 200)
    assert await pair.gateway.blob(data) == data
    many = [bytes([number]) * 200_000 for number in range(40)]
    assert await asyncio.gather(*(pair.gateway.blob(each) for each in many)) == many


async def test_an_oversize_argument_is_refused_before_it_is_sent(pair: Pair) -> None:
    with pytest.raises(MessageTooLarge):
        await pair.gateway.blob(bytes(MAX_ENVELOPE_BYTES + 1))
    assert await pair.gateway.add(1) == 2


async def test_an_oversize_result_is_a_failure_of_that_call_only(pair: Pair) -> None:
    # The argument fits, the reply does not say the endpoint's and method's name and yet repeats more.
    class Doubling(FencedEcho):
        async def blob(self, data: bytes) -> bytes:
            return data + data

    doubling = Doubling("doubling")
    doubling.fencing_token = b"t"
    await pair.server.start(doubling)
    with pytest.raises(RemoteFailure, match="MessageTooLarge"):
        await pair.peer.gateway(EchoGateway, "doubling", token=b"t").blob(bytes(3 << 20))
    assert await pair.gateway.add(1) == 2


class StrangerGateway(EchoGateway):
    """A gateway interface with calls that a peer of another version might send."""

    @rpc(allow={Role.TASKMANAGER})
    async def add(self, left: str, right: int = 1) -> int: ...  # type: ignore[override,empty-body]  # wrong on purpose

    @rpc(allow={Role.TASKMANAGER})
    async def not_declared(self) -> None: ...

    @rpc(allow={Role.TASKMANAGER})
    async def on_stop(self) -> None: ...


async def test_unknown_endpoints_methods_and_types_are_refused(pair: Pair) -> None:
    stranger = pair.peer.gateway(StrangerGateway, "echo")
    with pytest.raises(EndpointNotFound, match="'nobody'"):
        await pair.peer.gateway(EchoGateway, "nobody").add(1)
    with pytest.raises(MethodNotFound, match="'not_declared'"):
        await stranger.not_declared()
    with pytest.raises(MethodNotFound, match="'on_stop'"):
        await stranger.on_stop()
    with pytest.raises(InvalidArguments) as caught:
        await stranger.add("a-secret-value")
    assert "a-secret-value" not in str(caught.value) + caught.value.remote_traceback
    assert await pair.gateway.add(1) == 2


async def test_a_role_that_a_method_does_not_allow_is_refused(pair: Pair) -> None:
    with pytest.raises(CallNotPermitted, match="taskmanager/tm-1 may not call with_jobmanager_api"):
        await pair.gateway.with_jobmanager_api()
    with pytest.raises(CallNotPermitted):
        await pair.gateway.for_own_driver()


async def test_a_driver_reaches_its_own_job_and_no_other(pair: Pair) -> None:
    own = await pair.world.service(SpiffeId.driver(TRUST_DOMAIN, JOB)).connect(*pair.address)
    other = await pair.world.service(SpiffeId.driver(TRUST_DOMAIN, OTHER_JOB)).connect(*pair.address)
    assert await own.gateway(EchoGateway, "echo").for_own_driver() == f"spiffe://{TRUST_DOMAIN}/job/{JOB}/driver"
    with pytest.raises(CallNotPermitted, match="another job"):
        await other.gateway(EchoGateway, "echo").for_own_driver()
    with pytest.raises(CallNotPermitted):
        await own.gateway(EchoGateway, "echo").add(1)


async def test_a_call_with_a_wrong_or_missing_fencing_token_is_refused(pair: Pair) -> None:
    fenced = FencedEcho("fenced")
    await pair.server.start(fenced)
    stale = pair.peer.gateway(EchoGateway, "fenced", token=b"old")
    with pytest.raises(FencingTokenMismatch, match="not the leader"):
        await stale.add(1)
    fenced.fencing_token = b"new"
    with pytest.raises(FencingTokenMismatch, match="another leader"):
        await stale.add(1)
    with pytest.raises(FencingTokenMismatch, match="got none"):
        await pair.peer.gateway(EchoGateway, "fenced").add(1)
    assert await pair.peer.gateway(EchoGateway, "fenced", token=b"new").add(1) == 2
    fenced.fencing_token = b"newer"
    with pytest.raises(FencingTokenMismatch):
        await pair.peer.gateway(EchoGateway, "fenced", token=b"new").add(1)


async def test_the_same_process_may_connect_twice(pair: Pair) -> None:
    second = await pair.client.connect(*pair.address)
    assert len(pair.server.peers()) == 2
    await pair.peer.close()
    assert await second.gateway(EchoGateway, "echo").add(1) == 2
    await until(lambda: len(pair.server.peers()) == 1)


async def test_both_ends_record_the_connection(world: World) -> None:
    dialed, accepted = ConnectionLog(), ConnectionLog()
    server = world.service(jobmanager(), connections=accepted)
    client = world.service(taskmanager(), connections=dialed)
    await client.connect(*await server.listen("127.0.0.1", 0))
    await until(lambda: len(accepted.snapshot()) == 1)
    for log, direction in ((dialed, "dialed"), (accepted, "accepted")):
        (connection,) = log.snapshot()
        assert (connection.channel, connection.direction, connection.protocol) == ("rpc", direction, "TLSv1.3")


async def test_closing_fails_pending_asks_and_notifies_both_sides(pair: Pair) -> None:
    closed: list[str] = []
    pair.peer.on_close(lambda: closed.append("client"))
    (at_server,) = pair.server.peers()
    at_server.on_close(lambda: closed.append("server"))
    asking = asyncio.create_task(pair.gateway.hang())
    await until(pair.echo.hanging.is_set)
    await pair.client.close()
    with pytest.raises(PeerUnreachable):
        await asking
    await at_server.wait_closed()
    await until(lambda: sorted(closed) == ["client", "server"])
    assert pair.peer.closed
    assert pair.server.peers() == ()
    with pytest.raises(PeerUnreachable):
        await pair.gateway.add(1)
    with pytest.raises(PeerUnreachable):
        await pair.gateway.note(1)
    late: list[str] = []
    pair.peer.on_close(lambda: late.append("late"))
    await until(lambda: late == ["late"])


async def test_a_server_shutdown_fails_pending_asks_and_closes_the_clients_stream(pair: Pair) -> None:
    asking = asyncio.create_task(pair.peer.gateway(EchoGateway, "echo").hang())
    await until(pair.echo.hanging.is_set)
    await pair.server.close()
    with pytest.raises((PeerUnreachable, EndpointStopped)):
        await asking
    await pair.peer.wait_closed()


async def test_an_idle_connection_keeps_small_buffers(pair: Pair) -> None:
    """Uses private names of asyncio, so that a Python that renames them is noticed."""
    for peer in (pair.peer, *pair.server.peers()):
        assert isinstance(peer, Exchange)
        stream = peer.connection._stream
        assert isinstance(stream, GrpcStream)
        protocol: Any = getattr(stream._transport, "_ssl_protocol")  # noqa: B009  # unknown to mypy
        assert len(protocol._ssl_buffer) == protocol.max_size == READ_BUFFER_BYTES
    assert await pair.gateway.blob(bytes(1 << 20)) == bytes(1 << 20)
