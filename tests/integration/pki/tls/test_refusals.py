"""Which clients a listener refuses, and which listeners a client refuses.

The tests use real sockets and every hostile identity.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from sluice.core.errors import PeerRefused
from sluice.pki.channels import Channel, client_policy, server_policy
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import peer_of
from tests.hostile import (
    HOSTILE_CLIENTS,
    HOSTILE_SERVERS,
    TRUST_DOMAIN,
    Hostile,
    HostileIdentity,
    TestPki,
    answer_of,
    assert_refused,
)
from tests.integration.pki.conftest import DEADLINE_SECONDS, StartServer
from tests.waiting import until

JOB_ID = "0123456789abcdef" * 2
TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
JOBMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "jobmanager-1")


async def test_an_admitted_client_and_its_listener_know_each_others_identity(
    pki: TestPki, start_server: StartServer
) -> None:
    server = await start_server()
    context = pki.identity(TASKMANAGER).client_context(server_policy(Channel.RPC, TRUST_DOMAIN))
    reader, writer = await asyncio.open_connection(server.host, server.port, ssl=context)
    writer.write(b"ping")
    assert await reader.read(100) == b"ping"
    assert peer_of(writer) == JOBMANAGER
    (connection,) = server.connections.open()
    assert (connection.peer, connection.local) == (str(TASKMANAGER), str(JOBMANAGER))
    assert (connection.channel, connection.direction, connection.protocol) == ("rpc", "accepted", "TLSv1.3")
    assert connection.address == "{}:{}".format(*writer.get_extra_info("sockname"))
    writer.close()
    await writer.wait_closed()
    await until(lambda: not server.connections.open(), "the closed connection is still counted as open")
    assert server.connections.snapshot() == (connection,)


@pytest.mark.parametrize("case", HOSTILE_CLIENTS)
async def test_listener_refuses_hostile_client(case: Hostile, pki: TestPki, start_server: StartServer) -> None:
    server = await start_server()
    hostile = pki.hostile(case, pretending=TASKMANAGER)
    await assert_refused(server.host, server.port, hostile.client_context())
    await until(lambda: server.listener.refused == 1, "the refusal was not counted")
    assert server.protocol.admitted == 0, "the protocol must not meet a refused peer"
    assert server.connections.snapshot() == ()


async def test_listener_of_one_job_refuses_another_jobs_executor(pki: TestPki, start_server: StartServer) -> None:
    server = await start_server(channel=Channel.DATA, job_id=JOB_ID)
    executor = SpiffeId.executor(TRUST_DOMAIN, JOB_ID, 3)
    own = pki.hostile(Hostile.OTHER_JOB, pretending=executor)
    await assert_refused(server.host, server.port, own.client_context())
    assert server.protocol.admitted == 0
    same_job = pki.identity(executor).client_context(server_policy(Channel.RPC, TRUST_DOMAIN))
    assert await answer_of(server.host, server.port, same_job, hello=b"ping") == b"ping"


@pytest.mark.parametrize("role", [Role.GATEWAY, Role.AUTH, Role.CA, Role.ZOOKEEPER])
async def test_roles_without_business_on_rpc_are_refused(role: Role, pki: TestPki, start_server: StartServer) -> None:
    server = await start_server()
    context = pki.process(role).client_context(server_policy(Channel.RPC, TRUST_DOMAIN))
    await assert_refused(server.host, server.port, context)


async def test_a_user_certificate_is_refused_by_an_internal_listener(pki: TestPki, start_server: StartServer) -> None:
    """Users are certified by the edge authority, which no internal listener trusts."""
    server = await start_server()
    user = pki.identity(SpiffeId.process(TRUST_DOMAIN, Role.USER, "ada"))
    context = user.client_context(server_policy(Channel.RPC, TRUST_DOMAIN))
    context.verify_mode = ssl.CERT_NONE  # the user would refuse the listener; here the listener must refuse the user
    await assert_refused(server.host, server.port, context)


async def test_tls_1_2_is_refused(pki: TestPki, start_server: StartServer) -> None:
    server = await start_server()
    old = HostileIdentity(Hostile.WRONG_ROLE, pki.directory(TASKMANAGER))  # a good certificate, an old protocol
    await assert_refused(server.host, server.port, old.client_context(tls12=True))
    assert await answer_of(server.host, server.port, old.client_context(), hello=b"ping") == b"ping"


@pytest.mark.parametrize(
    "hello",
    [b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00" * 64],
    ids=["http", "h2c", "zeros"],
)
async def test_plaintext_is_refused(hello: bytes, start_server: StartServer) -> None:
    """An answer of TLS's own (an alert record) is all that may come back."""
    server = await start_server()
    answer = await answer_of(server.host, server.port, None, hello=hello)
    assert answer == b"" or answer[0] == 21
    await until(lambda: server.listener.refused == 1, "the refusal was not counted")
    assert server.protocol.admitted == 0


async def test_slow_handshake_is_cut_off(start_server: StartServer) -> None:
    server = await start_server(handshake_timeout=0.2)
    reader, writer = await asyncio.open_connection(server.host, server.port)
    writer.write(b"\x16\x03\x01")  # the beginning of a ClientHello, and no more
    async with asyncio.timeout(DEADLINE_SECONDS):  # far below any time-out but the one under test
        with contextlib.suppress(ConnectionError):
            assert await reader.read(100) == b""
    await until(lambda: server.listener.refused == 1, "the refusal was not counted")
    writer.transport.abort()


async def test_stalled_handshakes_do_not_keep_others_out(pki: TestPki, start_server: StartServer) -> None:
    server = await start_server()
    stalled = [await asyncio.open_connection(server.host, server.port) for _ in range(20)]
    context = pki.identity(TASKMANAGER).client_context(server_policy(Channel.RPC, TRUST_DOMAIN))
    assert await answer_of(server.host, server.port, context, hello=b"ping") == b"ping"
    for _, writer in stalled:
        writer.transport.abort()


async def test_no_session_can_be_resumed(pki: TestPki, start_server: StartServer) -> None:
    """The listener issues no tickets: every connection is a full handshake with the certificate in it."""
    server = await start_server()
    context = pki.identity(TASKMANAGER).client_context(server_policy(Channel.RPC, TRUST_DOMAIN))

    def dial(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bool | None]:
        with (
            socket.create_connection((server.host, server.port), timeout=20) as plain,
            context.wrap_socket(plain, session=session) as tls,
        ):
            tls.sendall(b"ping")
            assert tls.recv(100) == b"ping"  # a ticket would have come before this
            return tls.session, tls.session_reused

    session, _ = await asyncio.to_thread(dial, None)
    assert session is None or not session.has_ticket
    _, reused = await asyncio.to_thread(dial, session)
    assert not reused


async def test_client_of_another_application_protocol_is_refused(pki: TestPki, start_server: StartServer) -> None:
    server = await start_server(alpn=("h2",))
    identity = pki.identity(TASKMANAGER)
    policy = server_policy(Channel.RPC, TRUST_DOMAIN)
    await assert_refused(server.host, server.port, identity.client_context(policy))
    matching = identity.client_context(policy, alpn=("h2",))
    assert await answer_of(server.host, server.port, matching, hello=b"ping") == b"ping"


@contextlib.contextmanager
def hostile_server(context: ssl.SSLContext) -> Iterator[tuple[str, int]]:
    """Run a listener in a separate thread that admits every client and greets it."""

    def serve() -> None:
        while True:
            try:
                plain, _ = listening.accept()
            except OSError:
                return  # the end of the test shut the listener down
            plain.settimeout(20)
            with plain, contextlib.suppress(OSError), context.wrap_socket(plain, server_side=True) as tls:
                tls.sendall(b"welcome")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("case", HOSTILE_SERVERS)
async def test_client_refuses_hostile_listener(case: Hostile, pki: TestPki) -> None:
    hostile = pki.hostile(case, pretending=JOBMANAGER)
    context = pki.identity(TASKMANAGER).client_context(server_policy(Channel.RPC, TRUST_DOMAIN))
    with hostile_server(hostile.server_context()) as (host, port), pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.open_connection(host, port, ssl=context)


@pytest.mark.parametrize("case", HOSTILE_SERVERS)
async def test_blocking_client_refuses_hostile_listener(case: Hostile, pki: TestPki) -> None:
    """The check is part of the context, so that plain sockets (http.client and the like) have it too."""
    hostile = pki.hostile(case, pretending=JOBMANAGER)
    context = pki.identity(TASKMANAGER).client_context(server_policy(Channel.RPC, TRUST_DOMAIN))

    def dial(host: str, port: int) -> None:
        with socket.create_connection((host, port), timeout=20) as plain, context.wrap_socket(plain):
            pass

    with hostile_server(hostile.server_context()) as (host, port), pytest.raises(ssl.SSLCertVerificationError):
        await asyncio.to_thread(dial, host, port)


async def test_blocking_client_cannot_skip_the_check_by_skipping_the_handshake(pki: TestPki) -> None:
    """OpenSSL shakes hands implicitly at the first read or write; ours refuses data before the check."""
    hostile = pki.hostile(Hostile.WRONG_ROLE, pretending=JOBMANAGER)
    context = pki.identity(TASKMANAGER).client_context(server_policy(Channel.RPC, TRUST_DOMAIN))

    def dial(host: str, port: int, *, send: bool) -> None:
        with (
            socket.create_connection((host, port), timeout=20) as plain,
            context.wrap_socket(plain, do_handshake_on_connect=False) as tls,
        ):
            if send:
                tls.sendall(b"secret")
            else:
                tls.recv(100)

    with hostile_server(hostile.server_context()) as (host, port):
        for send in (True, False):
            with pytest.raises(ssl.SSLCertVerificationError, match="handshake was not completed"):
                await asyncio.to_thread(dial, host, port, send=send)


async def test_client_refuses_listener_of_tls_1_2(pki: TestPki) -> None:
    good = HostileIdentity(Hostile.WRONG_ROLE, pki.directory(JOBMANAGER))  # a good certificate, an old protocol
    context = pki.identity(TASKMANAGER).client_context(server_policy(Channel.RPC, TRUST_DOMAIN))
    with (
        hostile_server(good.server_context(tls12=True)) as (host, port),
        pytest.raises((ssl.SSLError, ConnectionResetError)),
    ):
        await asyncio.open_connection(host, port, ssl=context)


async def test_client_refuses_the_right_role_under_the_wrong_name(pki: TestPki, start_server: StartServer) -> None:
    server = await start_server()
    policy = server_policy(Channel.RPC, TRUST_DOMAIN, role=Role.JOBMANAGER, name="jobmanager-2")
    with pytest.raises(ssl.SSLCertVerificationError, match="jobmanager-2"):
        await asyncio.open_connection(server.host, server.port, ssl=pki.identity(TASKMANAGER).client_context(policy))


async def test_close_ends_open_connections_and_frees_the_port(pki: TestPki, start_server: StartServer) -> None:
    server = await start_server()
    context = pki.identity(TASKMANAGER).client_context(server_policy(Channel.RPC, TRUST_DOMAIN))
    reader, writer = await asyncio.open_connection(server.host, server.port, ssl=context)
    writer.write(b"ping")
    assert await reader.read(100) == b"ping"
    unfinished = await asyncio.open_connection(server.host, server.port)
    await server.listener.close()
    with contextlib.suppress(ConnectionError):
        assert await reader.read(100) == b""
    with contextlib.suppress(ConnectionError):
        assert await unfinished[0].read(100) == b""
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(server.host, server.port)
    for stream in (writer, unfinished[1]):
        stream.transport.abort()


def test_a_connection_without_a_completed_tls_handshake_has_no_verified_peer(pki: TestPki) -> None:
    """A TLS socket of ours before its handshake, and a socket without TLS."""
    context = pki.identity(TASKMANAGER).client_context(client_policy(Channel.RPC, TRUST_DOMAIN))
    left, right = socket.socketpair()
    with (
        left,
        right,
        context.wrap_socket(left, do_handshake_on_connect=False) as tls,
        pytest.raises(PeerRefused, match="no verified peer"),
    ):
        peer_of(tls)
