"""The command against a server that is not the gateway, has no TLS, redirects elsewhere, or is absent."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.command import sluice
from tests.free_ports import free_port
from tests.hostile import TestPki
from tests.outside import OutsideAuthority
from tests.weak_servers import http, serving

TOKEN = "slc_0123456789ab_" + "0" * 64


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> TestPki:
    return TestPki(tmp_path_factory.mktemp("pki"))


def edge(pki: TestPki) -> tuple[ssl.SSLContext, Path]:
    """Return a TLS context like the gateway's, and the certificate of the authority that issued it."""
    directory = pki.edge_server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    return context, pki.home.pki / "authorities" / "edge" / "cert.pem"


def command(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command with an API token and its own home."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    places: dict[str, str | None] = {"XDG_CONFIG_HOME": str(tmp_path), "SLUICE_HOME": str(tmp_path / "home")}
    unset: dict[str, str | None] = dict.fromkeys(("SLUICE_TOKEN", "SLUICE_SERVER", "SLUICE_CA"))
    return sluice(*arguments, "--token-file", token, environment=places | unset)


def test_the_command_sends_nothing_to_a_server_without_tls(tmp_path: Path) -> None:
    received: list[bytes] = []

    def listen(connection: socket.socket) -> None:
        received.append(connection.recv(4096))

    with serving(listen) as (host, port):
        done = command(tmp_path, "jobs", "list", "--server", f"http://{host}:{port}")
    assert (done.returncode, received) == (2, [])
    assert f"'http://{host}:{port}': a gateway is reached over https alone" in done.stderr


def test_the_command_does_not_send_its_credential_along_a_redirect(pki: TestPki, tmp_path: Path) -> None:
    context, ca = edge(pki)
    elsewhere: list[Mapping[str, str]] = []

    def note(_: str, __: str, headers: Mapping[str, str]) -> tuple[str, str, str]:
        elsewhere.append(headers)
        return "200 OK", "", "{}"

    for tls in (None, context):
        with serving(http(note), tls) as (host, port):
            location = f"{'http' if tls is None else 'https'}://{host}:{port}/v1/jobs"
            leads = http(lambda *_: ("307 Temporary Redirect", f"location: {location}\r\n", ""))  # noqa: B023  used at once
            with serving(leads, context) as (_, gateway):
                server = f"https://127.0.0.1:{gateway}"
                done = command(tmp_path, "jobs", "list", "--server", server, "--ca", str(ca))
        assert (done.returncode, elsewhere) == (4, [])
        assert "answered with a redirect" in done.stderr
        assert TOKEN not in done.stderr


@pytest.mark.parametrize("verb", [("jobs", "list"), ("whoami",), ("drain", "tm-1")])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_an_unreachable_gateway_is_reported_in_plain_words(
    pki: TestPki, tmp_path: Path, verb: tuple[str, ...], host: str
) -> None:
    _, ca = edge(pki)
    server = f"https://{host}:{free_port()}"
    done = command(tmp_path, *verb, "--server", server, "--ca", str(ca))
    assert done.returncode == 3
    assert done.stderr.splitlines()[0] == f"error: cannot reach the gateway at {server}: Connection refused"
    assert "object at 0x" not in done.stderr
    assert done.stderr.count(server) == 1


def test_other_connection_failures_are_reported_in_plain_words(pki: TestPki, tmp_path: Path) -> None:
    context, ca = edge(pki)

    def told(server: str, authority: Path = ca) -> str:
        done = command(tmp_path, "jobs", "list", "--server", server, "--ca", str(authority))
        assert done.returncode == 3, done.stderr
        assert "object at 0x" not in done.stderr
        return done.stderr

    def read_once(connection: socket.socket) -> None:
        connection.recv(4096)

    with serving(read_once, context) as (host, port):
        assert "the connection was closed without an answer" in told(f"https://{host}:{port}")
        foreign = OutsideAuthority(tmp_path / "foreign").ca_file
        assert "did not prove to be the gateway: unable to get local issuer" in told(f"https://{host}:{port}", foreign)
    with serving(lambda connection: connection.sendall(b"hello\n")) as (host, port):
        assert "the TLS handshake failed" in told(f"https://{host}:{port}")
    assert "there is no host of this name" in told("https://nowhere.invalid")
