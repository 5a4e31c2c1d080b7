"""A JobManager that speaks, presents or listens as it must not: the audit finds that and nothing else."""

from __future__ import annotations

import pytest

from sluice.audit.catalogue import CHECKS
from tests.system.audit.broken_cluster import BrokenCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

Findings = set[tuple[str, str]]


@pytest.mark.parametrize(
    ("weakness", "expected"),
    [
        # what is spoken
        ("TLS 1.2 only", {("rpc", "TLS-02")}),
        ("TLS 1.2 with optional client certificates", {("rpc", "TLS-02"), ("rpc", "MTL-02")}),
        ("TLS 1.2 with renegotiation", {("rpc", "TLS-02"), ("rpc", "TLS-18")}),
        ("weak suite", {("rpc", "TLS-05")}),
        ("compression", {("rpc", "TLS-07")}),
        ("session tickets", {("rpc", "TLS-09")}),
        ("early data", {("rpc", "TLS-09"), ("rpc", "TLS-10")}),
        ("any protocol", {("rpc", "TLS-14"), ("blob", "TLS-14")}),
        # what is shown
        ("leaf alone", {("rpc", "CRT-06")}),
        ("identity of another role", {("blob", "CRT-08")}),
        ("self-signed server", {("rpc", "CRT-09")}),
        # where it listens
        ("every interface", {("rpc", "LSN-02")}),
        ("undeclared port", {("undeclared", "LSN-01")}),
        ("undeclared UDP port", {("undeclared", "LSN-01")}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_weak_listener_gives_exactly_its_own_finding(
    weakness: str, expected: Findings, broken: BrokenCluster
) -> None:
    broken.break_only(jobmanager=weakness)
    assert broken.findings() == expected


@pytest.mark.parametrize(
    ("weakness", "expected"),
    [("endless handshake", {("rpc", "TLS-11")}), ("endless hello", {("rpc", "TLS-12")})],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_listener_without_limits_is_found(weakness: str, expected: Findings, broken: BrokenCluster) -> None:
    broken.break_only(jobmanager=weakness)
    assert broken.findings(CHECKS) == expected
