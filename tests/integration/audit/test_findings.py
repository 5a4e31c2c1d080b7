"""Each weakness gives exactly its finding, and our own listener gives none."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

from audit.model import Kind, Outcome
from tests.integration.audit.conftest import audited, found, listener_at
from tests.weak_servers import drain, http_answer, server_context, serving


def test_our_own_listener_gives_no_finding(honest: tuple[str, int]) -> None:
    report = audited(listener_at(honest))
    assert found(report) == set(), [result for result in report.results if result.outcome is Outcome.FINDING]
    refusals = {result.check for result in report.results if result.outcome is Outcome.PASSED}
    assert {"MTL-01", "MTL-02", "MTL-03", "MTL-04", "MTL-05", "MTL-06"} <= refusals


def test_a_plaintext_port_is_found_and_its_handshakes_are_not_taken_for_refusals() -> None:
    with serving(http_answer("200 OK", body="hello")) as address:
        report = audited(listener_at(address))
    assert "TLS-01" in found(report)
    assert not {result.check for result in report.results if result.outcome is Outcome.PASSED} & {"MTL-02", "MTL-04"}


def test_a_listener_that_speaks_first_in_plaintext_is_found() -> None:
    def greet(connection: socket.socket) -> None:
        connection.sendall(b"220 welcome\r\n")
        drain(connection)

    with serving(greet) as address:
        assert "TLS-01" in found(audited(listener_at(address)))


def test_a_server_that_requests_no_client_certificate_is_found(server_directory: Path) -> None:
    with serving(context=server_context(server_directory, client=ssl.CERT_NONE)) as address:
        assert found(audited(listener_at(address))) == {"MTL-01"}


def test_optional_client_certificates_are_found_by_reading_after_the_handshake(server_directory: Path) -> None:
    with serving(context=server_context(server_directory, client=ssl.CERT_OPTIONAL)) as address:
        assert found(audited(listener_at(address))) == {"MTL-02"}


def test_a_declared_listener_that_is_not_there_is_a_finding_and_nothing_passes() -> None:
    report = audited(listener_at(("127.0.0.1", _closed_port())))
    assert found(report) == {"LSN-03"}
    assert not any(result.outcome is Outcome.PASSED for result in report.results if result.check.startswith("MTL"))


def _closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_a_server_for_everybody_is_not_asked_for_client_certificates(server_directory: Path) -> None:
    with serving(context=server_context(server_directory, client=ssl.CERT_NONE)) as address:
        assert found(audited(listener_at(address, Kind.SERVER))) == set()
