"""Spark Connect through the real Envoy.

Users reach only their own session, as themselves, and only for as long as they are allowed to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import grpc  # type: ignore[import-untyped]  # the package has no type information
import pytest
from pyspark.sql.connect.proto import base_pb2 as proto, base_pb2_grpc as stubs

from sluice.gateway.connect.envoy import FLIGHT_SERVICE
from sluice.gateway.connect.messages import SERVICE
from sluice.gateway.credentials.access_tokens import ACCESS_TOKEN_COOKIE
from sluice.gateway.principal import AccessRole
from sluice.pki.assertions.tokens import HEADER
from sluice.pki.spiffe_id import SpiffeId
from tests.assertions import AssertingGateway
from tests.integration.connect.conftest import DETAILS, JOBS, ConnectGateway, claiming
from tests.integration.gateway.authorization.test_access_tokens_at_envoy import access_token_of
from tests.integration.gateway.conftest import TRUST_DOMAIN, eventually

PATH = f"/{SERVICE}/Config"


def status_of(call: Callable[[], object]) -> grpc.StatusCode:
    """Return the status with which a call fails; fails if the call succeeds."""
    with pytest.raises(grpc.RpcError) as caught:
        call()
    code: grpc.StatusCode = caught.value.code()
    return code


def test_a_claimed_user_id_is_replaced_and_each_user_reaches_their_own_session(connect: ConnectGateway) -> None:
    with connect.channel() as stub:
        for name, claimed in (("ada", "bob"), ("bob", "ada"), ("ada", ""), ("bob", "bob")):
            assert stub.Config(claiming(claimed), metadata=connect.bearer(name)).session_id == "s"
    assert connect.sessions["ada"].users() == ["ada", "ada"]
    assert connect.sessions["bob"].users() == ["bob", "bob"]


def test_the_session_id_of_another_user_leads_to_the_callers_own_server(connect: ConnectGateway) -> None:
    with connect.channel() as stub:
        stub.Config(claiming("bob", "b0b00000-0000-0000-0000-000000000000"), metadata=connect.bearer("bob"))
        stub.Config(claiming("bob", "b0b00000-0000-0000-0000-000000000000"), metadata=connect.bearer("ada"))
        attach = proto.ReattachExecuteRequest(
            session_id="b0b00000-0000-0000-0000-000000000000",
            user_context=proto.UserContext(user_id="bob"),
            operation_id="0b000000-0000-0000-0000-000000000000",
        )
        list(stub.ReattachExecute(attach, metadata=connect.bearer("ada")))
    assert connect.sessions["ada"].users() == ["ada", "ada"]
    assert connect.sessions["bob"].users() == ["bob"]


def test_the_user_id_is_replaced_in_every_message_of_a_stream(connect: ConnectGateway) -> None:
    parts = [proto.AddArtifactsRequest(session_id="s", user_context=proto.UserContext(user_id="bob"))] * 3
    with connect.channel() as stub:
        stub.AddArtifacts(iter(parts), metadata=connect.bearer("ada"), timeout=30)
    assert connect.sessions["ada"].users() == ["ada"] * 3


def test_neither_token_nor_identity_headers_reach_the_session(connect: ConnectGateway) -> None:
    spoofed = [(HEADER, "x.y.z"), ("x-sluice-principal", "bob"), ("x-custom", "1")]
    with connect.channel() as stub:
        stub.Config(claiming("bob"), metadata=[*connect.bearer("ada"), *spoofed])
    (metadata,) = connect.sessions["ada"].metadata
    assert metadata == {}
    assert connect.sessions["ada"].users() == ["ada"]


def test_errors_arrive_with_their_details(connect: ConnectGateway) -> None:
    with connect.channel() as stub, pytest.raises(grpc.RpcError) as caught:
        stub.ReleaseExecute(proto.ReleaseExecuteRequest(session_id="s"), metadata=connect.bearer("ada"))
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INTERNAL, "it went wrong")
    assert dict(caught.value.trailing_metadata())["grpc-status-details-bin"] == DETAILS


@pytest.mark.parametrize("case", ["no token", "wrong token", "revoked token", "another scheme"])
def test_a_call_without_a_valid_token_reaches_no_session(connect: ConnectGateway, case: str) -> None:
    metadata = connect.bearer("ada")
    match case:
        case "no token":
            metadata = []
        case "wrong token":
            metadata = [("authorization", metadata[0][1][:-4] + "0000")]
        case "revoked token":
            connect.revoke("ada")
        case _:
            metadata = [("authorization", "Basic YWRhOmFkYQ==")]
    with connect.channel() as stub:
        assert status_of(lambda: stub.Config(claiming("ada"), metadata=metadata)) is grpc.StatusCode.UNAUTHENTICATED
    assert connect.sessions["ada"].users() == []


def test_a_role_without_permission_for_spark_connect_is_refused(connect: ConnectGateway) -> None:
    metadata = connect.bearer("ada", AccessRole.VIEWER)
    with connect.channel() as stub:
        assert status_of(lambda: stub.Config(claiming("ada"), metadata=metadata)) is grpc.StatusCode.PERMISSION_DENIED
    assert connect.sessions["ada"].users() == []


@pytest.mark.parametrize(
    "path",
    [
        f"/{SERVICE}/Unknown",
        f"/{SERVICE}/",
        f"/{SERVICE}/Config/x",
        "/grpc.reflection.v1.ServerReflection/Info",
        f"/{FLIGHT_SERVICE}/GetFlightInfo",
        f"/{FLIGHT_SERVICE}/DoGet",
    ],
)
def test_methods_other_than_those_of_spark_connect_are_refused(connect: ConnectGateway, path: str) -> None:
    credentials = grpc.ssl_channel_credentials(root_certificates=connect.roots)
    with grpc.secure_channel(f"localhost:{connect.port}", credentials) as channel:
        call = channel.unary_unary(path, lambda message: message, lambda message: message)
        refused = status_of(lambda: call(b"", metadata=connect.bearer("ada", AccessRole.ADMIN)))
    assert refused in {
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.PERMISSION_DENIED,
    }
    assert connect.sessions["ada"].users() == []


@pytest.mark.parametrize("message", [b"\x12\x05ab", b"\x13\x14", b"\x12"], ids=["short", "group", "tag alone"])
def test_a_malformed_message_never_reaches_the_session(connect: ConnectGateway, message: bytes) -> None:
    credentials = grpc.ssl_channel_credentials(root_certificates=connect.roots)
    with grpc.secure_channel(f"localhost:{connect.port}", credentials) as channel:
        call = channel.unary_unary(PATH, lambda data: data, lambda data: data)
        refused = status_of(lambda: call(message, metadata=connect.bearer("ada")))
    assert refused is grpc.StatusCode.INVALID_ARGUMENT
    assert connect.sessions["ada"].users() == []


def test_compressed_messages_are_refused(connect: ConnectGateway) -> None:
    with connect.channel() as stub:
        refused = status_of(
            lambda: stub.Config(
                claiming("bob", "s" * 5000), metadata=connect.bearer("ada"), compression=grpc.Compression.Gzip
            )
        )
    assert refused is grpc.StatusCode.UNIMPLEMENTED
    assert connect.sessions["ada"].users() == []


def test_a_direct_call_to_the_relay_needs_a_valid_assertion_for_this_call(connect: ConnectGateway) -> None:
    signer = AssertingGateway(connect.home)
    good = signer.assertion("POST", PATH)
    wrong = {
        "none": [],
        "for REST": [(HEADER, signer.forged(good, aud="sluice-rest"))],
        "for another method": [(HEADER, signer.assertion("POST", f"/{SERVICE}/ExecutePlan"))],
        "plain": [("x-sluice-principal", "ada")],
        "twice": [(HEADER, good), (HEADER, good)],
        "alg none": [(HEADER, signer.forged(good, key="", algorithm="none"))],
    }
    with connect.inside() as stub:
        for case, metadata in wrong.items():
            refused = status_of(lambda metadata=metadata: stub.Config(claiming("ada"), metadata=metadata))  # type: ignore[misc]
            assert refused is grpc.StatusCode.UNAUTHENTICATED, case
    assert connect.sessions["ada"].users() == []


def test_a_used_assertion_is_refused(connect: ConnectGateway) -> None:
    credential = connect.bearer("ada")[0][1].split("_")[1]
    signer = AssertingGateway(connect.home)
    used = [(HEADER, signer.forged(signer.assertion("POST", PATH), cred=credential))]
    with connect.inside() as stub:
        stub.Config(claiming("ada"), metadata=used)
        assert status_of(lambda: stub.Config(claiming("ada"), metadata=used)) is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    "claims",
    [
        pytest.param({"op": "jobs.read"}, id="assertion for another operation"),
        pytest.param({"aud": "sluice", "all": "jobs.read jobs.list"}, id="access token without the operation"),
        pytest.param({"aud": "sluice"}, id="access token that lists nothing"),
    ],
)
def test_an_assertion_or_access_token_that_does_not_grant_spark_connect_is_refused(
    connect: ConnectGateway, claims: dict[str, str]
) -> None:
    """A client that reaches the relay's socket gains no more than the gateway granted."""
    credential = connect.bearer("ada")[0][1].split("_")[1]
    signer = AssertingGateway(connect.home)
    shown = [(HEADER, signer.forged(signer.assertion("POST", PATH), cred=credential, **claims))]
    with connect.inside() as stub:
        assert status_of(lambda: stub.Config(claiming("ada"), metadata=shown)) is grpc.StatusCode.UNAUTHENTICATED


class Streaming:
    """A call with an endless stream of responses, which the test reads or cancels."""

    def __init__(self, stub: stubs.SparkConnectServiceStub, metadata: list[tuple[str, str]]) -> None:
        self._call = stub.ExecutePlan(proto.ExecutePlanRequest(session_id="s"), metadata=metadata)
        next(self._call)

    def goes_on(self) -> bool:
        """Whether the stream delivers three more messages; raises the call's error otherwise."""
        for _ in range(3):
            next(self._call)
        return True

    def ends_with(self) -> grpc.StatusCode:
        """Read the stream to its end; returns the final status."""
        try:
            for _ in self._call:
                pass
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return grpc.StatusCode.OK

    def cancel(self) -> None:
        """Cancel the call, as a client does that goes away."""
        self._call.cancel()


def test_a_revocation_ends_only_the_running_streams_of_the_revoked_user(connect: ConnectGateway) -> None:
    with connect.channel() as stub:
        ada, bob = Streaming(stub, connect.bearer("ada")), Streaming(stub, connect.bearer("bob"))
        connect.revoke("ada")
        assert ada.ends_with() is grpc.StatusCode.UNAUTHENTICATED
        assert bob.goes_on()
        bob.cancel()


def test_a_call_that_the_client_cancels_ends_at_the_session(connect: ConnectGateway) -> None:
    with connect.channel() as stub:
        streaming = Streaming(stub, connect.bearer("ada"))
        ended = connect.sessions["ada"].ended[-1]  # calls of earlier tests may end only now
        assert not ended.is_set()
        streaming.cancel()
        eventually(ended.is_set, "the call goes on at the session")


def test_a_stopped_session_is_unavailable_and_is_looked_up_again_once_it_restarts(connect: ConnectGateway) -> None:
    session = connect.sessions["bob"]
    with connect.channel() as stub:
        streaming = Streaming(stub, connect.bearer("bob"))
        connect.run(session.stop())
        assert streaming.ends_with() is grpc.StatusCode.UNAVAILABLE
        metadata = connect.bearer("bob")
        assert status_of(lambda: stub.Config(claiming("bob"), metadata=metadata)) is grpc.StatusCode.UNAVAILABLE
        asked = connect.rest.asked["bob"]
        connect.run(session.start())
        assert stub.Config(claiming("bob"), metadata=metadata).session_id == "s"
        assert connect.rest.asked["bob"] > asked


def test_a_user_without_a_session_gets_unavailable(connect: ConnectGateway) -> None:
    with connect.channel() as stub:
        refused = status_of(lambda: stub.Config(claiming("ada"), metadata=connect.bearer("carol")))
    assert refused is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("impostor", ["another job", "an executor", "plaintext"])
def test_a_server_of_another_identity_at_the_address_of_the_session_gets_nothing(
    connect: ConnectGateway, impostor: str
) -> None:
    session = connect.sessions["bob"]
    identities = {
        "another job": SpiffeId.driver(TRUST_DOMAIN, "c" * 32),
        "an executor": SpiffeId.executor(TRUST_DOMAIN, JOBS["bob"], 1),
    }
    directory = connect.home.root / impostor.replace(" ", "-")
    connect.run(session.stop())
    honest = session.identity
    try:
        if impostor in identities:
            connect.issuer.issue_to(directory, identities[impostor])
            session.identity = directory
            connect.run(session.start())
        else:
            connect.run(session.start(tls=False))
        with connect.channel() as stub:
            metadata = connect.bearer("bob")
            assert status_of(lambda: stub.Config(claiming("bob"), metadata=metadata)) is grpc.StatusCode.UNAVAILABLE
        assert session.users() == []
    finally:
        connect.run(session.stop())
        session.identity = honest
        connect.run(session.start())


def test_a_cookie_beside_a_bearer_token_does_not_hide_a_revocation(connect: ConnectGateway) -> None:
    """Envoy would write the claims of both access tokens into one header, which no revocation matches."""
    credential = connect.bearer("ada")[0][1].split("_")[1]
    token, _ = access_token_of(connect, "submitter", "ada", credential)
    bearer, cookie = ("authorization", f"Bearer {token}"), ("cookie", f"{ACCESS_TOKEN_COOKIE}={token}")
    with connect.channel() as stub:
        stub.Config(claiming("ada"), metadata=[bearer])
        assert connect.sessions["ada"].users() == ["ada"]
        assert status_of(lambda: stub.Config(claiming("ada"), metadata=[bearer, cookie])) is grpc.StatusCode.INTERNAL
        connect.revoke("ada")

        def refused() -> bool:
            with contextlib.suppress(grpc.RpcError):
                stub.Config(claiming("ada"), metadata=[bearer])
                return False
            return True

        eventually(refused, "Envoy does not learn of the revocation")
        connect.sessions["ada"].users()
        assert status_of(lambda: stub.Config(claiming("ada"), metadata=[bearer, cookie])) is grpc.StatusCode.INTERNAL
    assert connect.sessions["ada"].users() == []
