"""A librdkafka client configured by `sluice pki export --for kafka`.

No package registry of Python or Debian has Kafka's broker. librdkafka's mock broker, which speaks Kafka's
protocol, takes its place, behind a listener that requires and verifies client certificates.
"""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.pki.export.programs.catalogue import Program, export_for
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.peer_identity import certified_identity
from tests.hostile import TRUST_DOMAIN, Hostile, TestPki
from tests.programs.conftest import program

BROKER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "kafka-1")
CLIENT = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
HERE = Path(__file__).resolve().parent


class TlsFrontend:
    """Mutual TLS in front of a plaintext port; notes the identities of its callers."""

    def __init__(self, context: ssl.SSLContext, target: int) -> None:
        self._context = context
        self._target = target
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.callers: list[str] = []
        self.refused = 0
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def close(self) -> None:
        """End all connections, and take no more callers."""
        for each in (self._socket, *self._open):
            _end(each)
        for thread in self._threads:
            thread.join(30)
        for each in (self._socket, *self._open):
            each.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                plain, _ = self._socket.accept()
                self._admit(plain)

    def _admit(self, plain: socket.socket) -> None:
        plain.settimeout(30)
        try:
            caller = self._context.wrap_socket(plain, server_side=True)
        except OSError:
            self.refused += 1
            plain.close()
            return
        self._open.append(caller)
        if der := caller.getpeercert(binary_form=True):
            self.callers.append(str(certified_identity(x509.load_der_x509_certificate(der))))
        behind = socket.create_connection(("127.0.0.1", self._target), timeout=30)
        self._open.append(behind)
        for one, other in ((caller, behind), (behind, caller)):
            self._threads.append(threading.Thread(target=_copy, args=(one, other)))
            self._threads[-1].start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        _end(each)


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)


Open = Callable[[ssl.SSLContext], TlsFrontend]


@pytest.fixture
def open_frontend() -> Iterator[Open]:
    """Opens a frontend to a broker of this test's own."""
    with ExitStack() as stack:

        def open_it(context: ssl.SSLContext) -> TlsFrontend:
            broker = stack.enter_context(
                subprocess.Popen(
                    [program("kafka/bin/python"), HERE / "kafka_broker.py"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    text=True,
                )
            )
            stack.callback(broker.terminate)
            assert broker.stdout is not None
            frontend = TlsFrontend(context, int(broker.stdout.readline()))
            stack.callback(frontend.close)
            return frontend

        yield open_it


def demanding(directory: Path) -> ssl.SSLContext:
    """A server's context that verifies its clients with the anchors in ``directory``."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(directory / "ca.pem"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    return context


def ask(properties: Path, port: int, patience: int = 5) -> str:
    """Return the Kafka client's output; the client waits at most ``patience`` seconds."""
    return subprocess.run(
        [program("kafka/bin/python"), HERE / "kafka_client.py", properties, f"localhost:{port}", str(patience)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def test_the_client_presents_its_identity_and_gets_an_answer(pki: TestPki, open_frontend: Open, tmp_path: Path) -> None:
    export_for(Program.KAFKA, pki.directory(CLIENT), tmp_path / "out", now=utc_now())
    frontend = open_frontend(demanding(pki.directory(BROKER)))
    assert ask(tmp_path / "out" / "librdkafka.properties", frontend.port, 40) == "brokers 1\n"
    assert set(frontend.callers) == {str(CLIENT)}


@pytest.mark.parametrize("case", [Hostile.EDGE_CERTIFICATE, Hostile.FOREIGN_CA, Hostile.SELF_SIGNED, Hostile.EXPIRED])
def test_the_client_refuses_an_impostor(case: Hostile, pki: TestPki, open_frontend: Open, tmp_path: Path) -> None:
    export_for(Program.KAFKA, pki.directory(CLIENT), tmp_path / "out", now=utc_now())
    frontend = open_frontend(pki.hostile(case, pretending=BROKER).server_context())
    said = ask(tmp_path / "out" / "librdkafka.properties", frontend.port)
    assert said.startswith("failed"), said
    assert "certificate verify failed" in said
    assert frontend.refused


def test_the_client_refuses_a_broker_of_another_host_name(pki: TestPki, open_frontend: Open, tmp_path: Path) -> None:
    export_for(Program.KAFKA, pki.directory(CLIENT), tmp_path / "out", now=utc_now())
    nameless = tmp_path / "nameless"
    pki.issuer.issue_to(nameless, BROKER, dns=["broker.example.org"])
    frontend = open_frontend(demanding(nameless))
    assert ask(tmp_path / "out" / "librdkafka.properties", frontend.port).startswith("failed")
    assert not frontend.callers


def test_a_client_of_the_edge_authority_is_refused(pki: TestPki, open_frontend: Open, tmp_path: Path) -> None:
    """The same files, but with the key and chain of a user."""
    export_for(Program.KAFKA, pki.directory(CLIENT), tmp_path / "out", now=utc_now())
    user = pki.directory(SpiffeId.process(TRUST_DOMAIN, Role.USER, "ada"))
    for name in ("key.pem", "chain.pem"):
        (tmp_path / "out" / name).write_bytes((user / name).read_bytes())
    frontend = open_frontend(demanding(pki.directory(BROKER)))
    assert ask(tmp_path / "out" / "librdkafka.properties", frontend.port).startswith("failed")
    assert not frontend.callers
