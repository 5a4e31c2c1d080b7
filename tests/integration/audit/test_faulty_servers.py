"""Faults that no TLS library can be made to produce; the tests use a server of their own for them."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.audit.model import Kind, Outcome
from tests.integration.audit.conftest import OPTIONS, QUICK, audited, found, listener_at, only
from tests.weak_servers import serving
from tests.wire_server import Faulty, compressing

CHECKS = [check for check in QUICK if check.id != "TLS-16" and Kind.SERVER in check.kinds]
"""TLS-16 offers no key share, which this server cannot answer."""


def test_the_test_server_gives_no_finding_by_default(server_directory: Path) -> None:
    with serving(Faulty(server_directory)) as address:
        report = audited(listener_at(address, Kind.SERVER, None), checks=CHECKS)
    assert found(report) == set()
    signed = next(result for result in report.results if result.check == "TLS-15")
    assert "ecdsa_secp256r1_sha256" in signed.seen


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        pytest.param(lambda server: replace(server, scheme=0x0203), {"TLS-15"}, id="signs with SHA-1"),
        pytest.param(lambda server: replace(server, wrong_key=True), {"CRT-01"}, id="signs with another key"),
        pytest.param(lambda server: replace(server, alpn="smtp"), {"TLS-14"}, id="protocol that was not offered"),
        pytest.param(lambda server: replace(server, early_data=0), {"TLS-09"}, id="session ticket"),
        pytest.param(lambda server: replace(server, early_data=16384), {"TLS-09", "TLS-10"}, id="0-RTT"),
    ],
)
def test_each_server_fault_gives_exactly_its_finding(
    fault: Callable[[Faulty], Faulty], expected: set[str], server_directory: Path
) -> None:
    with serving(fault(Faulty(server_directory))) as address:
        listener = listener_at(address, Kind.SERVER, None)
        tickets = only("TLS-09", "TLS-10")  # they must have come by the time that the server speaks
        others = [check for check in CHECKS if check not in tickets]
        unasked = audited(listener, checks=tickets, options=replace(OPTIONS, listen=20.0))
        assert found(unasked) | found(audited(listener, checks=others)) == expected


@pytest.mark.parametrize("check", ["TLS-07", "TLS-08"])
def test_a_server_with_compression_and_insecure_renegotiation_is_found(check: str) -> None:
    patience = replace(OPTIONS, timeout=1.0)  # the server does not finish a handshake
    with serving(compressing) as address:
        assert found(audited(listener_at(address, Kind.SERVER, None), checks=only(check), options=patience)) == {check}


def _cut_off(connection: socket.socket) -> None:
    connection.recv(1 << 12)
    connection.sendall(b"\x16\x03\x03\x00\x40\x02\x00\x00\x30")


def _nonsense(connection: socket.socket) -> None:
    connection.recv(1 << 12)
    connection.sendall(b"\x16\x03\x03\x00\x08\x02\x00\x00\x04\xff\xff\xff\xff")


def _huge(connection: socket.socket) -> None:
    connection.recv(1 << 12)
    connection.sendall(b"\x16\x03\x03\x00\x04\x02\xff\xff\xff")


@pytest.mark.parametrize("answer", [_cut_off, _nonsense, _huge])
def test_a_server_that_sends_nonsense_passes_no_handshake_check(answer: Callable[[socket.socket], None]) -> None:
    with serving(answer) as address:
        report = audited(listener_at(address), checks=only("TLS-02", "MTL-01", "MTL-02", "CRT-01", "CRT-02"))
    assert not [result.check for result in report.results if result.outcome is Outcome.PASSED]
