"""Secrets of Spark Connect sessions, and of jobs after a change of leader."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.processes.victims import has_words, patiently
from tests.integration.cluster.conftest import COMMAND, REPOSITORY, LocalCluster, eventually, start_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

NOTEBOOK = Path(__file__).with_name("notebook.py")
JOB = """
import hashlib
from pathlib import Path

print("SEEN", hashlib.sha256(Path("/run/secrets/db").read_bytes()).hexdigest(), flush=True)
"""
VALUES = {"db": secrets.token_bytes(40), "api": secrets.token_bytes(40)}
DIGESTS = {name: hashlib.sha256(value).hexdigest() for name, value in VALUES.items()}


def put(cluster: LocalCluster, name: str) -> None:
    """Store the secret's value, passing it through a pipe only."""
    done = subprocess.run(
        [*COMMAND, "secret", "put", name, "--file", "-"],
        cwd=REPOSITORY,
        env=os.environ | {"SLUICE_HOME": str(cluster.home)},
        input=VALUES[name],
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster with two JobManagers and two secrets, which are not granted to anybody yet."""
    home = tmp_path_factory.mktemp("leaders") / "home"
    home.mkdir()
    (home / "sluice.toml").write_text("[shuffle]\nenabled = false\n[taskmanager]\ncount = 1\nslots = 2\n")
    running = start_cluster(home, "--jobmanagers", "2")
    for name in VALUES:
        put(running, name)
    try:
        yield running
    finally:
        running.sluice("down")


def ask(cluster: LocalCluster) -> list[str]:
    """For both files, the digest that executors see in a query of the tester's session; empty if none."""
    settings = cluster.json("connect")
    token = (cluster.home / "token").read_text().strip()
    done = subprocess.run(
        [sys.executable, str(NOTEBOOK), "/run/secrets/db", "/run/secrets/api"],
        env={**os.environ, **settings["environment"], settings["token_variable"]: token},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("SEEN ")] or [done.stderr[-2000:]]
    found: list[str] = json.loads(line.removeprefix("SEEN "))
    return found


def uses(cluster: LocalCluster, job_id: str) -> set[tuple[str, str, str]]:
    """The job's uses of secrets in the audit log: process, secret, and whether the process sees it."""
    lines = (cluster.home / "gateway" / "audit").glob("*.jsonl")
    records = [json.loads(line) for path in lines for line in path.read_text(encoding="utf-8").splitlines()]
    used = [each["detail"] for each in records if each.get("kind") == "secret.used"]
    return {
        (each["process"].partition(" ")[0], each["secret"], each["shown"]) for each in used if each["job"] == job_id
    }


def test_a_session_keeps_the_secrets_it_was_started_with_under_the_next_leader(cluster: LocalCluster) -> None:
    start = ("connect", "--start", "--secret", "db", "--executor-secret", "api")
    refused = cluster.sluice(*start)
    assert refused.returncode == 1
    assert "there is no secret db for job 'Spark Connect' of tester" in refused.stderr
    for name in VALUES:
        assert cluster.sluice("secret", "grant", name, "--to", "user:tester").returncode == 0
    started = cluster.sluice(*start, timeout=300)
    assert started.returncode == 0, started.stderr
    (session,) = [each for each in cluster.get("/v1/jobs")["jobs"] if each["kind"] == "CONNECT"]
    assert ask(cluster) == ["", DIGESTS["api"]]
    assert uses(cluster, session["id"]) == {
        ("driver", "db", "yes"), ("driver", "api", "yes"), ("executor", "db", "no"), ("executor", "api", "yes")
    }  # fmt: skip
    again = cluster.sluice(*start)
    assert again.returncode == 1
    assert f"sluice jobs cancel {session['id']}" in again.stderr

    def leading() -> str:
        return str(cluster.get("/v1/overview")["jobmanager"].rpartition("/")[2])

    leader = leading()
    (process,) = (each for each in cluster.processes() if has_words(each, ("run", "jobmanager", leader)))
    process.kill()
    eventually(patiently(lambda: leading() != leader), "the other JobManager leads")

    def goes_on() -> Any:
        job = cluster.job(session["id"])
        return job if job["state"] == "RUNNING" else None

    assert eventually(patiently(goes_on), "the session goes on")["attempt"] == 1
    assert ask(cluster) == ["", DIGESTS["api"]]
    pipeline = cluster.home.parent / "uses.py"
    pipeline.write_text(JOB, encoding="utf-8")
    done = cluster.sluice("submit", "--wait", str(pipeline), "--secret", "db", "--executors", "1")
    assert f"SEEN {DIGESTS['db']}" in done.stdout, done.stdout + done.stderr
    assert cluster.sluice("audit-log", "verify").returncode == 0
