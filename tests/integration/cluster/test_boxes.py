"""A job's code sees only its own box, and nothing of the cluster or of other jobs."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster.conftest import REPOSITORY, LocalCluster
from tests.live_files import paths_below

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

PROBE = Path(__file__).with_name("probe.py")
PYTHON_ENVIRONMENT = {
    *("HOME", "LANG", "PATH", "TMPDIR", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED", "SLUICE_JOB_ID"),
    "SPIFFE_ENDPOINT_SOCKET",
    *("SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE"),  # PySpark's own, made inside
    *("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "PYSPARK_PYTHON", "SPARK_HOME", "SPARK_LOCAL_IP"),
}
JVM_ENVIRONMENT = {
    *("HOME", "LANG", "PATH", "TMPDIR", "SPARK_HOME", "SPARK_LOCAL_IP", "SPARK_CONF_DIR", "PYSPARK_PYTHON"),
    *("SLUICE_BRIDGE", "SLUICE_JOB_ID", "SLUICE_ATTEMPT", "SPIFFE_ENDPOINT_SOCKET"),
    *("SPARK_LOCAL_DIRS", "SPARK_SCALA_VERSION", "_PYSPARK_DRIVER_CONN_INFO_PATH", "_SPARK_AUTH_SECRET"),
}


def forbidden(cluster: LocalCluster) -> list[Path]:
    """Return existing paths that no job may reach."""
    home = cluster.home
    keys = [path for path in paths_below(home) if path.name == "key.pem" and "pki" in path.parts]
    assert keys
    found = [home / "pki", home / "run", home / "token", home / "gateway", home / "blobs", home / "log", *keys]
    found += [*(home / "work").glob("*/jobs/*/*"), REPOSITORY / "pyproject.toml", Path("/var/log"), Path("/etc/shadow")]
    return [path for path in found if path.exists()]


@pytest.fixture(scope="module")
def seen(cluster: LocalCluster, running_job: str) -> dict[str, Any]:
    """The probe's report from a job that ran while another job was running."""
    assert running_job
    done = cluster.sluice("submit", "--wait", str(PROBE), "--", *map(str, forbidden(cluster)))
    assert done.returncode == 0, done.stderr
    decoded: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return decoded


@pytest.mark.parametrize("where", ["driver", "udf"])
def test_job_python_reaches_only_its_own_files_and_processes(
    cluster: LocalCluster, seen: dict[str, Any], where: str
) -> None:
    parents = (REPOSITORY, sys.prefix, cluster.home, tempfile.gettempdir())  # of what is shown in the box
    python = seen[where]
    assert python["reached"] == []
    assert python["uid"] not in {0, os.geteuid() or 0}
    assert (int(python["capabilities"], 16), python["no_new_privileges"]) == (0, "1")
    assert python["writable"] == []
    shown = {
        Path(place).resolve().parts[2]
        for place in parents
        if len(Path(place).parts) > 2 and Path(place).parts[1] == "tmp"
    }
    assert [name for name in python["temporary"] if not name.startswith("sluice-jvm-") and name not in shown] == []
    known = {"bwrap", "java", "python", Path(sys.executable).name}
    assert {name.rstrip("0123456789.") for name in python["processes"]} <= known


def test_driver_python_sees_only_its_own_processes(seen: dict[str, Any]) -> None:
    assert "java" not in seen["driver"]["processes"]
    assert len(seen["driver"]["processes"]) <= 3


def test_the_environment_of_job_code_contains_only_the_listed_variables(seen: dict[str, Any]) -> None:
    assert set(seen["driver"]["environment"]) <= PYTHON_ENVIRONMENT
    assert set(seen["jvm"]["environment"]) <= JVM_ENVIRONMENT


def test_the_driver_jvm_can_read_but_not_change_its_identity(seen: dict[str, Any]) -> None:
    jvm = seen["jvm"]
    assert jvm["reached"] == []
    assert jvm["has_key"]
    assert jvm["changed"] == []
    assert jvm["processes"] <= 3
    assert (jvm["user"], jvm["home"]) == ("job", seen["driver"]["home"])
    assert set(jvm["identity"]) <= {"identity", "identity-of-job", "reports", "work"}
