"""Spark's UI of ended jobs, through the gateway.

It is rendered from their event logs in a sandbox without a network.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPResponse, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from sluice.client.access import resolve_access
from sluice.core.home import Home
from sluice.gateway.credentials.token_file import create_token
from sluice.pki.tls.edge_client import edge_client_context
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster, without_shuffle
from tests.processes import command_line

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1500)]

SCRIPT = "<script>document.title = 'taken over'</script>"
PIPELINE = f"""
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("ended").getOrCreate()
spark.sparkContext.setJobDescription("{SCRIPT} counting")
print("groups", spark.range(0, 1000, 1, 2).selectExpr("id % 7 AS k").groupBy("k").count().count())
"""
KILLED = """
import os, signal, subprocess
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setJobDescription("before the end")
print(spark.range(100).count())
spark.sparkContext._gateway.jvm.java.lang.Runtime.getRuntime().halt(9)
"""


@dataclass
class Client:
    """A client of the gateway."""

    url: str
    ca_file: Path
    token: str

    def ask(self, path: str) -> tuple[HTTPResponse, str]:
        address = urlsplit(self.url)
        connection = HTTPSConnection(
            str(address.hostname), address.port, timeout=60, context=edge_client_context(self.ca_file)
        )
        try:
            connection.request("GET", path, headers={"authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            return answer, answer.read().decode()
        finally:
            connection.close()

    def page(self, path: str) -> tuple[HTTPResponse, str]:
        """Request ``path`` until the event log has been read; returns that answer."""

        def ready() -> tuple[HTTPResponse, str] | None:
            found = self.ask(path)
            return None if found[0].status in {202, 503} else found

        shown = eventually(ready, path)
        assert shown is not None
        return shown


def client(cluster: LocalCluster, name: str, role: str) -> Client:
    home = Home.at(cluster.home)
    target = resolve_access(home)
    assert target.ca_file is not None
    return Client(target.url, target.ca_file, create_token(home, name=name, role=role))


def history_jvms(cluster: LocalCluster) -> list[psutil.Process]:
    found = []
    for each in cluster.processes():
        try:
            if each.name() == "java" and "HistoryUi" in " ".join(command_line(each)):
                found.append(each)
        except psutil.Error:
            continue
    return found


def run(cluster: LocalCluster, pipeline: Path, text: str, state: str = "FINISHED") -> str:
    pipeline.write_text(text, encoding="utf-8")
    job = cluster.submit(pipeline)
    ended = cluster.wait_for_state(job, "FINISHED", "FAILED", seconds=600)
    assert ended["state"] == state, ended
    eventually(lambda: cluster.get(f"/v1/jobs/{job}/spark-ui")["state"] in {"KEPT", "CUT"}, "an event log")
    return job


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    home = without_shuffle(tmp_path_factory.mktemp("ended") / "home")
    running = start_cluster(home, "--taskmanagers", "1")
    yield running
    running.sluice("down")


@pytest.fixture(scope="module")
def ended(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    return run(cluster, tmp_path_factory.mktemp("p") / "ended.py", PIPELINE)


def test_pages_of_an_ended_job_are_shown_with_a_content_security_policy(cluster: LocalCluster, ended: str) -> None:
    viewer, base = client(cluster, "vera", "viewer"), f"/v1/jobs/{ended}/ui"
    pages = {
        "": "Spark Jobs",
        "/jobs/job?id=0": "Details for Job 0",
        "/stages": "Completed Stages",
        "/stages/stage?id=0&attempt=0": "Details for Stage 0",
        "/executors": "Executors",
        "/environment": "Runtime Information",
        "/SQL": "SQL / DataFrame",
        "/SQL/execution?id=0": "Details for Query 0",
        "/storage": "Storage",
    }
    for path, says in pages.items():
        answer, body = viewer.page(base + path)
        assert (answer.status, says in body) == (200, True), (path, answer.status, body[-3000:])
        policy = str(answer.headers["content-security-policy"])
        assert "default-src 'none'" in policy
        assert "unsafe-inline" not in policy.split("style-src", maxsplit=1)[0]
        assert "set-cookie" not in answer.headers
    assert SCRIPT not in viewer.page(base + "/jobs")[1], "Spark escapes it; the policy would not run it"
    (application,) = json.loads(viewer.page(base + "/api/v1/applications")[1])
    executors = json.loads(viewer.page(f"{base}/api/v1/applications/{application['id']}/allexecutors")[1])
    assert {"driver", "1"} <= {each["id"] for each in executors}
    tasks = json.loads(viewer.page(f"{base}/api/v1/applications/{application['id']}/stages/0/0/taskList")[1])
    assert len(tasks) == 2
    assert all(each["status"] == "SUCCESS" for each in tasks)
    state = cluster.get(f"/v1/jobs/{ended}/spark-ui")
    assert (state["state"], state["path"]) == ("KEPT", base)
    assert state["size"] > 1000
    assert state["kept_until"]


def test_other_users_and_paths_outside_the_ui_of_an_ended_job_are_refused(cluster: LocalCluster, ended: str) -> None:
    base = f"/v1/jobs/{ended}/ui"
    mallory = client(cluster, "mallory", "submitter")
    for path in (base, base + "/jobs", base + "/api/v1/applications", f"/v1/jobs/{ended}/spark-ui"):
        assert mallory.ask(path)[0].status in {403, 404}, path
    viewer = client(cluster, "vic", "viewer")
    for path in (
        "/../../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/../../x",
        "/history",
        "/logPage",
        "/jobs/job/kill?id=0",
        "/api/v1/applications/x/logs",
        "/stages/..%2f..%2fx",
    ):
        answer, body = viewer.page(base + path)
        assert answer.status in {400, 403, 404}, (path, answer.status)
        assert "root:" not in body


def test_the_jvm_has_no_listener_no_network_and_sees_no_secret(cluster: LocalCluster, ended: str) -> None:
    viewer = client(cluster, "val", "viewer")
    assert viewer.page(f"/v1/jobs/{ended}/ui/jobs")[0].status == 200
    (jvm,) = history_jvms(cluster)
    own = Path(f"/proc/{jvm.pid}/ns/net").readlink()
    assert own != Path("/proc/self/ns/net").readlink()
    interfaces = [line.split(":")[0].strip() for line in Path(f"/proc/{jvm.pid}/net/dev").read_text().splitlines()[2:]]
    assert interfaces == ["lo"]
    assert all(
        len(Path(f"/proc/{jvm.pid}/net/{kind}").read_text().splitlines()) == 1 for kind in ("tcp", "tcp6", "udp")
    )
    root = Path(f"/proc/{jvm.pid}/root")
    assert not (root / str(cluster.home / "pki").lstrip("/")).exists()
    audit = cluster.sluice("audit", "--json", timeout=400)
    assert audit.returncode == 0, audit.stdout[-3000:] + audit.stderr
    assert history_jvms(cluster) == [jvm]


def test_the_ui_of_a_job_whose_driver_jvm_was_killed_says_that_the_log_is_incomplete(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    job = run(cluster, tmp_path / "killed.py", KILLED, "FAILED")
    answer, body = client(cluster, "kim", "viewer").page(f"/v1/jobs/{job}/ui/jobs")
    assert answer.status == 200
    assert "before the end" in body


def test_the_next_leader_shows_the_ui_of_an_ended_job(cluster: LocalCluster, ended: str) -> None:
    assert cluster.sluice("down").returncode == 0
    assert not history_orphans(cluster.home)
    again = cluster.sluice("up", "--detach", "--port", "0", "--taskmanagers", "1")
    assert again.returncode == 0, again.stderr
    answer, body = client(cluster, "vega", "viewer").page(f"/v1/jobs/{ended}/ui/jobs/job?id=0")
    assert answer.status == 200
    assert "Details for Job 0" in body
    shown = cluster.sluice("jobs", "show", ended).stdout
    assert f"/v1/jobs/{ended}/ui" in shown


def history_orphans(home: Path) -> list[int]:
    return [
        each.pid
        for each in psutil.process_iter(["cmdline"])
        if "HistoryUi" in " ".join(each.info["cmdline"] or ()) and str(home) in " ".join(each.info["cmdline"])
    ]
