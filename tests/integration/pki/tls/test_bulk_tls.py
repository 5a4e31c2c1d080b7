"""Both TLS engines of the bulk streams carry the same data and refuse the same peers, on real sockets."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from OpenSSL.crypto import X509

from sluice.core.clock import utc_now
from sluice.core.errors import PeerRefused, PkiError
from sluice.pki.channels import Channel, client_policy, server_policy
from sluice.pki.identities.directory import read_certificates
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.crl_files import install_crls
from sluice.pki.revocation.store import RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.bulk import (
    BulkStream,
    BulkTls,
    Engine,
    StreamBroken,
)
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509.profiles import AuthorityKind
from tests.hostile import HOSTILE_CLIENTS, TRUST_DOMAIN, Hostile, TestPki

JOB = "a" * 32
WORKER = SpiffeId.process(TRUST_DOMAIN, Role.SHUFFLE_WORKER, "worker-1")
EXECUTOR = SpiffeId.executor(TRUST_DOMAIN, JOB, 1)
ENGINES = [pytest.param(engine, id=engine) for engine in Engine]
PAIRS = [pytest.param(ours, theirs, id=f"{ours}-{theirs}") for ours in Engine for theirs in Engine]
DEADLINE_SECONDS = 20.0


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> TestPki:
    return TestPki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="module")
def worker(pki: TestPki) -> TlsIdentity:
    return pki.identity(WORKER)


@pytest.fixture(scope="module")
def executor(pki: TestPki) -> TlsIdentity:
    return pki.identity(EXECUTOR)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        ours = socket.create_connection(listening.getsockname())
        theirs, _ = listening.accept()
    return ours, theirs


def acceptor(worker: TlsIdentity, engine: Engine) -> BulkTls:
    return BulkTls(worker, client_policy(Channel.DATA, TRUST_DOMAIN), serving=True, engine=engine)


def connector(executor: TlsIdentity, engine: Engine, *, name: str = "") -> BulkTls:
    policy = server_policy(Channel.DATA, TRUST_DOMAIN, role=Role.SHUFFLE_WORKER, name=name)
    return BulkTls(executor, policy, serving=False, engine=engine)


@contextlib.contextmanager
def connected(pool: ThreadPoolExecutor, server: BulkTls, client: BulkTls) -> Iterator[tuple[BulkStream, BulkStream]]:
    ours, theirs = pair()
    accepting: Future[BulkStream] = pool.submit(server.handshake, ours)
    client_stream = client.handshake(theirs)
    server_stream = accepting.result(DEADLINE_SECONDS)
    try:
        yield server_stream, client_stream
    finally:
        client_stream.close()
        server_stream.close()


@pytest.mark.parametrize(("ours", "theirs"), PAIRS)
def test_data_pass_unchanged_in_both_directions(
    worker: TlsIdentity, executor: TlsIdentity, pool: ThreadPoolExecutor, ours: Engine, theirs: Engine
) -> None:
    sent = os.urandom(3_000_001)
    with connected(pool, acceptor(worker, ours), connector(executor, theirs)) as (server, client):
        assert server.peer == EXECUTOR
        assert client.peer == WORKER
        for reader, writer in ((server, client), (client, server)):
            writing = pool.submit(writer.write_all, sent)
            received = bytearray(len(sent))
            view = memoryview(received)
            assert reader.read_exactly(view[:10])
            assert reader.readable()
            assert reader.read_exactly(view[10:])
            writing.result(DEADLINE_SECONDS)
            assert received == sent
            assert not reader.readable()


@pytest.mark.parametrize("engine", ENGINES)
def test_the_end_of_a_stream_is_an_error_only_within_a_message(
    worker: TlsIdentity, executor: TlsIdentity, pool: ThreadPoolExecutor, engine: Engine
) -> None:
    buffer = memoryview(bytearray(100))
    with connected(pool, acceptor(worker, engine), connector(executor, engine)) as (server, client):
        client.close()
        assert server.readable()
        assert not server.read_exactly(buffer)
    with connected(pool, acceptor(worker, engine), connector(executor, engine)) as (server, client):
        client.write_all(bytes(50))
        client.close()
        with pytest.raises(StreamBroken, match="middle"):
            server.read_exactly(buffer)


@pytest.mark.parametrize("engine", ENGINES)
def test_another_thread_can_abort_a_blocked_read_and_a_blocked_write(
    worker: TlsIdentity, executor: TlsIdentity, pool: ThreadPoolExecutor, engine: Engine
) -> None:
    with connected(pool, acceptor(worker, engine), connector(executor, engine)) as (server, _client):
        reading = pool.submit(server.read_exactly, memoryview(bytearray(1)))
        server.abort()
        assert reading.result(DEADLINE_SECONDS) is False
    with connected(pool, acceptor(worker, engine), connector(executor, engine)) as (server, _client):
        timer = threading.Timer(0.05, server.abort)
        timer.start()
        with pytest.raises(StreamBroken):
            server.write_all(bytes(64 << 20))
        timer.join()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", HOSTILE_CLIENTS)
def test_hostile_clients_are_refused(
    pki: TestPki, worker: TlsIdentity, pool: ThreadPoolExecutor, case: Hostile, engine: Engine
) -> None:
    hostile = pki.hostile(case, pretending=EXECUTOR)
    ours, theirs = pair()
    accepting = pool.submit(acceptor(worker, engine).handshake, ours)
    with contextlib.suppress(OSError), hostile.client_context().wrap_socket(theirs) as client:
        client.recv(1)
    with pytest.raises(PkiError):
        accepting.result(DEADLINE_SECONDS)
    theirs.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_that_knows_tls_1_2_only_is_refused(
    pki: TestPki, worker: TlsIdentity, pool: ThreadPoolExecutor, engine: Engine
) -> None:
    hostile = pki.hostile(Hostile.NO_CERTIFICATE, pretending=EXECUTOR)
    ours, theirs = pair()
    accepting = pool.submit(acceptor(worker, engine).handshake, ours)
    with contextlib.suppress(OSError), hostile.client_context(tls12=True).wrap_socket(theirs):
        pass
    with pytest.raises(StreamBroken):
        accepting.result(DEADLINE_SECONDS)
    theirs.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_process_that_may_not_connect_on_the_data_channel_is_refused(
    pki: TestPki, worker: TlsIdentity, pool: ThreadPoolExecutor, engine: Engine
) -> None:
    ours, theirs = pair()
    accepting = pool.submit(acceptor(worker, engine).handshake, ours)
    stream = connector(pki.process(Role.TASKMANAGER), engine).handshake(theirs)
    with pytest.raises(PeerRefused, match="wrong role"):
        accepting.result(DEADLINE_SECONDS)
    stream.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_of_another_name_is_refused(
    worker: TlsIdentity, executor: TlsIdentity, pool: ThreadPoolExecutor, engine: Engine
) -> None:
    ours, theirs = pair()
    accepting = pool.submit(acceptor(worker, engine).handshake, ours)
    with pytest.raises(PeerRefused, match="worker-2"):
        connector(executor, engine, name="worker-2").handshake(theirs)
    with contextlib.suppress(StreamBroken):  # one engine tells within the handshake, the other after it
        accepting.result(DEADLINE_SECONDS).close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_revoked_client_is_refused_and_its_open_stream_reports_the_revocation(
    pki: TestPki, pool: ThreadPoolExecutor, engine: Engine
) -> None:
    worker = pki.identity(WORKER)
    revoked = pki.identity(SpiffeId.executor(TRUST_DOMAIN, JOB, 7 + list(Engine).index(engine)))
    with connected(pool, acceptor(worker, engine), connector(revoked, engine)) as (server, _client):
        leaf = read_certificates(revoked.directory / "chain.pem")[0]
        target = RevocationTarget.of(leaf, str(revoked.spiffe_id))
        pki.issuer.revocations.revoke(AuthorityKind.INTERNAL, [target], Reason.KEY_COMPROMISE)
        current = pki.issuer.revocations.current(AuthorityKind.INTERNAL)
        assert current is not None
        install_crls(worker.directory, current.pem, utc_now())
        again = TlsIdentity(worker.directory)
        assert "revoked" in server.revocation(again)
    ours, theirs = pair()
    accepting = pool.submit(acceptor(again, engine).handshake, ours)
    stream = connector(revoked, engine).handshake(theirs)
    with pytest.raises(PeerRefused, match="revoked"):
        accepting.result(DEADLINE_SECONDS)
    stream.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_renewed_certificate_is_shown_from_the_next_connection_on(
    pki: TestPki, executor: TlsIdentity, pool: ThreadPoolExecutor, engine: Engine
) -> None:
    directory = pki.directory(WORKER, lifetime=dt.timedelta(hours=2))
    worker = TlsIdentity(directory)
    server = acceptor(worker, engine)
    serials = []
    for _ in range(2):
        with connected(pool, server, connector(executor, engine)) as (_server, client):
            serials.append(client._certificate.serial)
        pki.issuer.issue_to(directory, WORKER, dns=["localhost"], ips=["127.0.0.1"])
    assert serials[0] != serials[1]


def test_the_fastest_cipher_suite_is_chosen(
    worker: TlsIdentity, executor: TlsIdentity, pool: ThreadPoolExecutor
) -> None:
    ours, theirs = pair()
    accepting = pool.submit(acceptor(worker, Engine.NATIVE).handshake, ours)
    context = executor.client_context(server_policy(Channel.DATA, TRUST_DOMAIN))
    with context.wrap_socket(theirs) as client:
        cipher = client.cipher()
        assert cipher is not None
        assert cipher[0] == "TLS_AES_128_GCM_SHA256"
        accepting.result(DEADLINE_SECONDS).close()


def test_an_unreadable_certificate_is_refused_in_the_thread_of_its_handshake(
    worker: TlsIdentity, executor: TlsIdentity, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(_: X509) -> None:
        raise ValueError("no such thing")

    ours, theirs = pair()
    connecting = pool.submit(connector(executor, Engine.STANDARD).handshake, theirs)
    with monkeypatch.context() as patched:
        patched.setattr(X509, "to_cryptography", damaged)
        with pytest.raises(PeerRefused, match="cannot be read"):
            acceptor(worker, Engine.NATIVE).handshake(ours)
    with contextlib.suppress(PkiError):
        connecting.result(DEADLINE_SECONDS).close()
