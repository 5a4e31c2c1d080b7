"""Callers that the agent must refuse, and messages that must not harm it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from grpclib.client import Channel, StreamStreamMethod, UnaryStreamMethod, UnaryUnaryMethod
from grpclib.const import Status
from grpclib.encoding.base import CodecBase
from grpclib.exceptions import GRPCError, StreamTerminatedError
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ResponseReceived, TrailersReceived

from sluice.core.errors import StoreError
from sluice.core.grpc.server import MAX_CONNECTIONS_PER_USER
from sluice.core.xds.messages import REQUEST, RESPONSE, SECRET, message_class
from sluice.pki.agent.messages import JWTSVIDRequest, X509SVIDResponse, decode, encode
from sluice.pki.agent.policy import IdentityEntry
from sluice.pki.agent.sds import MAX_NAMES
from sluice.pki.agent.workload_api import MAX_REQUEST_BYTES
from tests.integration.agent.conftest import BUNDLE, CALLER_UID, OWN_UID, RunningAgent, StartAgent
from tests.waiting import until

DiscoveryRequest, DiscoveryResponse, Secret = map(message_class, (REQUEST, RESPONSE, SECRET))
WORKER = IdentityEntry(id="taskmanager/tm-1", uids=(OWN_UID,), audiences=("reports",))
FOREIGN = IdentityEntry(id="taskmanager/tm-2", uids=(OWN_UID + 1,))
SECURITY = {"workload.spiffe.io": "true"}
X509 = "/SpiffeWorkloadAPI/FetchX509SVID"
JWT = "/SpiffeWorkloadAPI/FetchJWTSVID"
STREAM = "/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets"
FETCH = "/envoy.service.secret.v3.SecretDiscoveryService/FetchSecrets"
TIMEOUT_SECONDS = 10.0
"""Only ends a test that would hang."""


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


class Raw(CodecBase):
    """A codec that sends and receives messages as raw bytes."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> bytes:
        """Return the message unchanged."""
        return bytes(message)

    def decode(self, data: bytes, message_type: Any) -> bytes:
        """Return the data unchanged."""
        return data


@pytest.fixture
async def running(start_agent: StartAgent) -> RunningAgent:
    """An agent with one identity for this user and one for another user."""
    return await start_agent(WORKER, FOREIGN)


@pytest.fixture
async def channel(running: RunningAgent) -> AsyncIterator[Channel]:
    """A connection to the agent as this user."""
    made = Channel(path=str(running.socket), codec=Raw())
    yield made
    made.close()


async def _run_as(running: RunningAgent, uid: int) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("as_caller.py")),
        str(running.socket),
        str(uid),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def test_another_user_gets_only_its_own_identity(start_agent: StartAgent) -> None:
    others = tuple(uid for uid in {OWN_UID} if uid != CALLER_UID)
    running = await start_agent(
        IdentityEntry(id="taskmanager/own", uids=others), IdentityEntry(id="taskmanager/nobody", uids=(CALLER_UID,))
    )
    assert await _run_as(running, CALLER_UID) == f"{BUNDLE}/taskmanager/nobody\n"


async def test_a_user_that_the_policy_does_not_name_is_refused(start_agent: StartAgent) -> None:
    # An entry for another user opens the socket to everybody: it is the credentials that decide.
    running = await start_agent(IdentityEntry(id="taskmanager/tm-1", uids=(CALLER_UID + 7,)))
    assert (await _run_as(running, CALLER_UID)).startswith("refused: ")


async def test_root_is_refused_when_the_policy_does_not_name_it(start_agent: StartAgent) -> None:
    running = await start_agent(IdentityEntry(id="taskmanager/tm-1", uids=(OWN_UID + 7,)))
    channel = Channel(path=str(running.socket), codec=Raw())
    with contextlib.closing(channel), pytest.raises((StreamTerminatedError, OSError)):
        await UnaryStreamMethod(channel, X509, bytes, bytes)(b"", metadata=SECURITY, timeout=TIMEOUT_SECONDS)


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({}, id="none"),
        pytest.param({"workload.spiffe.io": "false"}, id="false"),
        pytest.param({"workload.spiffe.io": "TRUE"}, id="capitals"),
    ],
)
@pytest.mark.parametrize("method", ["FetchX509SVID", "FetchX509Bundles", "FetchJWTBundles", "FetchJWTSVID"])
async def test_a_call_without_the_security_metadata_is_refused(
    channel: Channel, metadata: dict[str, str], method: str
) -> None:
    with pytest.raises(GRPCError, match="security header") as refused:
        await UnaryStreamMethod(channel, f"/SpiffeWorkloadAPI/{method}", bytes, bytes)(
            b"", metadata=metadata, timeout=TIMEOUT_SECONDS
        )
    assert refused.value.status is Status.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("path", "message", "status"),
    [
        pytest.param(JWT, bytes(MAX_REQUEST_BYTES + 1), Status.RESOURCE_EXHAUSTED, id="too large"),
        pytest.param(JWT, b"\xff\xff\xff", Status.INVALID_ARGUMENT, id="no protobuf"),
        pytest.param(JWT, b"", Status.INVALID_ARGUMENT, id="no audience"),
        pytest.param(JWT, encode(JWTSVIDRequest(audience=[""])), Status.INVALID_ARGUMENT, id="empty audience"),
        pytest.param(
            JWT, encode(JWTSVIDRequest(audience=["reports"] * 65)), Status.INVALID_ARGUMENT, id="many audiences"
        ),
        pytest.param("/SpiffeWorkloadAPI/Nothing", b"", Status.UNIMPLEMENTED, id="unknown method"),
        pytest.param(
            FETCH,
            encode(DiscoveryRequest(resource_names=[f"{BUNDLE}/taskmanager/tm-2"])),
            Status.PERMISSION_DENIED,
            id="secret of another user",
        ),
        pytest.param(
            FETCH,
            encode(DiscoveryRequest(resource_names=["spiffe://other.example"])),
            Status.PERMISSION_DENIED,
            id="another trust domain",
        ),
        pytest.param(
            FETCH,
            encode(DiscoveryRequest(resource_names=[str(number) for number in range(MAX_NAMES + 1)])),
            Status.INVALID_ARGUMENT,
            id="too many secrets",
        ),
        pytest.param(
            FETCH,
            encode(DiscoveryRequest(type_url="type.googleapis.com/envoy.config.listener.v3.Listener")),
            Status.INVALID_ARGUMENT,
            id="no secret",
        ),
    ],
)
async def test_an_invalid_request_is_refused_and_the_next_one_is_served(
    channel: Channel, path: str, message: bytes, status: Status
) -> None:
    with pytest.raises(GRPCError) as refused:
        await UnaryUnaryMethod(channel, path, bytes, bytes)(message, metadata=SECURITY, timeout=TIMEOUT_SECONDS)
    assert refused.value.status is status
    names = [f"{BUNDLE}/taskmanager/tm-1"]
    answer = await UnaryUnaryMethod(channel, FETCH, bytes, bytes)(
        encode(DiscoveryRequest(resource_names=names)), timeout=TIMEOUT_SECONDS
    )
    assert _names(answer) == names


@pytest.mark.parametrize(
    ("frame", "status"),
    [
        pytest.param(struct.pack(">BI", 0, (1 << 32) - 1) + bytes(100), Status.RESOURCE_EXHAUSTED, id="claims 4 GiB"),
        pytest.param(struct.pack(">BI", 1, 4) + bytes(4), Status.UNIMPLEMENTED, id="compressed"),
        pytest.param(struct.pack(">BI", 0, 10) + bytes(4), Status.INVALID_ARGUMENT, id="cut off in the message"),
        pytest.param(b"\x00\x00", Status.INVALID_ARGUMENT, id="cut off in the head"),
        pytest.param(b"", Status.INVALID_ARGUMENT, id="no message"),
    ],
)
async def test_an_invalid_grpc_frame_is_refused(running: RunningAgent, frame: bytes, status: Status) -> None:
    h2 = H2Connection(H2Configuration(client_side=True, header_encoding="ascii"))
    h2.initiate_connection()
    headers = [(":method", "POST"), (":scheme", "http"), (":path", JWT), (":authority", "agent")]
    h2.send_headers(1, [*headers, ("content-type", "application/grpc"), ("te", "trailers"), *SECURITY.items()])
    h2.send_data(1, frame, end_stream=True)
    assert await _status(running, h2) is status


async def _status(running: RunningAgent, h2: H2Connection) -> Status:
    reader, writer = await asyncio.open_unix_connection(str(running.socket))
    try:
        writer.write(h2.data_to_send())
        while data := await reader.read(65536):
            for event in h2.receive_data(data):
                if isinstance(event, ResponseReceived | TrailersReceived):
                    headers = {str(name): str(value) for name, value in event.headers}
                    return Status(int(headers["grpc-status"]))
    finally:
        writer.close()
        await writer.wait_closed()
    pytest.fail("closed without a status")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", id="HTTP/1.1"),
        pytest.param(PREFACE + b"\x00\x00\x04\x01\x04\x00\x00\x00\x01" + b"\xff" * 4, id="damaged headers"),
        pytest.param(PREFACE + b"\x00\x00\x01\x00\x00\x00\x00\x00\x01\x00", id="data of no stream"),
    ],
)
async def test_data_that_is_not_http2_ends_only_its_own_connection(
    running: RunningAgent, channel: Channel, data: bytes
) -> None:
    reader, writer = await asyncio.open_unix_connection(str(running.socket))
    writer.write(data)
    with contextlib.suppress(ConnectionResetError):
        await asyncio.wait_for(reader.read(), TIMEOUT_SECONDS)
    writer.close()
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        await writer.wait_closed()
    async with UnaryStreamMethod(channel, X509, bytes, bytes).open(metadata=SECURITY) as stream:
        await stream.send_message(b"", end=True)
        answer = await stream.recv_message()
        assert [one.spiffe_id for one in decode(X509SVIDResponse, answer or b"").svids] == [
            f"{BUNDLE}/taskmanager/tm-1"
        ]
        await stream.cancel()


async def test_a_rejected_secret_is_not_sent_again_until_it_changes(running: RunningAgent, channel: Channel) -> None:
    names = [f"{BUNDLE}/taskmanager/tm-1", BUNDLE]
    async with StreamStreamMethod(channel, STREAM, bytes, bytes).open() as stream:
        await stream.send_message(encode(DiscoveryRequest(resource_names=names, type_url=SECRET)))
        first = decode(DiscoveryResponse, await stream.recv_message() or b"")
        rejection = DiscoveryRequest(resource_names=names, type_url=SECRET, response_nonce=first.nonce)
        rejection.error_detail.code = 3
        rejection.error_detail.message = "no\nthanks"
        await stream.send_message(encode(rejection))
        stale = DiscoveryRequest(resource_names=[], type_url=SECRET, response_nonce="0")
        await stream.send_message(encode(stale))
        await running.rotate()
        second = decode(DiscoveryResponse, await stream.recv_message() or b"")
        # The very next answer is the new generation, for the names asked for before the stale request.
        assert int(second.nonce) == int(first.nonce) + 1
        assert second.version_info != first.version_info
        assert len(second.resources) == 2
        await stream.cancel()


async def test_the_connections_of_one_user_are_limited(running: RunningAgent, channel: Channel) -> None:
    before = running.agent.server.refused
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS_PER_USER + 12):
            probe = stack.enter_context(contextlib.closing(socket.socket(socket.AF_UNIX)))
            await asyncio.to_thread(probe.connect, str(running.socket))
        await until(lambda: running.agent.server.refused == before + 12, "not bounded")
    answer = await _retried(channel)
    assert _names(answer) == [BUNDLE]


async def _retried(channel: Channel) -> bytes:
    method = UnaryUnaryMethod(channel, FETCH, bytes, bytes)
    for _ in range(800):
        with contextlib.suppress(StreamTerminatedError, OSError):
            return await method(encode(DiscoveryRequest(resource_names=[BUNDLE])), timeout=TIMEOUT_SECONDS)
        await asyncio.sleep(0.05)
    pytest.fail("not served any more")


async def test_a_second_agent_does_not_take_the_socket_of_the_first(running: RunningAgent, tmp_path: Path) -> None:
    second = RunningAgent(tmp_path, WORKER)
    second.agent._socket_path = running.socket
    with pytest.raises(StoreError, match="another process listens"):
        await second.agent.start()
    assert running.socket.exists()


def _names(answer: bytes) -> list[str]:
    return [decode(Secret, resource.value).name for resource in decode(DiscoveryResponse, answer).resources]
