"""Runs real pipelines on a real cluster, through the real gateway."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import certifi
import psutil
import pytest

from tests.integration.cluster import pipelines
from tests.integration.cluster.conftest import REPOSITORY, LocalCluster, eventually
from tests.processes import command_line

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """A function that writes a pipeline to a file and returns the path."""

    def writer(source: str) -> Path:
        path = tmp_path / "pipeline.py"
        path.write_text(source, encoding="utf-8")
        return path

    return writer


def executor_processes(cluster: LocalCluster, job_id: str) -> list[psutil.Process]:
    """Return the processes of a job's executor JVMs."""
    found = []
    for process in cluster.processes():
        command = command_line(process)
        if any("CoarseGrainedExecutorBackend" in word for word in command) and job_id in " ".join(command):
            found.append(process)
    return found


def test_the_inventory_counts_every_certificate_and_every_bad_input(cluster: LocalCluster) -> None:
    bundle = Path(certifi.where()).read_text(encoding="utf-8")
    first = bundle[bundle.index("-----BEGIN") : bundle.index("-----END") + 200].split("-----END CERTIFICATE-----")[0]
    folder = cluster.shared / "input"
    folder.mkdir()
    (folder / "truncated.pem").write_text(first[:400], encoding="utf-8")
    (folder / "empty.pem").write_bytes(b"")
    (folder / "certificate.der").write_bytes(b"\x30\x82\x01\x0a" + bytes(300))
    (folder / "bundle.pem").write_text(bundle, encoding="utf-8")
    done = cluster.sluice(
        "submit",
        "--wait",
        str(REPOSITORY / "pipelines" / "cert_inventory.py"),
        "--",
        "--input",
        str(folder),
        "--format",
        "json",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["certificates"] == bundle.count("-----BEGIN CERTIFICATE-----")
    assert report["bad_inputs"] == 3


def test_a_failing_pipeline_shows_its_traceback_and_exits_1(
    cluster: LocalCluster, write: Callable[[str], Path]
) -> None:
    done = cluster.sluice("submit", "--wait", str(write(pipelines.FAILING)))
    assert done.returncode == 1
    assert "KeyError: 'does-not-exist'" in done.stderr
    assert "in pick" in done.stderr
    assert "Traceback (most recent call last)" in done.stderr


def test_an_error_in_a_udf_is_shown_to_the_caller(cluster: LocalCluster, write: Callable[[str], Path]) -> None:
    done = cluster.sluice("submit", "--wait", str(write(pipelines.FAILING_UDF)))
    assert done.returncode == 1
    assert "cannot parse record" in done.stderr


def test_cancel_ends_the_job_its_driver_and_its_executors(cluster: LocalCluster, write: Callable[[str], Path]) -> None:
    job_id = cluster.submit(write(pipelines.SLOW), "30")
    eventually(lambda: cluster.job(job_id)["progress"]["tasks_running"] > 0, "a running task")
    listed = cluster.json("jobs", "list", "--state", "active", "--owner", "tester", "--limit", "50")["jobs"]
    assert job_id in {each["id"] for each in listed}
    # A part of the id is enough; what is printed is the whole.
    assert cluster.sluice("jobs", "cancel", job_id[:16]).stdout == f"cancelling {job_id}\n"
    assert cluster.wait_for_state(job_id, "CANCELED", "FAILED", "FINISHED")["state"] == "CANCELED"
    eventually(lambda: not executor_processes(cluster, job_id), "the end of the executors")
    again = cluster.sluice("jobs", "cancel", job_id)
    assert again.returncode == 1
    assert "CANCELED" in again.stderr
    log = ("jobs", "logs", job_id[:16], "--source", "driver.jvm")
    whole = cluster.sluice(*log).stdout
    assert len(whole.splitlines()) > 2
    assert cluster.sluice(*log, "--follow").stdout == whole
    assert cluster.sluice(*log, "--tail", "2").stdout.splitlines() == whole.splitlines()[-2:]


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param("spark.ssl.rpc.enabled=false", id="TLS off"),
        pytest.param("spark.executor.extraJavaOptions=-Dx=y", id="JVM options"),
        pytest.param("spark.executorEnv.JAVA_TOOL_OPTIONS=-Dx=y", id="environment"),
        pytest.param("spark.authenticate=false", id="authentication off"),
    ],
)
def test_a_spark_setting_that_would_weaken_the_cluster_is_refused_by_name(
    cluster: LocalCluster, write: Callable[[str], Path], setting: str
) -> None:
    done = cluster.sluice("submit", "--conf", setting, str(write(pipelines.SUM)))
    assert done.returncode == 1
    assert setting.partition("=")[0] in done.stderr


def test_every_connection_of_a_job_names_both_identities(cluster: LocalCluster, write: Callable[[str], Path]) -> None:
    done = cluster.sluice("submit", "--wait", "--json", str(write(pipelines.SLOW)), "--", "0.01")
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout)
    connections = [
        connection
        for path in (f"/v1/jobs/{job['id']}/connections", "/v1/connections")
        for connection in cluster.get(path)["connections"]
    ]
    assert {connection["channel"] for connection in connections} >= {"rpc", "data", "blob"}
    assert {connection["protocol"] for connection in connections} == {"TLSv1.3"}
    for connection in connections:
        assert connection["local"].startswith("spiffe://sluice.local/")
        assert connection["peer"].startswith("spiffe://sluice.local/")
