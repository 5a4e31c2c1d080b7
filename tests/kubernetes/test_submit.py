"""``sluice submit --target kubernetes`` with Spark's own spark-submit, and the rights that docs/deployment.md names."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pki.config import PkiConfig
from pki.home import Home
from pki.issuer import LocalIssuer
from tests.integration.cluster.conftest import COMMAND
from tests.kubernetes.api_server import NAMESPACE, SUBMITTER, ApiServer, api_server

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

RIGHTS = [
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "create", "patch", "delete"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "delete"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "patch", "delete"]},
]
NETWORK_POLICIES = {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["patch"]}


@pytest.fixture
def own_server(programs: Path, tmp_path: Path) -> Iterator[ApiServer]:
    """Rights are given in it once."""
    root = tmp_path / "kubernetes"
    root.mkdir()
    with api_server(programs, root) as found:
        yield found


def start(server: ApiServer, programs: Path, tmp_path: Path) -> subprocess.Popen[bytes]:
    """The command, as the submitter."""
    home = tmp_path / "home"
    LocalIssuer(Home.at(home).create().pki, PkiConfig()).ensure_authorities()
    (home / "sluice.toml").write_text(
        f'[kubernetes]\napi = "{server.url}"\nnamespace = "{NAMESPACE}"\nimage = "registry.internal/sluice:1"\n'
        'driver_secret = "driver-identity"\nexecutor_secret = "executor-identity"\n'
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
    """The objects of a kind that are labelled as the job's."""
    status, found = server.call("GET", f"/api/v1/namespaces/{NAMESPACE}/{kind}?labelSelector=sluice/job")
    assert status == 200
    return list(found["items"])


def test_a_submission_without_enough_rights_leaves_nothing(
    own_server: ApiServer, programs: Path, tmp_path: Path
) -> None:
    own_server.allow("submitter", SUBMITTER, RIGHTS)
    process = start(own_server, programs, tmp_path)
    assert process.wait(200) == 1
    assert "networkpolicies" in (tmp_path / "submit.log").read_text()
    assert {kind: ours(own_server, kind) for kind in ("configmaps", "services")} == {"configmaps": [], "services": []}


def test_the_rights_of_the_page_suffice_and_the_files_belong_to_the_driver(
    own_server: ApiServer, programs: Path, tmp_path: Path
) -> None:
    own_server.allow("submitter", SUBMITTER, [*RIGHTS, NETWORK_POLICIES])
    process = start(own_server, programs, tmp_path)
    try:
        deadline = time.monotonic() + 200
        while not any("ownerReferences" in each["metadata"] for each in ours(own_server, "configmaps")):  # type: ignore[operator]  # JSON
            assert process.poll() is None, (tmp_path / "submit.log").read_text()[-2000:]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        (pod,), (files,) = ours(own_server, "pods"), ours(own_server, "configmaps")
        owner = files["metadata"]["ownerReferences"][0]  # type: ignore[index]  # JSON
        assert (owner["kind"], owner["uid"]) == ("Pod", pod["metadata"]["uid"])  # type: ignore[index]  # JSON
        assert len(ours(own_server, "services")) == 1
    finally:
        process.terminate()
        process.wait()
