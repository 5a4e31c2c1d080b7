"""The modes of egress control on small clusters.

Connections outlive their leader, audit mode allows and records, and off must be set explicitly.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster, without_shuffle
from tests.processes import command_line

from .conftest import ALLOWED, REFUSED, Server, rules, write_policy

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

JOB = f"""
import socket, sys

port = int(sys.argv[1])

def look(name):
    try:
        socket.getaddrinfo(name, port)
        print("FOUND", name, flush=True)
    except OSError as error:
        print("MISSED", name, error, flush=True)

look("{REFUSED}")
with socket.create_connection((sys.argv[2], port), 20) as made:
    made.sendall(bytes(8))  # where no rule says that the server speaks first, the gateway waits for the job
    made.settimeout(None)
    while got := made.recv(100):
        print("GOT", got, flush=True)
        if got == b"again":
            look("during.example.test")
print("ENDED", flush=True)
"""
Start = Callable[[str], LocalCluster]


@pytest.fixture
def start(tmp_path: Path, names: str, server: Server) -> Iterator[Start]:
    """Starts a cluster with these settings of ``[egress]``."""
    running: list[LocalCluster] = []

    def starting(egress: str) -> LocalCluster:
        home = without_shuffle(tmp_path / "home")
        settings = home / "sluice.toml"
        settings.write_text(f'{settings.read_text()}\n[egress]\nnameservers = ["{names}"]\n{egress}\n')
        (home / "gateway").mkdir(mode=0o700)
        write_policy(home, rules(server.port, ALLOWED))
        running.append(start_cluster(home))
        return running[0]

    yield starting
    for each in running:
        each.sluice("down")


def submitted(cluster: LocalCluster, server: Server, host: str, directory: Path) -> str:
    pipeline = directory / "connects.py"
    pipeline.write_text(JOB)
    job_id = cluster.submit(pipeline, str(server.port), host)
    eventually(lambda: "GOT b'hello'" in printed(cluster, job_id) or None, "the job has connected", 120)
    return job_id


def printed(cluster: LocalCluster, job_id: str) -> str:
    return cluster.sluice("jobs", "logs", job_id, "--source", "driver.stdout").stdout


def rows(cluster: LocalCluster, job_id: str) -> dict[str, dict[str, Any]]:
    """Return a job's outgoing connections by host."""
    return {each["host"]: each for each in cluster.json("jobs", "connections", job_id)["egress"]}


def records(cluster: LocalCluster, job_id: str) -> list[dict[str, Any]]:
    """Return the egress records of a job from the audit log."""
    lines = cluster.sluice("audit-log", "tail", "-n", "10000", "--operation", "egress.*", "--json").stdout
    return [each for each in map(json.loads, lines.splitlines()) if each["credential"] == job_id]


def the_jobmanager(cluster: LocalCluster) -> psutil.Process:
    (found,) = (each for each in cluster.processes() if "jobmanager" in command_line(each)[3:7])
    return found


def end(server: Server) -> None:
    for each in server.open:
        each.recv(100)  # what is not read would make a reset of the end
        each.close()


def test_connections_and_rows_outlive_a_change_of_leader(start: Start, server: Server, tmp_path: Path) -> None:
    cluster = start('mode = "enforce"\ngrace = 120.0')
    job_id = submitted(cluster, server, ALLOWED, tmp_path)
    eventually(lambda: {ALLOWED, REFUSED} <= rows(cluster, job_id).keys(), "both are shown", 20)
    assert "JobManager led" not in cluster.sluice("jobs", "connections", job_id).stdout

    before = the_jobmanager(cluster)
    before.send_signal(signal.SIGKILL)
    server.open[-1].sendall(b"again")
    eventually(lambda: f"{job_id}" in cluster.sluice("jobs", "list").stdout or None, "another one leads", 120)
    assert the_jobmanager(cluster).pid != before.pid
    eventually(lambda: "MISSED during.example.test" in printed(cluster, job_id) or None, "the job goes on", 60)
    eventually(lambda: rows(cluster, job_id).get(ALLOWED, {}).get("open"), "what is open is told again", 60)
    # What had ended before is not known here any more, and it says so; the audit log has it.
    assert REFUSED not in rows(cluster, job_id)
    assert "only in the audit log: another JobManager led" in cluster.sluice("jobs", "connections", job_id).stdout

    end(server)
    job = cluster.wait_for_state(job_id, "FINISHED", "FAILED")
    assert (job["state"], job["attempt"]) == ("FINISHED", 1)
    assert "ENDED" in printed(cluster, job_id)

    def all_there() -> bool:
        told = {(each["method"], each["path"]) for each in records(cluster, job_id) if each["event"] == "egress"}
        return told >= {("DNS", REFUSED), ("DNS", "during.example.test"), ("TCP", f"{ALLOWED}:{server.port}")}

    eventually(all_there, "the audit log has all", 30)
    (row,) = (each for each in records(cluster, job_id) if each["event"] == "egress" and each["method"] == "TCP")
    assert (row["decision"], row["detail"]["bytes_down"]) == ("allow", str(len(b"helloagain")))
    assert cluster.json("audit-log", "verify")["verified"] is True


def test_connections_that_end_with_the_taskmanager_are_reported(start: Start, server: Server, tmp_path: Path) -> None:
    cluster = start('mode = "enforce"')
    job_id = submitted(cluster, server, ALLOWED, tmp_path)
    assert cluster.sluice("down").returncode == 0
    assert start_again(cluster).sluice("status").returncode == 0

    def told() -> bool:
        found = [each for each in records(cluster, job_id) if each["event"] == "egress" and each["method"] == "TCP"]
        return any(each["detail"]["bytes_down"] == "5" for each in found)

    eventually(told, "the connection is in the audit log", 60)


def start_again(cluster: LocalCluster) -> LocalCluster:
    return start_cluster(cluster.home)


def test_audit_mode_allows_a_connection_and_records_it(start: Start, server: Server, tmp_path: Path) -> None:
    cluster = start('mode = "audit"')
    job_id = submitted(cluster, server, REFUSED, tmp_path)
    assert f"FOUND {REFUSED}" in printed(cluster, job_id)
    end(server)
    assert cluster.wait_for_state(job_id, "FINISHED", "FAILED")["state"] == "FINISHED"
    eventually(lambda: not rows(cluster, job_id).get(REFUSED, {"open": True})["open"], "its end is shown", 20)
    row = rows(cluster, job_id)[REFUSED]
    assert (row["verdict"], row["reason"], row["bytes_down"]) == ("would be refused", "not_allowed", len(b"hello"))

    def told() -> set[tuple[str, str]]:
        return {(each["event"], each["decision"]) for each in records(cluster, job_id) if REFUSED in each["path"]}

    eventually(lambda: told() >= {("egress", "allow"), ("decision", "allow")}, "the audit log has it", 30)
    (decision,) = (each for each in records(cluster, job_id) if each["event"] == "decision")
    assert decision["reason"] == "audit: would be refused: no rule allows it"


def test_mode_off_allows_everything_records_nothing_and_is_shown_in_the_status(
    start: Start, server: Server, tmp_path: Path
) -> None:
    cluster = start('mode = "off"')
    job_id = submitted(cluster, server, "127.0.0.9", tmp_path)
    assert "egress" in cluster.sluice("status").stdout.lower()
    end(server)
    assert cluster.wait_for_state(job_id, "FINISHED", "FAILED")["state"] == "FINISHED"
    assert rows(cluster, job_id) == {}
    assert records(cluster, job_id) == []
