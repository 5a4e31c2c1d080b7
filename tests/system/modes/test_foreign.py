"""What Spark's own cluster managers receive.

The command renders it, spark-submit reads it, or it is posted to an API.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sluice.core.home import Home
from sluice.pki.config import PkiConfig
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.cluster.conftest import COMMAND, REPOSITORY, eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@dataclass
class ApiServer:
    """A fake Kubernetes API server over TLS that accepts and records whatever is created."""

    context: ssl.SSLContext
    created: list[dict[str, Any]] = field(default_factory=list)
    authorizations: set[str] = field(default_factory=set)
    port: int = 0
    _loop: asyncio.AbstractEventLoop = field(init=False)
    _ended: asyncio.Event = field(init=False)

    async def take(self, request: web.Request) -> web.Response:
        """Accept POST, PATCH and PUT; answer everything else with 404."""
        self.authorizations.add(request.headers.get("authorization", ""))
        if request.method not in {"POST", "PATCH", "PUT"}:
            return web.json_response({"kind": "Status", "code": 404, "status": "Failure"}, status=404)
        document = json.loads(await request.text())
        self.created.append(document)
        document["metadata"] = {**document.get("metadata", {}), "uid": "u-1", "resourceVersion": "1"}
        return web.json_response(document, status=201)

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """All created objects of one kind."""
        return [each for each in self.created if each.get("kind") == kind]

    def run(self) -> None:
        """Serve until stopped; in a thread."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self.take)
        runner = web.AppRunner(application, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self.context).start()
            self.port = runner.addresses[0][1]
            await self._ended.wait()
        finally:
            await runner.cleanup()

    def stop(self) -> None:
        """Stop serving, which ends the thread."""
        self._loop.call_soon_threadsafe(self._ended.set)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[ApiServer, Path]]:
    """An API server, and a kubeconfig for it."""
    pki = TestPki(tmp_path / "pki")
    directory = tmp_path / "api"
    spiffe_id = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "api")
    pki.issuer.issue_to(directory, spiffe_id, ips=["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    server = ApiServer(context)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    eventually(lambda: server.port, "the API server listens", 30)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "c",
                "cluster": {
                    "server": f"https://127.0.0.1:{server.port}",
                    "certificate-authority": str(directory / "ca.pem"),
                },
            }
        ],
        "users": [{"name": "u", "user": {"token": "kube-token"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "spark"}}],
        "current-context": "x",
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    yield server, kubeconfig
    server.stop()
    thread.join(timeout=30)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with authorities."""
    home = tmp_path / "home"
    LocalIssuer(Home.at(home).create().pki, PkiConfig()).ensure_authorities()
    return home


def configure(home: Path, port: int) -> None:
    """Write the home's configuration for Kubernetes and YARN."""
    (home / "sluice.toml").write_text(
        f"""
[kubernetes]
api = "https://127.0.0.1:{port}"
namespace = "spark"
image = "registry.internal/sluice:1"
ca = "ca.sluice.svc:8444"
service_account = "spark"
executor_service_account = "spark-executor"

[yarn]
identity = "/etc/sluice/identity"
"""
    )


def pipeline(tmp_path: Path) -> Path:
    """A pipeline to submit."""
    path = tmp_path / "pipeline.py"
    path.write_text("print('never run here')\n")
    return path


def submit(home: Path, *arguments: str) -> list[str]:
    """The command line of a submission."""
    return [*COMMAND, "submit", "--home", str(home), *arguments]


def run(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``sluice submit`` and wait for it."""
    return subprocess.run(
        submit(home, *arguments),
        cwd=REPOSITORY,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def settings(server: ApiServer) -> str:
    """The driver's Spark properties as Spark wrote them; empty until it has."""
    data = [each.get("data", {}) for each in server.of_kind("ConfigMap")]
    return next((each["spark.properties"] for each in data if "spark.properties" in each), "")


def test_spark_submit_creates_the_driver_pod_with_our_agent_and_volumes(
    api: tuple[ApiServer, Path], home: Path, tmp_path: Path
) -> None:
    server, kubeconfig = api
    configure(home, server.port)
    tools, applied = tmp_path / "tools", tmp_path / "applied.json"
    tools.mkdir()
    kubectl = tools / "kubectl"
    kubectl.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        f'    *"apply --filename"*) for file; do :; done; cp "$file" {applied} ;;\n'
        """    *"get pods"*) echo '{"items": []}' ;;\n"""
        "esac\n"
    )
    kubectl.chmod(0o755)
    process = subprocess.Popen(
        submit(home, "--target", "kubernetes", "--executors", "3", str(pipeline(tmp_path)), "--", "--day", "1"),
        cwd=REPOSITORY,
        env=os.environ | {"KUBECONFIG": str(kubeconfig), "PATH": f"{tools}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        eventually(
            lambda: process.poll() is not None or (server.of_kind("Pod") and settings(server)),
            "Spark has posted the driver",
            120,
        )
    finally:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
    assert server.of_kind("Pod"), output
    assert server.authorizations == {"Bearer kube-token"}
    (pod,) = server.of_kind("Pod")
    (driver,) = [each for each in pod["spec"]["containers"] if each["name"] == "driver"]
    assert driver["args"][-3:] == ["local:///run/sluice/job/pipeline.py", "--day", "1"]
    mounts = {each["mountPath"]: each["name"] for each in driver["volumeMounts"]}
    assert mounts["/run/sluice/keys"] == "sluice-keys"
    assert driver["command"][:3] == ["sluice", "run", "job-pod"]
    assert driver["securityContext"]["allowPrivilegeEscalation"] is False
    volumes = {each["name"]: each for each in pod["spec"]["volumes"]}
    assert volumes["sluice-keys"]["emptyDir"]["medium"] == "Memory"
    assert pod["metadata"]["name"] == f"sluice-{pod['metadata']['labels']['sluice/job']}-driver"
    text = settings(server).replace("\\", "")
    for end in ("driver", "executor"):
        assert (
            f"spark.{end}.extraJavaOptions=-javaagent:/run/sluice/keys/sluice-spark.jar=/run/sluice/keys/identity"
            in text
        )
    assert "spark.authenticate=true" in text
    assert "spark.executor.instances=3" in text
    (files,) = [json.loads(applied.read_text())["binaryData"]]
    assert base64.b64decode(files["pipeline.py"]) == b"print('never run here')\n"


def test_rendered_files_are_readable_by_the_owner_only_and_contain_no_key(home: Path, tmp_path: Path) -> None:
    configure(home, 6443)
    program = str(pipeline(tmp_path))
    plain = tmp_path / "plain"
    done = run(home, "--target", "kubernetes", "--render", str(plain), "--json", program)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["files"] == ["driver-pod.json", "executor-pod.json", "files.json", "spark.properties"]
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in plain.iterdir())
    assert b"PRIVATE" not in b"".join(path.read_bytes() for path in plain.iterdir())
    again = run(home, "--target", "kubernetes", "--render", str(plain), program)
    assert (again.returncode, "is there already" in again.stderr) == (2, True)


def test_yarn_target_requires_hadoop_conf_dir_and_refuses_a_conf_that_weakens_tls(home: Path, tmp_path: Path) -> None:
    configure(home, 6443)
    program = str(pipeline(tmp_path))
    refused = run(home, "--target", "yarn", program, HADOOP_CONF_DIR="")
    assert (refused.returncode, "HADOOP_CONF_DIR is not set" in refused.stderr) == (1, True)
    rendered = run(home, "--target", "yarn", "--render", str(tmp_path / "out"), program)
    assert rendered.returncode == 0, rendered.stderr
    assert "spark.master=yarn" in (tmp_path / "out" / "spark.properties").read_text()
    forbidden = run(
        home, "--target", "yarn", "--render", str(tmp_path / "no"), "--conf", "spark.ssl.rpc.enabled=false", program
    )
    assert (forbidden.returncode, "spark.ssl.rpc.enabled" in forbidden.stderr) == (1, True)
