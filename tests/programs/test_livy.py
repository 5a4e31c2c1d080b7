"""Airflow's real LivyHook, through the gateway, with a cluster whose driver is a plain Python process."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from pathlib import Path

import msgspec
import pytest

from sluice.gateway.credentials.token_file import create_token
from sluice.gateway.principal import AccessRole
from tests.integration.rest.test_streams_behind_the_gateway import GatewayClient, gateway
from tests.integration.runtime.conftest import Cluster, cluster as plain_cluster
from tests.programs.conftest import program

__all__ = ["gateway", "plain_cluster"]

CLIENT = Path(__file__).with_name("livy_client.py")


@pytest.fixture
def cluster(plain_cluster: Cluster, tmp_path: Path) -> Cluster:
    """Provide a cluster that accepts batches from a directory of the test."""
    settings = msgspec.structs.replace(
        plain_cluster.config.jobmanager, artifact_stores=(f"file://{tmp_path}/pipelines/",)
    )
    plain_cluster.config = msgspec.structs.replace(plain_cluster.config, jobmanager=settings)
    return plain_cluster


async def test_livy_hook_submits_polls_reads_and_deletes(gateway: GatewayClient, tmp_path: Path) -> None:
    await gateway.cluster.start_taskmanager("tm-1")
    (tmp_path / "pipelines").mkdir()
    pipeline = tmp_path / "pipelines" / "report.json"
    pipeline.write_text(json.dumps({"executors": 1, "end": "when-told", "flag": str(gateway.cluster.flag)}))
    gateway.cluster.flag.touch()
    token = create_token(
        gateway.cluster.home, name="airflow", role=AccessRole.SUBMITTER, lifetime=dt.timedelta(hours=1)
    )
    connection = {"conn_type": "livy", "host": f"https://localhost:{gateway.port}"}
    authorities = gateway.cluster.home.pki / "authorities"
    bundle = tmp_path / "bundle.pem"  # requests takes no intermediate for an anchor, before Python 3.13
    bundle.write_bytes(b"".join((authorities / kind / "cert.pem").read_bytes() for kind in ("edge", "root")))
    process = await asyncio.create_subprocess_exec(
        str(program("airflow/bin/python")),
        str(CLIENT),
        f"file://{pipeline}",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            "PATH": "/usr/bin:/bin",
            "AIRFLOW_HOME": str(tmp_path / "airflow"),
            "AIRFLOW_CONN_SLUICE": json.dumps(connection),
            "REQUESTS_CA_BUNDLE": str(bundle),
        },
    )
    output, errors = await asyncio.wait_for(process.communicate(f"Bearer {token}".encode()), 100)
    assert process.returncode == 0, errors.decode()[-3000:]
    seen = json.loads(output.splitlines()[-1])
    assert seen["states"][-1] == "success"
    assert (seen["batch"]["name"], seen["batch"]["owner"], seen["batch"]["state"]) == ("nightly", "airflow", "success")
    assert len(seen["batch"]["appId"]) == 32
    assert seen["log"]["log"][0] == "stdout: "
    assert seen["deleted"] == {"msg": "deleted"}
