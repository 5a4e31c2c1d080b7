"""A real JobManager admits clients that it must refuse.

The audit of the whole cluster finds that, and nothing else.
"""

from __future__ import annotations

import pytest

from sluice.audit.catalogue import CHECKS
from tests.system.audit.broken_cluster import QUICK, BrokenCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

Findings = set[tuple[str, str]]


def test_an_intact_cluster_has_no_findings(broken: BrokenCluster) -> None:
    assert broken.findings(CHECKS, intrusive=True) == set()


@pytest.mark.parametrize(
    ("weakness", "expected"),
    [
        ("plaintext", {("rpc", "TLS-01")}),
        ("no client certificates", {("rpc", "MTL-01")}),
        ("optional client certificates", {("rpc", "MTL-02")}),
        ("self-signed clients", {("rpc", "MTL-03")}),
        ("foreign authorities", {("rpc", "MTL-04")}),
        ("authorities by name", {("rpc", "MTL-05")}),
        ("incomplete chains", {("rpc", "MTL-06")}),
        ("expired clients", {("rpc", "MTL-11")}),
        ("clients of tomorrow", {("rpc", "MTL-12")}),
        ("wrong usage", {("rpc", "MTL-14")}),
        ("every role", {("rpc", "MTL-15")}),
        ("edge certificates", {("rpc", "MTL-17")}),
        ("foreign trust domains", {("rpc", "MTL-19")}),
        ("first of two identities", {("rpc", "MTL-20"), ("blob", "MTL-20")}),
        ("leaves that sign", {("rpc", "MTL-21")}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_weak_admission_gives_exactly_its_own_finding(
    weakness: str, expected: Findings, broken: BrokenCluster
) -> None:
    broken.break_only(jobmanager=weakness)
    assert broken.findings() == expected


def test_a_listener_that_ignores_revocation_is_found(broken: BrokenCluster) -> None:
    broken.break_only(jobmanager="no revocation")
    assert broken.findings(QUICK) == {("rpc", "MTL-13")}
