"""nginx whose plain configuration includes the files of `sluice pki export --for nginx`."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sluice.core.clock import utc_now
from sluice.pki.export.programs.catalogue import Program, export_for
from sluice.pki.identities.directory import read_identity
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.store import RevocationStore, RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import AuthorityKind
from tests.free_ports import free_ports
from tests.hostile import HOSTILE_CLIENTS, TRUST_DOMAIN, Hostile, TestPki
from tests.integration.programs.ports import client_context, exchange, is_open, running, tail, until
from tests.programs.conftest import program

GATEWAY = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "nginx")
TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
UNNOTICED = {
    *(Hostile.NO_EKU, Hostile.WRONG_ROLE, Hostile.TWO_SPIFFE_IDS, Hostile.NO_SPIFFE_ID),
    *(Hostile.FOREIGN_TRUST_DOMAIN, Hostile.AUTHORITY_AS_LEAF),
}
"""What nginx cannot see, for it reads no SAN; our authorities sign none of them but those of other roles."""

FRAME = """\
daemon off;
master_process off;
pid {root}/pid;
error_log stderr info;
events {{}}
http {{
    access_log off;
    client_body_temp_path {root}/body; proxy_temp_path {root}/proxy; fastcgi_temp_path {root}/fastcgi;
    uwsgi_temp_path {root}/uwsgi; scgi_temp_path {root}/scgi;
    include {place}/http.conf;
    server {{
        listen 127.0.0.1:{port} ssl;
        include {place}/server.conf;
        location / {{ return 200 "served"; }}
    }}
}}
"""

Start = Callable[..., int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts nginx with the files in a directory; returns its port."""
    with ExitStack() as stack:

        def run(place: Path) -> int:
            (port,) = free_ports(1)
            root = tmp_path / f"nginx-{port}"
            root.mkdir()
            (root / "nginx.conf").write_text(FRAME.format(root=root, place=place, port=port))
            argv: list[str | Path] = [program("nginx/usr/sbin/nginx"), "-p", root, "-c", root / "nginx.conf"]
            log = root / "log"
            stack.enter_context(running(argv, log))
            until(lambda: is_open(port), lambda: tail(log))
            return port

        yield run


def answer(port: int, context: ssl.SSLContext | None) -> bytes:
    """Return the beginning of nginx's answer."""
    return exchange(port, context, b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")


def test_only_certificates_of_the_authority_are_served(pki: TestPki, start: Start, tmp_path: Path) -> None:
    export_for(Program.NGINX, pki.directory(GATEWAY), tmp_path / "out", now=utc_now())
    port = start(tmp_path / "out")
    good = client_context(pki.directory(TASKMANAGER))
    assert b"served" in answer(port, good), "and its own certificate and name verify"
    for case in HOSTILE_CLIENTS:
        said = answer(port, pki.hostile(case, pretending=TASKMANAGER).client_context())
        assert (b"served" in said) is (case in UNNOTICED), (case, said)
    good.maximum_version = ssl.TLSVersion.TLSv1_2
    assert answer(port, good) == b""
    assert b"served" not in answer(port, None)


def test_only_named_peers_are_served(pki: TestPki, start: Start, tmp_path: Path) -> None:
    domain = f"spiffe://{TRUST_DOMAIN}"
    export_for(
        Program.NGINX,
        pki.directory(GATEWAY),
        tmp_path / "out",
        now=utc_now(),
        peers=[f"{domain}/taskmanager/tm-1", f"{domain}/jobmanager/*"],
    )
    port = start(tmp_path / "out")
    for role, name, admitted in (
        (Role.TASKMANAGER, "tm-1", True),
        (Role.TASKMANAGER, "tm-11", False),
        (Role.TASKMANAGER, "TM-1", False),
        (Role.JOBMANAGER, "any", True),
        (Role.SHUFFLE_MANAGER, "jobmanager", False),
    ):
        context = client_context(pki.directory(SpiffeId.process(TRUST_DOMAIN, role, name)))
        said = answer(port, context)
        assert (b"served" in said) is admitted, (role, name, said)
        assert admitted or said.startswith(b"HTTP/1.1 403")


def test_a_revoked_certificate_is_refused(pki: TestPki, start: Start, tmp_path: Path) -> None:
    staying, leaving = (pki.directory(TASKMANAGER) for _ in range(2))
    revocations = RevocationStore(pki.home.pki, pki.config, clock=utc_now)
    leaf = read_identity(leaving)[0].leaf
    revocations.revoke(AuthorityKind.INTERNAL, [RevocationTarget.of(leaf)], Reason.SUPERSEDED)
    identity = pki.directory(GATEWAY)
    assert (identity / "crl.pem").exists()
    export_for(Program.NGINX, identity, tmp_path / "out", now=utc_now())
    port = start(tmp_path / "out")
    assert b"served" in answer(port, client_context(staying))
    assert answer(port, client_context(leaving)).startswith(b"HTTP/1.1 403")


def test_nginx_with_the_gateways_public_certificate_serves_users_and_refuses_processes(
    pki: TestPki, start: Start, tmp_path: Path
) -> None:
    export_for(Program.NGINX, pki.edge_server(), tmp_path / "out", now=utc_now())
    port = start(tmp_path / "out")
    user = client_context(pki.directory(SpiffeId.process(TRUST_DOMAIN, Role.USER, "ada")))
    assert b"served" in answer(port, user)
    process = client_context(pki.directory(TASKMANAGER))
    process.check_hostname, process.verify_mode = False, ssl.CERT_NONE
    assert answer(port, process).startswith(b"HTTP/1.1 400")


def test_a_session_cannot_be_resumed(pki: TestPki, start: Start, tmp_path: Path) -> None:
    export_for(Program.NGINX, pki.directory(GATEWAY), tmp_path / "out", now=utc_now())
    port = start(tmp_path / "out")
    context = client_context(pki.directory(TASKMANAGER))
    session = None
    for _ in range(2):
        with (
            socket.create_connection(("127.0.0.1", port), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as wrapped,
        ):
            wrapped.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert b"served" in wrapped.recv(65536)
            assert not wrapped.session_reused
            session = wrapped.session
