"""The insider audit of real clusters: many findings without isolation, none with a sandbox."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

from sluice.audit.insider import Place
from tests.insider.conftest import StartCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

LEAST_ATTEMPTS = 60
LEAST_FINDINGS = 20
USERS = [False, True] if os.geteuid() == 0 else [True]
"""Whether as an ordinary user."""


def _counts(report: Any, outcome: str) -> Counter[str]:
    return Counter(each["listener"] for each in report["results"] if each["outcome"] == outcome)


def _told(report: Any, outcome: str) -> str:
    rows = [each for each in report["results"] if each["outcome"] == outcome]
    return "\n".join(f"{each['check']} {each['listener']}: {each['done']}: {each['seen']}" for each in rows)


def test_dozens_of_insider_attempts_succeed_without_isolation(start_cluster: StartCluster) -> None:
    """This proves that the attempts are able to fail the audit."""
    cluster = start_cluster("none")
    code, report = cluster.audit()
    assert code == 1
    findings = _counts(report, "finding")
    assert all(findings[place] >= LEAST_FINDINGS for place in Place), _told(report, "not examined")


@pytest.mark.parametrize("ordinary", USERS, ids=lambda ordinary: "ordinary user" if ordinary else "root")
def test_no_insider_attempt_succeeds_in_the_sandbox(start_cluster: StartCluster, ordinary: bool) -> None:
    cluster = start_cluster("sandbox", ordinary=ordinary)
    code, report = cluster.audit()
    assert not _counts(report, "finding"), _told(report, "finding")
    assert code == 0
    passed = _counts(report, "passed")
    assert all(passed[place] >= LEAST_ATTEMPTS for place in Place), _told(report, "not examined")
    assert not any("broke" in each["seen"] or "made wrongly" in each["seen"] for each in report["results"])
