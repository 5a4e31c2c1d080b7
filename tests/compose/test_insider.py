"""``sluice audit --insider`` of the running containers: a hostile job in a TaskManager's container reaches nothing."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from sluice.audit.insider import Place
from tests.compose.engine import Stack

pytestmark = pytest.mark.timeout(1200)
SECONDS = 900
LEAST_ATTEMPTS = 60
KNOWN = {"SOC-11"}
"""Of severity info: the jobs of a container share its network, whose tables name unix sockets and ports."""


def test_a_hostile_job_reaches_nothing_from_its_box(stack: Stack) -> None:
    done = stack.client(
        *("audit", "--insider", "--compose", stack.directory, "--project", stack.name, "--json"),
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode in {0, 1}, done.stderr
    results = json.loads(done.stdout)["results"]
    found = [each for each in results if each["outcome"] == "finding" and each["check"] not in KNOWN]
    assert not found, "\n".join(f"{each['check']} {each['listener']}: {each['done']}: {each['seen']}" for each in found)
    assert done.returncode == 0
    passed = Counter(each["listener"] for each in results if each["outcome"] == "passed")
    assert all(passed[place] >= LEAST_ATTEMPTS for place in Place), passed
