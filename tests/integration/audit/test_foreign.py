"""Audits foreign servers as their administrators would.

It uses real handshakes, `--targets` and openssl.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.audit.model import Kind, Listener, Severity
from sluice.cli.main import app
from tests.free_ports import free_ports
from tests.integration.audit.conftest import OPTIONS, audited, found, only
from tests.integration.programs.ports import running, until
from tests.weak_servers import Handler, drain, http_answer, serving

QUICKLY = ("--handshake-limit", "0.5", "--json")
NGINX_REFUSAL = "<html><body>400 The plain HTTP request was sent to HTTPS port</body></html>"


def openssl(*arguments: str | Path) -> None:
    """Run the openssl command; fails if the command fails."""
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def self_signed(directory: Path, *options: str) -> Path:
    """Create key.pem and cert.pem with `openssl req -x509`, as in manuals; returns the path of cert.pem."""
    certificate = directory / "cert.pem"
    key = ("-newkey", "rsa:2048", "-nodes", "-keyout", directory / "key.pem")
    openssl("req", "-x509", *key, "-out", certificate, "-days", "30", "-subj", "/CN=spark.example", *options)
    return certificate


@contextlib.contextmanager
def s_server(directory: Path, *options: str | Path) -> Iterator[int]:
    """Run `openssl s_server` within the block; yields its port."""
    (port,) = free_ports(1)
    argv = ["openssl", "s_server", "-accept", f"127.0.0.1:{port}", "-quiet", *options]
    with running(argv, directory / "server.log", {"PATH": "/usr/bin:/bin"}):

        def listens() -> bool:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
                return True
            return False

        until(listens, (directory / "server.log").read_text, 20)
        yield port


def examined(directory: Path, port: int, **settings: str) -> dict[str, dict[str, Any]]:
    """Run `sluice audit --targets` on a port; returns the results by check."""
    target = {"name": "theirs", "host": "127.0.0.1", "expected": "server", **settings}
    lines = [f"{name} = {json.dumps(value)}" for name, value in target.items()]
    (directory / "targets.toml").write_text("\n".join(["[[target]]", f"port = {port}", *lines]))
    done = CliRunner().invoke(app, ["audit", "--targets", str(directory / "targets.toml"), *QUICKLY])
    assert done.stdout, done.output
    return {result["check"]: result for result in json.loads(done.stdout)["results"]}


def findings(results: dict[str, dict[str, Any]]) -> dict[str, str]:
    """Return the severity of each finding, by check; ignores handshake limits, which test servers lack."""
    return {
        check: result["severity"]
        for check, result in results.items()
        if result["outcome"] == "finding" and check not in {"TLS-11", "TLS-12", "TLS-17"}
    }


def test_an_anonymous_ecdh_server_is_a_critical_finding_and_not_mistaken_for_plaintext(tmp_path: Path) -> None:
    with s_server(tmp_path, "-nocert", "-tls1_2", "-cipher", "aNULL:!eNULL:@SECLEVEL=0") as port:
        results = examined(tmp_path, port)
    assert findings(results)["TLS-19"] == Severity.CRITICAL
    assert "without authentication: TLS_" in results["TLS-19"]["seen"]
    for suite in ("TLS_ECDH_anon_WITH_AES_256_CBC_SHA", "TLS_DH_anon_WITH_AES_256_GCM_SHA384"):
        assert suite in results["TLS-19"]["seen"]
    assert "TLS-01" not in findings(results)
    assert results["CRT-10"]["seen"] == "the listener shows no certificate"


def test_a_server_that_prefers_anonymous_suites_is_still_asked_for_its_certificate(tmp_path: Path) -> None:
    self_signed(tmp_path, "-sha1")
    identity = ("-cert", tmp_path / "cert.pem", "-key", tmp_path / "key.pem")
    with s_server(tmp_path, *identity, "-tls1_2", "-serverpref", "-cipher", "aNULL:ALL:@SECLEVEL=0") as port:
        results = examined(tmp_path, port, server_name="spark.example")
    assert findings(results).items() >= {"TLS-19": "critical", "CRT-05": "high", "CRT-09": "high"}.items()


def test_a_self_signed_sha1_certificate_for_another_name_gives_a_finding_for_each_flaw(tmp_path: Path) -> None:
    self_signed(tmp_path, "-sha1", "-addext", "subjectAltName=DNS:other.example")
    identity = ("-cert", tmp_path / "cert.pem", "-key", tmp_path / "key.pem")
    with s_server(tmp_path, *identity, "-tls1_3", "-num_tickets", "0") as port:
        results = examined(tmp_path, port, server_name="spark.example")
    assert findings(results) == {"CRT-05": "high", "CRT-07": "low", "CRT-09": "high", "CRT-10": "high"}
    assert "valid for other.example only; its common name, 'spark.example', does not count" in results["CRT-10"]["seen"]


def test_a_self_signed_certificate_that_ca_file_names_is_trusted(tmp_path: Path) -> None:
    certificate = self_signed(
        tmp_path, "-addext", "subjectAltName=DNS:spark.example,IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"
    )
    identity = ("-cert", certificate, "-key", tmp_path / "key.pem")
    with s_server(tmp_path, *identity, "-num_tickets", "0", "-tls1_3") as port:
        for name in ("spark.example", "127.0.0.1"):
            assert findings(examined(tmp_path, port, server_name=name, ca_file="cert.pem")) == {}
        mutual = examined(tmp_path, port, ca_file="cert.pem", expected="mutual")
    assert findings(mutual) == {"MTL-01": "critical"}  # for whoever says that it is to be mutual
    assert not {check for check in mutual if check >= "MTL-10" and check.startswith("MTL")}


def test_a_stock_server_with_tls_1_2_and_tickets_has_only_info_findings(tmp_path: Path) -> None:
    certificate = self_signed(
        tmp_path, "-addext", "subjectAltName=DNS:spark.example", "-addext", "basicConstraints=CA:FALSE"
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE+AESGCM")
    context.load_cert_chain(certificate, tmp_path / "key.pem")
    with serving(context=context) as (_, port):
        results = examined(tmp_path, port, server_name="spark.example", ca_file="cert.pem")
    assert set(findings(results).values()) <= {"info"}
    assert findings(results)["TLS-04"] == "info"


def test_an_unreachable_target_is_reported_and_no_check_passes(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    results = examined(tmp_path, port)
    assert findings(results) == {"LSN-03": "high"}
    assert {result["outcome"] for result in results.values()} == {"finding", "not examined"}


def both(plaintext: Handler, certificate: Path, key: Path) -> Handler:
    """Return a handler that serves TLS clients over TLS and all others with ``plaintext``, on one port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def handle(connection: socket.socket) -> None:
        if connection.recv(1, socket.MSG_PEEK) == b"\x16":
            with context.wrap_socket(connection, server_side=True) as secured:
                drain(secured)
        else:
            plaintext(connection)

    return handle


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        pytest.param("400 Bad Request", NGINX_REFUSAL, set(), id="nginx"),
        pytest.param("400 Bad Request", "Client sent an HTTP request to an HTTPS server.\n", set(), id="Go"),
        pytest.param("400 Bad Request", "missing parameter", {"TLS-01"}, id="a service that asks for something else"),
        pytest.param("200 OK", NGINX_REFUSAL, {"TLS-01"}, id="a page that quotes nginx"),
        pytest.param("404 Not Found", "", {"TLS-01"}, id="a service without that page"),
    ],
)
def test_only_an_http_answer_that_demands_tls_is_not_a_plaintext_finding(
    status: str, body: str, expected: set[str], tmp_path: Path
) -> None:
    certificate = self_signed(tmp_path)
    with serving(both(http_answer(status, body=body), certificate, tmp_path / "key.pem")) as (host, port):
        listener = Listener(name="x", kind=Kind.SERVER, host=host, port=port, foreign=True)
        assert found(audited(listener, checks=only("TLS-01"), options=OPTIONS)) == expected
