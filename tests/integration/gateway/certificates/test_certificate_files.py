"""A certificate from another authority at the real Envoy.

It is served for the configured names, it is replaced under load, and a bad one is never served.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from sluice.audit import CHECKS, Kind, Listener, Options, Subject, examine
from sluice.audit.model import Outcome
from sluice.cli.audit.commands import shown_by_name
from sluice.core.files import write_public, write_secret
from sluice.core.home import Home
from sluice.gateway.config import EDGE_NAME, GatewayConfig
from sluice.gateway.errors import EdgeCertificateError
from sluice.gateway.principal import AccessRole
from sluice.gateway.service import route_file, run_envoy
from sluice.gateway.xds.status import read_status, status_file
from sluice.pki.authorities import to_pem
from sluice.pki.channels import Channel
from sluice.pki.config import PkiConfig
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.edge_client import edge_client_context
from tests.integration.gateway.conftest import (
    DEADLINE_SECONDS,
    TRUST_DOMAIN,
    BackgroundLoop,
    EdgeAuthority,
    Gateway,
    Reply,
    eventually,
)
from tests.public_authority import DAY, Issued, PublicAuthority

NAME = "sluice.example.com"
POLICY = b'version = 1\n[roles.viewer]\nallow = ["jobs.list"]\n[users]\nada = ["viewer"]\n'
CLIENTS = 2


@pytest.fixture(scope="module")
def authority() -> PublicAuthority:
    return PublicAuthority(dt.datetime.now(dt.UTC) - DAY)


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="slc"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def gateway(
    edge_authority: EdgeAuthority, background: BackgroundLoop, authority: PublicAuthority, directory: Path
) -> Iterator[Gateway]:
    """A gateway with a certificate from another authority."""
    chain, key = authority.issue(NAME).write(directory / "live")
    write_public(directory / "root.pem", to_pem(authority.root))
    config = GatewayConfig(
        port=0,
        server_names=(NAME,),
        certificate_file=str(chain),
        key_file=str(key),
        authorization_timeout=5.0,
        address_requests_per_second=1e6,
        principal_requests_per_second=1e6,
    )
    gateway = Gateway(Home.at(directory / "home"), edge_authority, background, config)
    gateway.start()
    yield gateway
    gateway.stop()


def browser(directory: Path) -> ssl.SSLContext:
    """Return a client context that trusts only the other authority."""
    context = ssl.create_default_context(cafile=str(directory / "root.pem"))
    context.set_alpn_protocols(["http/1.1"])
    return context


@contextlib.contextmanager
def connected(gateway: Gateway, context: ssl.SSLContext, name: str = NAME) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection((gateway.host, gateway.port), timeout=DEADLINE_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=name) as connection,
    ):
        yield connection


def ask(connection: ssl.SSLSocket, token: str | None = None) -> Reply:
    shown = "" if token is None else f"Authorization: Bearer {token}\r\n"
    connection.sendall(f"GET /v1/jobs HTTP/1.1\r\nHost: {NAME}\r\n{shown}\r\n".encode())
    return Gateway.read(connection)


def served(gateway: Gateway, directory: Path) -> int:
    """Return the serial number of the certificate that a browser gets."""
    with connected(gateway, browser(directory)) as connection:
        der = connection.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


def replace(directory: Path, issued: Issued) -> None:
    issued.write(directory / "live")


def test_clients_by_name_get_the_configured_certificate_and_clients_by_address_the_edge_one(
    gateway: Gateway, directory: Path
) -> None:
    token = gateway.token(AccessRole.VIEWER)
    with connected(gateway, browser(directory)) as connection:
        assert ask(connection, token).status == 200
    with connected(gateway, edge_client_context(gateway.authority.certificate_file), "127.0.0.1") as connection:
        assert ask(connection, token).status == 200
    with (
        pytest.raises(ssl.SSLCertVerificationError),
        connected(gateway, edge_client_context(gateway.authority.certificate_file)),
    ):
        pass
    with pytest.raises(ssl.SSLCertVerificationError), connected(gateway, browser(directory), "127.0.0.1"):
        pass


def test_the_configured_certificate_is_replaced_under_load_without_a_failed_request(
    gateway: Gateway, authority: PublicAuthority, directory: Path
) -> None:
    token, ended, problems, answered = gateway.token(AccessRole.VIEWER), threading.Event(), list[str](), list[int]()
    context = browser(directory)

    def client() -> None:
        try:
            with connected(gateway, context) as lasting:
                while not ended.is_set():
                    answered.append(ask(lasting, token).status)
                    with connected(gateway, context) as fresh:
                        answered.append(ask(fresh, token).status)
        except Exception as error:  # noqa: BLE001  it is the test's result
            problems.append(repr(error))

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        for key in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1()), None):
            issued = authority.issue(NAME, key=key)
            replace(directory, issued)
            serial = issued.leaf.serial_number
            eventually(lambda serial=serial: served(gateway, directory) == serial, "the new certificate is not served")  # type: ignore[misc]
            seen = len(answered)
            eventually(lambda seen=seen: problems or len(answered) > seen + CLIENTS, "nothing is answered")  # type: ignore[misc]
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert problems == []
    assert set(answered) == {200}


def test_an_invalid_configured_certificate_is_reported_and_the_old_one_stays_in_use(
    gateway: Gateway, authority: PublicAuthority, directory: Path
) -> None:
    before = served(gateway, directory)
    path = status_file(gateway.home, "envoy")

    def problems() -> str:
        report = read_status(path)
        return " ".join(report.problems) if report else ""

    chain, key = directory / "live" / "fullchain.pem", directory / "live" / "privkey.pem"
    old_chain, old_key = chain.read_bytes(), key.read_bytes()
    replace(directory, authority.issue("other.example.com"))
    eventually(lambda: f"is not for '{NAME}'" in problems(), "the wrong name is not told")
    assert served(gateway, directory) == before
    write_secret(key, old_key)
    write_public(chain, b"nothing")
    eventually(lambda: "no readable PEM certificate" in problems(), "the damaged file is not told")
    assert served(gateway, directory) == before
    write_public(chain, old_chain)
    eventually(lambda: not problems(), "the good files are not told")
    issued = authority.issue(NAME)
    replace(directory, issued)
    eventually(lambda: served(gateway, directory) == issued.leaf.serial_number, "the next one is not served")


def test_user_certificates_are_accepted_only_from_the_edge_authority(
    gateway: Gateway, authority: PublicAuthority, directory: Path
) -> None:
    policy = gateway.home.gateway / "policy.toml"
    write_secret(policy, POLICY)
    pki = PkiConfig(trust_domain=TRUST_DOMAIN)
    issuer = LocalIssuer(gateway.authority.certificate_file.parents[2], pki)
    issuer.issue_to(directory / "ada", SpiffeId.process(TRUST_DOMAIN, Role.USER, "ada"))
    context = browser(directory)
    context.load_cert_chain(directory / "ada" / "chain.pem", directory / "ada" / "key.pem")

    def status() -> int:
        with connected(gateway, context) as connection:
            return ask(connection).status

    eventually(lambda: status() == 200, "the user's certificate is no credential")
    policy.unlink()
    # One of the other authority is no credential, whatever it says.
    stranger = authority.issue("ada")
    chain, key = stranger.write(directory / "stranger")
    context = browser(directory)
    context.load_cert_chain(chain, key)
    with pytest.raises((ssl.SSLError, ConnectionError)), connected(gateway, context) as connection:
        ask(connection)


def test_the_audit_examines_the_configured_certificate_and_finds_nothing(gateway: Gateway) -> None:
    edge = Listener(name="edge", kind=Kind.SERVER, channel=Channel.EDGE, host=gateway.host, port=gateway.port)
    assert list(shown_by_name([edge], GatewayConfig())) == []
    config = GatewayConfig(server_names=(NAME,), certificate_file="/chain", key_file="/key")
    (named,) = shown_by_name([edge], config)
    of_certificate = [check for check in CHECKS if check.id.startswith("CRT-")]
    report = examine("the gateway", [Subject(named, Options())], checks=of_certificate)
    assert [(each.check, each.seen) for each in report.findings()] == []
    passed = {each.check for each in report.results if each.outcome is Outcome.PASSED}
    assert {"CRT-01", "CRT-02", "CRT-03", "CRT-04", "CRT-10"} <= passed


async def test_the_gateway_does_not_start_with_a_certificate_for_another_name(
    short_home: Home, edge_authority: EdgeAuthority, authority: PublicAuthority, tmp_path: Path
) -> None:
    edge_authority.issue(short_home.identity(Role.GATEWAY, EDGE_NAME))
    write_secret(route_file(short_home), b"[]")
    chain, key = authority.issue("other.example.com").write(tmp_path)
    config = GatewayConfig(port=0, server_names=(NAME,), certificate_file=str(chain), key_file=str(key))
    with pytest.raises(EdgeCertificateError, match=r"get a certificate for sluice\.example\.com too"):
        await run_envoy(short_home, config, TRUST_DOMAIN)
    assert not status_file(short_home, "envoy").exists()
