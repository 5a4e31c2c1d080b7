"""Inspecting listeners on real sockets.

The tests use TLS 1.2 and 1.3, with and without an identity, and good and bad chains.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from OpenSSL import SSL
from OpenSSL.crypto import X509StoreFlags

from sluice.core.errors import CertificateRejected
from sluice.core.files import write_secret
from sluice.pki.authorities.signing import to_pem
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.identities.directory import read_identity
from sluice.pki.identities.known_authorities import authorities_of_home
from sluice.pki.inspect.describe import inspect_bytes
from sluice.pki.inspect.live import handshake
from sluice.pki.inspect.live.address import Address
from sluice.pki.inspect.live.handshake import UNCLEAR, Unreachable
from sluice.pki.inspect.live.report import LiveSummary, inspect_live
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.keys import key_to_pem
from sluice.pki.x509.profiles import AuthorityKind
from tests.command import sluice
from tests.hostile import TRUST_DOMAIN, Hostile, TestPki
from tests.integration.pki.conftest import StartServer
from tests.waiting import until

TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
AUTH = SpiffeId.process(TRUST_DOMAIN, Role.AUTH, "auth-1")


async def look(address: Address, **options: Any) -> LiveSummary:
    live = await asyncio.to_thread(inspect_live, address, dt.datetime.now(dt.UTC), **options)
    return live.summary


@asynccontextmanager
async def plain_server(
    context: ssl.SSLContext, path: Path | None = None, greeting: bytes = b""
) -> AsyncIterator[tuple[Address, list[bytes]]]:
    """A server with any context; the list is what clients have sent after the handshake."""
    got: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        data = b""
        with contextlib.suppress(OSError):
            data = await reader.read(100)
        got.append(data)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    if path is not None:
        server: asyncio.Server = await asyncio.start_unix_server(serve, path, ssl=context)
        address = Address(path=str(path))
    else:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        address = Address(*server.sockets[0].getsockname()[:2])
    async with server:
        yield address, got


def server_context(directory: Path, chain: Sequence[x509.Certificate] | None = None) -> ssl.SSLContext:
    """Return a server context for the identity in ``directory``, with another chain if one is given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    file = directory / "chain.pem"
    if chain is not None:
        file = directory / "sent.pem"
        file.write_bytes(to_pem(*chain))
    context.load_cert_chain(file, directory / "key.pem")
    return context


def asking_for_a_client(context: ssl.SSLContext, directory: Path) -> ssl.SSLContext:
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(directory / "ca.pem")
    return context


async def test_inspection_of_a_listener_of_the_home_reports_handshakes_chain_and_identity(
    start_server: StartServer, pki: TestPki
) -> None:
    server = await start_server(alpn=("h2",))
    address = Address(server.host, server.port)
    known = authorities_of_home(pki.home.pki)
    shown = pki.identity(TASKMANAGER).material
    found = await look(address, identity=shown, alpn=("h2",), authorities=known)
    tls13, tls12 = found.handshakes
    assert (tls13.version, tls13.completed, tls13.alpn, tls13.client_certificate) == ("TLS 1.3", True, "h2", True)
    assert tls13.cipher.startswith("TLS_")
    assert tls13.group
    assert tls13.verdict == "accepted"
    assert (tls12.completed, tls12.cipher) == (False, "")
    assert [each.authority for each in found.chain] == [False, True]
    assert found.signed_by.startswith("the home's internal authority")
    assert (found.identity, found.problems) == (str(TASKMANAGER), ())


async def test_a_refusal_after_the_tls_1_3_handshake_is_reported(start_server: StartServer, pki: TestPki) -> None:
    """In TLS 1.3 the client finishes before the server has judged it; only a read shows the refusal."""
    server = await start_server()
    address = Address(server.host, server.port)
    for identity in (None, pki.identity(AUTH).material):
        tls13, _ = (await look(address, identity=identity)).handshakes
        assert tls13.completed
        assert tls13.client_certificate
        assert tls13.verdict.startswith("refused")
    assert server.protocol.admitted == 0


@pytest.mark.parametrize("shown", [True, False], ids=["with-identity", "without"])
async def test_a_tls_1_2_server_that_requires_a_client_certificate_is_inspected(shown: bool, pki: TestPki) -> None:
    directory = pki.directory(TASKMANAGER)
    context = asking_for_a_client(server_context(directory), directory)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with plain_server(context) as (address, _):
        found = await look(address, identity=read_identity(directory)[0] if shown else None)
    tls13, tls12 = found.handshakes
    assert not tls13.completed
    assert tls12.client_certificate
    assert tls12.cipher
    assert tls12.completed is shown
    assert (tls12.verdict == "accepted") is shown
    assert len(found.chain) == 2


async def test_inspection_sends_no_data_and_reports_that_no_client_certificate_was_requested(pki: TestPki) -> None:
    async with plain_server(server_context(pki.directory(TASKMANAGER)), greeting=b"hello") as (address, got):
        found = await look(address)
        await until(lambda: len(got) == 2, "both connections have ended")
    assert [(each.completed, each.client_certificate) for each in found.handshakes] == [(True, False)] * 2
    assert got == [b"", b""]


async def test_inspection_of_a_unix_socket_sends_the_given_server_name_or_none(pki: TestPki, tmp_path: Path) -> None:
    context = server_context(pki.directory(TASKMANAGER))
    names: list[str | None] = []
    context.sni_callback = lambda _socket, name, _context: names.append(name)
    async with plain_server(context, tmp_path / "a.sock") as (address, _):
        assert (await look(address, server_name="worker.example")).server_name == "worker.example"
        await look(address)
    assert names == ["worker.example"] * 2 + [None] * 2


async def test_a_client_certificate_request_without_issuer_names_is_recognized(pki: TestPki) -> None:
    """Python's servers never name the issuers they accept; the request is recognized all the same."""
    directory = pki.directory(TASKMANAGER)
    async with plain_server(asking_for_a_client(server_context(directory), directory)) as (address, _):
        tls13, _ = (await look(address)).handshakes
    assert (tls13.client_certificate, tls13.issuers) == (True, ())
    assert tls13.verdict.startswith("refused")


@pytest.fixture
def talkative(pki: TestPki) -> Iterator[Address]:
    """A server like those written in C.

    It names the authorities it accepts, and sends an alert before it closes the connection.
    """
    material, file = pki.identity(TASKMANAGER).material, pki.directory(TASKMANAGER) / "ca.pem"
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.use_certificate(material.leaf)
    context.add_extra_chain_cert(material.chain[0])
    context.use_privatekey(material.key)
    context.load_client_ca(str(file).encode())
    context.load_verify_locations(str(file))
    context.get_cert_store().set_flags(X509StoreFlags.PARTIAL_CHAIN)  # type: ignore[union-attr]  # it has one
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT)
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = listening.accept()
                with accepted:
                    connection = SSL.Connection(context, accepted)
                    connection.set_accept_state()
                    with contextlib.suppress(SSL.Error):
                        connection.do_handshake()
                        connection.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield Address(*listening.getsockname()[:2])
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(20)


async def test_the_accepted_issuers_and_the_alert_of_a_refusal_are_reported(talkative: Address, pki: TestPki) -> None:
    internal = AuthorityStore(pki.home.pki).certificate(AuthorityKind.INTERNAL).subject.rfc4514_string()
    tls13, tls12 = (await look(talkative)).handshakes
    assert (tls13.issuers, tls12.issuers) == ((internal,), (internal,))
    assert (tls13.completed, tls12.completed) == (True, False)
    assert "certificate required" in tls13.verdict
    assert "alert" in tls12.problem
    shown = pki.identity(TASKMANAGER).material
    for each in (await look(talkative, identity=shown)).handshakes:
        # It does not answer our goodbye, as many do not.
        assert (each.completed, each.verdict) == (True, UNCLEAR)
    foreign = pki.hostile(Hostile.FOREIGN_CA, pretending=TASKMANAGER).directory
    tls13, tls12 = (await look(talkative, identity=read_identity(foreign)[0])).handshakes
    assert "unknown ca" in tls13.verdict
    assert "unknown ca" in tls12.problem


def chain_of(name: str, directory: Path, store: AuthorityStore) -> list[x509.Certificate]:
    material = read_identity(directory)[0]
    root, edge = store.certificate(AuthorityKind.ROOT), store.certificate(AuthorityKind.EDGE)
    return {
        "alone": [material.leaf],
        "order": [material.leaf, root, *material.chain],
        "extra": [material.leaf, *material.chain, edge],
    }[name]


@pytest.mark.parametrize(
    ("name", "codes"),
    [("alone", ["missing-intermediate"]), ("order", ["chain-order"]), ("extra", ["chain-extra"])],
)
async def test_the_chain_is_reported_in_the_order_it_was_sent_with_its_problems(
    name: str, codes: list[str], pki: TestPki
) -> None:
    directory = pki.directory(TASKMANAGER)
    chain = chain_of(name, directory, AuthorityStore(pki.home.pki))
    async with plain_server(server_context(directory, chain)) as (address, _):
        found = await look(address)
    assert [each.subject for each in found.chain] == [each.subject.rfc4514_string() for each in chain]
    assert [each.code for each in found.problems] == codes


@pytest.mark.parametrize(
    ("case", "codes"),
    [
        (Hostile.EXPIRED, ["expired"]),
        (Hostile.NOT_YET_VALID, ["not-yet-valid"]),
        (Hostile.TWO_SPIFFE_IDS, ["spiffe-rules"]),
        (Hostile.WRONG_EKU, ["spiffe-rules"]),
        (Hostile.NO_SPIFFE_ID, ["no-spiffe-id"]),
        (Hostile.SELF_SIGNED, ["self-signed"]),
    ],
)
async def test_certificate_problems_are_reported_and_do_not_end_the_inspection(
    case: Hostile, codes: list[str], pki: TestPki
) -> None:
    directory = pki.hostile(case, pretending=TASKMANAGER).directory
    async with plain_server(server_context(directory)) as (address, _):
        found = await look(address)
    assert [each.code for each in found.problems] == codes
    assert all(each.completed for each in found.handshakes)


@pytest.fixture
def talker() -> Any:
    """A function that starts a server without TLS that sends every client the same bytes repeatedly."""
    listening = socket.create_server(("127.0.0.1", 0))

    def start(answer: bytes, times: int) -> Address:
        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    accepted, _ = listening.accept()
                    with accepted, contextlib.suppress(OSError):
                        for _ in range(times):
                            accepted.sendall(answer)
                        while accepted.recv(4096):
                            pass

        threading.Thread(target=serve, daemon=True).start()
        return Address(*listening.getsockname()[:2])

    yield start
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


StartTalker = Callable[[bytes, int], Address]
# A handshake record (RFC 8446, 5.1) of 4096 bytes of a ServerHello that never ends.
ENDLESS = b"\x16\x03\x03\x10\x00" + b"\x02\xff\xff\xff" + b"\x00" * 4092


@pytest.mark.parametrize(
    ("answer", "times"),
    [(b"SSH-2.0-OpenSSH\r\n", 1), (b"HTTP/1.1 400 Bad Request\r\n\r\n", 1), (ENDLESS, 1000)],
    ids=["ssh", "http", "endless"],
)
def test_a_listener_that_does_not_speak_tls_is_rejected(answer: bytes, times: int, talker: StartTalker) -> None:
    with pytest.raises(CertificateRejected, match="no TLS handshake"):
        inspect_live(talker(answer, times), dt.datetime.now(dt.UTC))


def test_a_silent_listener_is_unreachable_after_a_time_limit(talker: StartTalker) -> None:
    ticks = iter(range(0, 1000, 4))
    with pytest.raises(Unreachable, match="does not answer a TLS handshake"):
        handshake.shake_hands(talker(b"", 0), handshake.Hello(), clock=lambda: float(next(ticks)))


async def test_needs_renewal_checks_the_certificate_of_a_listener(pki: TestPki, start_server: StartServer) -> None:
    """Two servers: one that speaks TLS 1.3 and demands a client certificate, one that knows only TLS 1.2."""
    server = await start_server(alpn=("h2",))
    expired = pki.hostile(Hostile.EXPIRED, pretending=TASKMANAGER).directory
    tls12 = server_context(expired)
    tls12.maximum_version = ssl.TLSVersion.TLSv1_2

    def ask(address: str, *options: str) -> object:
        return sluice("pki", "needs-renewal", address, *options).returncode

    ours = f"{server.host}:{server.port}"
    assert await asyncio.to_thread(ask, ours) == 1
    assert await asyncio.to_thread(ask, ours, "--expires-in", "25h") == 0
    assert await asyncio.to_thread(ask, ours, "--bundle") == 1
    assert await asyncio.to_thread(ask, ours, "--bundle", "--expires-in", "8784h") == 0
    async with plain_server(tls12) as (address, _):
        assert await asyncio.to_thread(ask, f"tls://{address}", "--servername", "worker.example") == 0


def test_inspection_of_a_socket_without_a_listener_exits_with_3(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    done = sluice("pki", "inspect", f"unix:{tmp_path}/none.sock")
    assert done.returncode == 3
    assert "cannot connect to unix:" in done.stderr


async def test_a_certificate_cannot_write_to_the_terminal(
    pki: TestPki, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    directory = pki.directory(TASKMANAGER)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "\x1b[2J\nerror: forged")])
    at = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(at - dt.timedelta(hours=1))
        .not_valid_after(at + dt.timedelta(hours=1))
        .sign(key, hashes.SHA256())
    )
    write_secret(directory / "key.pem", key_to_pem(key))
    async with plain_server(server_context(directory, [certificate])) as (address, _):
        monkeypatch.chdir(tmp_path)
        out = (await asyncio.to_thread(sluice, "pki", "inspect", str(address))).stdout
    assert "\x1b" not in out
    assert "\nerror: forged" not in out
    assert "?[2J" in out


async def test_inspect_command_reports_a_listener_and_a_directory(
    pki: TestPki,
    start_server: StartServer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    server = await start_server()
    shown = pki.directory(TASKMANAGER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLUICE_HOME", str(pki.home.root))

    def run(*arguments: str | Path) -> str:
        done = sluice("pki", "inspect", *arguments)
        assert done.returncode == 0
        return done.stdout

    address = f"tls://{server.host}:{server.port}"
    text = await asyncio.to_thread(run, address, "--identity", shown)
    for expected in ("TLS 1.3   TLS_", "TLS 1.2   not spoken", "accepted", "signed by the home's internal authority"):
        assert expected in text
    document = json.loads(await asyncio.to_thread(run, address, shown, "--json"))
    assert document["listeners"][0]["handshakes"][0]["verdict"].startswith("refused")
    assert document["files"][0]["file"] == str(shown / "chain.pem")
    pem = await asyncio.to_thread(run, address, shown, "--format", "pem")
    assert "PRIVATE" not in pem
    # Two from the listener; leaf and authority, anchor, and the two of the keystore.
    assert len(inspect_bytes(pem.encode(), dt.datetime.now(dt.UTC))) == 7
