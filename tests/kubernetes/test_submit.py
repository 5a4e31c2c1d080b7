"""``sluice submit --target kubernetes`` with Spark's spark-submit.

The submitter has the rights in docs/howto/deployment.md.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.core.home import Home
from sluice.pki.config import PkiConfig
from sluice.pki.issuing.issuer import LocalIssuer
from tests.integration.cluster.conftest import COMMAND
from tests.kubernetes.api_server import NAMESPACE, SUBMITTER, ApiServer, api_server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RIGHTS = [
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "patch", "delete"]},
    {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["patch"]},
]


@pytest.fixture
def own_server(programs: Path, tmp_path: Path) -> Iterator[ApiServer]:
    """An API server for one test only, because the test grants rights in it."""
    root = tmp_path / "kubernetes"
    root.mkdir()
    with api_server(programs, root) as found:
        yield found


def start(server: ApiServer, programs: Path, tmp_path: Path) -> subprocess.Popen[bytes]:
    """Start the submit command as the submitter."""
    home = tmp_path / "home"
    LocalIssuer(Home.at(home).create().pki, PkiConfig()).ensure_authorities()
    (home / "sluice.toml").write_text(
        f'[kubernetes]\napi = "{server.url}"\nnamespace = "{NAMESPACE}"\nimage = "registry.internal/sluice:1"\n'
        'ca = "ca.sluice.svc:8444"\nservice_account = "spark"\nexecutor_service_account = "spark-executor"\n'
    )
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"server": server.url, "certificate-authority": str(server.ca_file)}
    kubeconfig.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": SUBMITTER}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
                "current-context": "x",
            }
        )
    )
    pipeline = tmp_path / "pipeline.py"
    pipeline.write_text("print(1)\n")
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": f"{programs}:{os.environ['PATH']}"}
    command = [*COMMAND, "submit", "--home", str(home), "--target", "kubernetes", str(pipeline)]
    with (tmp_path / "submit.log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def ours(server: ApiServer, kind: str) -> list[dict[str, object]]:
    """The objects of a kind that have the label of a job."""
    status, found = server.call("GET", f"/api/v1/namespaces/{NAMESPACE}/{kind}?labelSelector=sluice/job")
    assert status == 200
    return list(found["items"])


def test_a_submission_that_fails_after_the_driver_pod_was_created_leaves_nothing(
    own_server: ApiServer, programs: Path, tmp_path: Path
) -> None:
    """Spark 4.3 makes the pod, then API server 1.20 refuses the Service. The rights are those of the page."""
    own_server.allow("submitter", SUBMITTER, RIGHTS)
    process = start(own_server, programs, tmp_path)
    assert process.wait(200) == 1
    log = (tmp_path / "submit.log").read_text()
    assert "spark-submit ended with exit code 1" in log, log[-4000:]
    assert "is left" not in log
    assert {kind: ours(own_server, kind) for kind in ("pods", "configmaps", "services")} == {
        "pods": [], "configmaps": [], "services": []
    }  # fmt: skip
