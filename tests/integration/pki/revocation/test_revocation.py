"""A revoked peer on real sockets.

It is refused at once in both directions, its open connections are ended, and it cannot come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.core.clock import utc_now
from sluice.core.errors import PeerRefused, StoreError
from sluice.pki.channels import Channel, client_policy, server_policy
from sluice.pki.identities.directory import read_certificates
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.revocation.crl import EXPIRY_GRACE, Reason
from sluice.pki.revocation.crl_files import CRL_FILE, install_crls
from sluice.pki.revocation.revoked_peers import RevokedPeers
from sluice.pki.revocation.store import RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.connection_guard import ConnectionGuard
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509.profiles import AuthorityKind
from tests.hostile import TRUST_DOMAIN, TestPki, answer_of, assert_refused
from tests.integration.pki.conftest import Server, StartServer
from tests.waiting import until

INTERNAL = AuthorityKind.INTERNAL
TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
OTHER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-2")
POLICY = server_policy(Channel.RPC, TRUST_DOMAIN)


def revoke(pki: TestPki, revoked: TlsIdentity, *told: TlsIdentity, reason: Reason = Reason.KEY_COMPROMISE) -> None:
    """Revoke an identity and tell the processes ``told``; the revoked one is not told."""
    leaf = read_certificates(revoked.directory / "chain.pem")[0]
    pki.issuer.revocations.revoke(INTERNAL, [RevocationTarget.of(leaf, str(revoked.spiffe_id))], reason)
    for identity in told:
        install_crls(identity.directory, current_list(pki.issuer), utc_now())


def current_list(issuer: LocalIssuer, kind: AuthorityKind = INTERNAL) -> bytes:
    current = issuer.revocations.current(kind)
    assert current is not None
    return current.pem


async def connect(server: Server, client: TlsIdentity) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, and check that the connection works."""
    reader, writer = await asyncio.open_connection(server.host, server.port, ssl=client.client_context(POLICY))
    writer.write(b"ping")
    assert await reader.read(100) == b"ping"
    return reader, writer


async def ended(reader: asyncio.StreamReader) -> bool:
    """Return whether the peer closes the connection without sending another byte."""
    try:
        async with asyncio.timeout(20):
            return await reader.read(1) == b""
    except (ConnectionError, ssl.SSLError):
        return True


async def test_an_idle_connection_of_a_revoked_peer_is_closed_and_its_next_one_refused(
    pki: TestPki, start_server: StartServer
) -> None:
    server = await start_server()
    bad, good = pki.identity(TASKMANAGER), pki.identity(OTHER)
    reader, writer = await connect(server, bad)
    good_reader, good_writer = await connect(server, good)
    revoke(pki, bad, server.identity)
    assert await ended(reader)
    writer.transport.abort()
    await until(lambda: len(server.connections.open()) == 1, "the connection log still has the revoked peer")
    await assert_refused(server.host, server.port, bad.client_context(POLICY))
    good_writer.write(b"still here")
    assert await good_reader.read(100) == b"still here", "everybody else keeps the connections they have"
    good_writer.transport.abort()
    assert await answer_of(server.host, server.port, good.client_context(POLICY)) != b""


async def test_a_busy_connection_of_a_revoked_peer_gets_no_more_answers(
    pki: TestPki, start_server: StartServer
) -> None:
    server = await start_server()
    client = pki.identity(TASKMANAGER)
    reader, writer = await connect(server, client)
    revoke(pki, client, server.identity)

    async def talk() -> None:
        async with asyncio.timeout(20):
            while True:
                writer.write(b"x")
                await reader.readexactly(1)

    with pytest.raises((ConnectionError, asyncio.IncompleteReadError, ssl.SSLError)):
        await talk()
    writer.transport.abort()


async def test_client_refuses_a_revoked_server_and_ends_its_connection(pki: TestPki, start_server: StartServer) -> None:
    server = await start_server()
    client = pki.identity(TASKMANAGER)
    reader, writer = await connect(server, client)
    guard = ConnectionGuard(client, interval=0.01)
    guard.add(writer.transport)
    revoke(pki, server.identity, client)
    assert await ended(reader)
    assert guard.ended == 1
    guard.close()
    with pytest.raises(ssl.SSLCertVerificationError, match="was revoked"):
        await asyncio.open_connection(server.host, server.port, ssl=client.client_context(POLICY))


async def test_a_connection_whose_peer_was_revoked_before_the_guard_watches_it_is_closed(
    pki: TestPki, start_server: StartServer
) -> None:
    """The CRL may have been read between the handshake and the guard, without the guard being notified."""
    server = await start_server()
    client = pki.identity(TASKMANAGER)
    reader, writer = await connect(server, client)
    revoke(pki, server.identity, client)
    await until(lambda: client.revoked_peers.look() > 0, "the list is not noticed")
    guard = ConnectionGuard(client)
    guard.add(writer.transport)
    assert guard.ended == 1
    assert await ended(reader)
    guard.close()


def test_blocking_sockets_of_a_revoked_peer_are_refused_and_cut_off(pki: TestPki) -> None:
    server, client = pki.process(Role.JOBMANAGER), pki.identity(TASKMANAGER)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        refusals: list[str] = []

        def serve() -> None:
            for _ in range(2):
                accepted, _ = listening.accept()
                try:
                    context = server.server_context(client_policy(Channel.RPC, TRUST_DOMAIN))
                    with context.wrap_socket(accepted, server_side=True) as tls:
                        while data := tls.recv(100):
                            tls.sendall(data)
                except ssl.SSLError as error:
                    refusals.append(str(error))

        thread = threading.Thread(target=serve)
        thread.start()
        for _ in range(2):
            with socket.create_connection(listening.getsockname(), timeout=20) as raw:
                try:
                    with client.client_context(POLICY).wrap_socket(raw) as tls:
                        tls.sendall(b"x")
                        if not refusals:
                            assert tls.recv(1) == b"x"
                            revoke(pki, client, server)
                            tls.sendall(b"x")
                        while tls.recv(1):
                            tls.sendall(b"x")
                except OSError:
                    continue
        thread.join(20)
    assert len(refusals) == 2
    assert all("was revoked" in refusal for refusal in refusals)


async def test_a_tls_session_from_before_its_revocation_does_not_readmit_a_peer(
    pki: TestPki, start_server: StartServer
) -> None:
    """No tickets are issued; and offering the old session anyway leads to a full handshake, which is refused."""
    server = await start_server()
    client = pki.identity(TASKMANAGER)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # one that would resume, unlike ours
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(client.directory / "chain.pem", client.directory / "key.pem")

    def exchange(session: ssl.SSLSession | None) -> tuple[ssl.SSLSession | None, bytes, bool | None]:
        with (
            socket.create_connection((server.host, server.port), timeout=20) as raw,
            context.wrap_socket(raw, session=session) as tls,
        ):
            answer = b""
            with contextlib.suppress(OSError):
                tls.sendall(b"ping")
                answer = tls.recv(100)
            return tls.session, answer, tls.session_reused

    session, answer, _ = await asyncio.to_thread(exchange, None)
    assert answer == b"ping"
    assert session is None or not session.has_ticket
    revoke(pki, client, server.identity)
    await until(lambda: server.identity.revoked_peers.look() > 0, "the list is not noticed")
    _, answer, reused = await asyncio.to_thread(exchange, session)
    assert (answer, reused) == (b"", False)


class Watched:
    """The CRLs of one directory, under clocks that the test moves."""

    def __init__(self, pki: TestPki) -> None:
        self.now = utc_now()
        self.ticks = 0.0
        directory = pki.directory(TASKMANAGER)
        anchors = tuple(read_certificates(directory / "ca.pem"))
        self.path = directory / CRL_FILE
        self.leaf = read_certificates(directory / "chain.pem")[0]
        self.peers = RevokedPeers(directory, lambda: anchors, clock=lambda: self.now, monotonic=lambda: self.ticks)


BAD: dict[str, Callable[[TestPki, Path], bytes]] = {
    "garbage": lambda _pki, _root: b"garbage",
    "empty": lambda _pki, _root: b"",
    "cut off": lambda pki, _root: current_list(pki.issuer)[:-40],
    "another authority": lambda pki, _root: _refreshed(pki.issuer, AuthorityKind.EDGE),
    "another cluster": lambda _pki, root: _refreshed(TestPki(root / "stranger").issuer, INTERNAL),
    "expired": lambda pki, _root: _aged(pki, dt.timedelta(days=3)),
    "from the future": lambda pki, _root: _aged(pki, dt.timedelta(days=-1)),
}


def _refreshed(issuer: LocalIssuer, kind: AuthorityKind) -> bytes:
    issuer.revocations.refresh(kind)
    return current_list(issuer, kind)


def _aged(pki: TestPki, age: dt.timedelta) -> bytes:
    """Return a CRL with a higher number, signed by the right authority ``age`` ago."""
    issuer = LocalIssuer(pki.home, pki.config, clock=lambda: utc_now() - age)
    issuer.revocations.refresh(INTERNAL, force=True)
    return current_list(issuer)


async def test_a_bad_crl_leaves_the_previous_crl_in_force(
    pki: TestPki, start_server: StartServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = await start_server()
    bad, good = pki.identity(TASKMANAGER), pki.identity(OTHER)
    revoke(pki, bad, server.identity)
    await until(lambda: server.identity.revoked_peers.look() == 1, "the list is not noticed")
    with caplog.at_level(logging.WARNING, logger="sluice.pki.revocation.revoked_peers"):
        (server.identity.directory / CRL_FILE).write_bytes(b"garbage")
        await until(
            lambda: server.identity.revoked_peers.look() == 1 and "stay in use" in caplog.text, "nothing was noticed"
        )
    await assert_refused(server.host, server.port, bad.client_context(POLICY))
    assert await answer_of(server.host, server.port, good.client_context(POLICY)) != b""
    with pytest.raises(StoreError, match="no usable revocation list"):
        TlsIdentity(server.identity.directory)


@pytest.mark.parametrize("kind", BAD)
def test_every_kind_of_bad_crl_is_refused_by_the_process_itself(
    kind: str, pki: TestPki, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Put there by something other than :func:`install_crls`, which would have refused it."""
    watched = Watched(pki)
    pki.issuer.revocations.revoke(INTERNAL, [RevocationTarget.of(watched.leaf)], Reason.UNSPECIFIED)
    watched.path.write_bytes(current_list(pki.issuer))
    watched.ticks = 1
    assert watched.peers.look() == 1
    watched.path.write_bytes(BAD[kind](pki, tmp_path))
    for watched.ticks in (2.0, 3.0):
        assert watched.peers.look() == 1
    with pytest.raises(PeerRefused, match="was revoked"):
        watched.peers.check(watched.leaf)
    assert caplog.text.count("stay in use") == 1, "said once for one bad file"
    with pytest.raises(StoreError, match="no usable revocation list"):
        TlsIdentity(watched.path.parent)


async def test_a_crl_stays_in_force_after_its_file_is_removed(pki: TestPki, start_server: StartServer) -> None:
    server = await start_server()
    bad = pki.identity(TASKMANAGER)
    revoke(pki, bad, server.identity)
    await until(lambda: server.identity.revoked_peers.look() == 1, "the list is not noticed")
    (server.identity.directory / CRL_FILE).unlink()
    await assert_refused(server.host, server.port, bad.client_context(POLICY))


def test_an_expired_crl_is_tolerated_for_a_grace_period_and_then_every_peer_is_refused(pki: TestPki) -> None:
    pki.issuer.revocations.refresh(INTERNAL)
    watched = Watched(pki)
    watched.peers.check(watched.leaf)
    end = dt.timedelta(hours=pki.config.crl_hours)
    watched.now += end + EXPIRY_GRACE / 2
    watched.peers.check(watched.leaf)
    watched.now += EXPIRY_GRACE
    with pytest.raises(PeerRefused, match=r"expired at .* it is unknown"):
        watched.peers.check(watched.leaf)
    issuer = LocalIssuer(pki.home, pki.config, clock=lambda: watched.now)
    issuer.revocations.refresh(INTERNAL)
    watched.path.write_bytes(current_list(issuer))
    watched.ticks += 1
    watched.peers.check(watched.leaf)


def test_the_crl_file_is_checked_at_most_once_a_second(pki: TestPki) -> None:
    watched = Watched(pki)
    watched.path.write_bytes(_refreshed(pki.issuer, INTERNAL))
    watched.ticks = 0.9
    assert watched.peers.look() == 0
    watched.ticks = 1.0
    assert watched.peers.look() == 1


def test_an_older_crl_of_the_same_authority_is_ignored(pki: TestPki) -> None:
    older = _refreshed(pki.issuer, INTERNAL)
    watched = Watched(pki)
    leaf = watched.leaf
    pki.issuer.revocations.revoke(INTERNAL, [RevocationTarget.of(leaf)], Reason.UNSPECIFIED)
    for content in (current_list(pki.issuer), older):
        watched.path.write_bytes(content)
        watched.ticks += 1
        with pytest.raises(PeerRefused, match=r"was revoked at .*\(unspecified\)"):
            watched.peers.check(leaf)
