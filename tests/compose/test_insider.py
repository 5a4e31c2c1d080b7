"""``sluice audit --insider`` of the running containers: what a job can reach from its sandbox."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from sluice.audit.insider import Place
from tests.compose.engine import JOB_SECONDS, Stack, sluice

pytestmark = pytest.mark.timeout(1800)
LEAST_ATTEMPTS = 50
"""From each place."""


def test_a_hostile_job_reaches_nothing_in_any_container(stack: Stack) -> None:
    done = sluice(
        *("audit", "--insider", "--json", "--fail-on", "info"),
        *("--compose", stack.directory, "--project", stack.name),
        *("--server", f"https://localhost:{stack.port}", "--ca", stack.directory / "edge.pem"),
        *("--token-file", stack.directory / "token"),
        check=False,
        timeout=2 * JOB_SECONDS,
    )

    assert done.stdout, done.stderr
    report = json.loads(done.stdout)
    rows = {(each["check"], each["listener"]): each for each in report["results"]}
    assert [f"{key}: {each['seen']}" for key, each in rows.items() if each["outcome"] == "finding"] == []
    assert done.returncode == 0, done.stderr
    refused = Counter(each["listener"] for each in report["results"] if each["outcome"] == "passed")
    assert all(refused[place] >= LEAST_ATTEMPTS for place in Place), refused
