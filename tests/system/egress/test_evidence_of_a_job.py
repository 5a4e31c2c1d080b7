"""A real job connects, is refused, and loses an open connection when the policy changes.

Everybody concerned is told.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sluice.gateway.authz import DEFAULT_POLICY
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster, without_shuffle

from .conftest import ALLOWED, REFUSED, Server, rules, write_policy

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

JOB = f"""
import socket, sys

port = int(sys.argv[1])
try:
    socket.create_connection(("{REFUSED}", port), 20)
    print("REACHED what is refused", flush=True)
except OSError as error:
    print("REFUSED", type(error).__name__, flush=True)
with socket.create_connection(("{ALLOWED}", port), 20) as made:
    print("GOT", made.recv(100), flush=True)
    try:
        while made.recv(100):
            pass
    except OSError:  # it is disconnected, too; which of both a program sees first is a race
        pass
    print("ENDED", flush=True)
"""


@pytest.fixture
def cluster(tmp_path: Path, names: str, server: Server) -> Iterator[LocalCluster]:
    home = without_shuffle(tmp_path / "home")
    settings = home / "sluice.toml"
    settings.write_text(f'{settings.read_text()}\n[egress]\nmode = "enforce"\nnameservers = ["{names}"]\n')
    (home / "gateway").mkdir(mode=0o700)
    write_policy(home, rules(server.port, ALLOWED))
    running = start_cluster(home)
    yield running
    running.sluice("down")


def test_connections_of_a_job_are_reported_by_every_interface_and_the_audit_log(
    cluster: LocalCluster, server: Server, tmp_path: Path
) -> None:
    pipeline = tmp_path / "connects.py"
    pipeline.write_text(JOB)
    job_id = cluster.submit(pipeline, str(server.port))

    def printed() -> str:
        return cluster.sluice("jobs", "logs", job_id, "--source", "driver.stdout").stdout

    eventually(lambda: "GOT b'hello'" in printed() or None, "the job has connected", 120)
    assert "REFUSED gaierror" in printed(), "a name that the policy does not allow does not exist"

    def rows() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = cluster.json("jobs", "connections", job_id)["egress"]
        return found

    eventually(lambda: len(rows()) >= 2, "both connections are shown", 20)
    verdicts = {row["host"]: (row["verdict"], row["open"]) for row in rows()}
    assert verdicts == {ALLOWED: ("allowed", True), REFUSED: ("refused", False)}

    # The destination is taken out of the policy: the connection that is open ends, and so does the job.
    write_policy(cluster.home, rules(server.port, "other.example.test"))
    eventually(lambda: "ENDED" in printed() or None, "the connection has ended", 20)
    cluster.wait_for_state(job_id, "FINISHED")
    (row,) = [each for each in rows() if each["host"] == ALLOWED]
    assert (row["open"], row["reason"]) == (False, "the policy does not allow it any more")
    assert row["bytes_down"] == len(b"hello")

    # The audit log has it all, signed; and tells whom the changed policy hits.
    records = [
        json.loads(line)
        for line in cluster.sluice("audit-log", "tail", "--operation", "egress.*", "--json").stdout.splitlines()
    ]
    told = {(each["event"], each["decision"], each["path"].partition(":")[0]) for each in records}
    assert {("egress", "allow", ALLOWED), ("egress", "deny", REFUSED), ("decision", "allow", ALLOWED)} <= told
    assert {each["principal"] for each in records} == {"tester"}
    assert cluster.json("audit-log", "verify")["verified"] is True
    policy = tmp_path / "as-before.toml"
    policy.write_text(DEFAULT_POLICY.read_text() + rules(server.port, ALLOWED, REFUSED))
    policy.chmod(0o600)
    replayed = cluster.sluice("policy", "replay", str(policy), "--json")
    assert replayed.returncode == 1, replayed.stderr
    changes = {(each["effect"], each["destination"]) for each in json.loads(replayed.stdout)["changes"]}
    assert ("allowed", REFUSED) in changes
