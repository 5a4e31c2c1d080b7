"""Pods of the chart on a real node: kubelet, containerd and runc, with controllers and scheduler.

The cluster's DNS (names.py) and the provisioner of volumes are fakes. The network enforces no
NetworkPolicy.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.free_ports import free_port
from tests.kubernetes.api_server import ADMINISTRATOR, ApiServer, api_server, write_kubeconfig
from tests.kubernetes.names import API, serve_names
from tests.kubernetes.node import API_ADDRESS, Node, node
from tests.kubernetes.port_defaults import with_port_defaults
from tests.kubernetes.test_chart import NAMESPACE, Helm, Kubectl, helm, of
from tests.waiting import wait_until

__all__ = ["helm"]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(1200)]

READY_SECONDS = 400.0
JOB_SECONDS = 400.0
SPARK_NAMESPACE = "spark"
JOB_HOURS = 0.03
"""So that identities of jobs are renewed within a minute."""
STATUS_OF_TASKMANAGER = (
    'for process in /proc/[0-9]*; do tr "\\0" " " <"$process/cmdline" | grep -q "run taskmanage[r]" || continue; '
    'cat "$process/status"; exit; done'
)
VALUES: dict[str, Any] = {
    "sparkJobs": [{"namespace": SPARK_NAMESPACE, "driver": "spark", "executor": "spark-executor"}],
    "gateway": {"image": "sluice-envoy:local", "serverNames": ["localhost"]},
    "jobmanager": {"replicas": 1},
    "shuffle": {"enabled": False},
    "isolation": {"level": "none"},
    "taskmanager": {"replicas": 1, "slots": 1, "slotMemoryMb": 512, "driverSlots": 1, "driverMemoryMb": 512},
}
SMALL: dict[str, Any] = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
COMPONENTS = ("ca", "auth", "gateway", "jobmanager", "taskmanager")
PIPELINE = """
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
print("total", spark.sparkContext.parallelize(range(100), 4).sum())
spark.stop()
"""
LONG_PIPELINE = """
import time
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
began = time.monotonic()
while time.monotonic() - began < 75:
    total = spark.sparkContext.parallelize(range(100), 4).map(lambda x: (x % 3, x)).reduceByKey(int.__add__).collect()
    time.sleep(1)
print("totals", sorted(total))
spark.stop()
"""
Object = dict[str, Any]


@dataclass
class World:
    """The installed chart, with a gateway that can be reached from outside."""

    server: ApiServer
    node: Node
    kubectl: Kubectl
    port: int
    tmp: Path

    def pod(self, component: str) -> Object:
        """The first pod of a component's StatefulSet; if there is none, the API server's error."""
        path = f"/api/v1/namespaces/{NAMESPACE}/pods/sluice-{component}-0"
        return self.server.call("GET", path)[1]

    def is_ready(self, component: str) -> bool:
        """Whether the component's pod is ready, by its readiness probe."""
        status = self.pod(component).get("status")
        conditions = status.get("conditions", ()) if isinstance(status, dict) else ()  # else it is away for a moment
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def until_ready(self, *components: str) -> None:
        """Wait until the components are ready."""
        for component in components:
            wait_until(lambda each=component: self.is_ready(each), self.described, READY_SECONDS, pause=0.5)  # type: ignore[misc]  # bound per turn

    def described(self) -> str:
        """A description of pods, volume claims, events and logs for error messages."""
        events = self.kubectl.run("get", "events", "--sort-by=.lastTimestamp").stdout[-4000:]
        logs = (
            f"{each}: {self.node.log(self.pod(each), '*')[-1500:]}" for each in COMPONENTS if "status" in self.pod(each)
        )
        return "\n".join([self.kubectl.run("get", "pods,pvc").stdout, events, *logs])

    def enrolments(self) -> list[tuple[str, str]]:
        """The (requester, identity) of each enrolment with the authority."""
        listed = self.node.inside_of(self.pod("ca"), "sluice", "pki", "ledger", "show", "--json")
        lines = [json.loads(line) for line in listed.splitlines()]
        return [(each["requester"], each["identity"]) for each in lines if each.get("kind") == "enrolment"]

    def ledger(self) -> list[str]:
        """Who enrolled with the authority."""
        return [requester for requester, _ in self.enrolments()]

    def spark_pods(self) -> list[Object]:
        """The pods of jobs that Spark's own manager runs."""
        return list(self.server.call("GET", f"/api/v1/namespaces/{SPARK_NAMESPACE}/pods")[1]["items"])

    def client(self, *arguments: str | Path) -> str:
        """Run a command as a client outside of the cluster, with a token; returns its output."""
        access: list[str | Path] = ["--server", f"https://localhost:{self.port}", "--ca", self.tmp / "edge.pem"]
        verb, rest = arguments[0], arguments[1:]
        done = subprocess.run(
            [sys.executable, "-m", "sluice.cli.main", verb, *access, "--token-file", self.tmp / "token", *rest],
            capture_output=True, text=True, timeout=JOB_SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.described()}"
        return done.stdout


@pytest.fixture(scope="module")
def world(programs: Path, helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    tmp = tmp_path_factory.mktemp("node")
    images = programs.parent / "images" / "sluice.tar"
    for each in (images, programs / "kube-scheduler", programs / "node" / "kubelet"):
        if not each.is_file():
            pytest.fail(f"there is no {each}: make test-kubernetes makes it", pytrace=False)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(
            api_server(programs, tmp, API, "kubernetes.default.svc", API_ADDRESS, accounts=True, controlled=True)
        )
        found = stack.enter_context(node(programs, server, images))
        api_port = int(server.url.rpartition(":")[2])
        found.relay((API_ADDRESS, 443), ("127.0.0.1", api_port), stack)
        serve_names(found, stack)
        world = World(server, found, Kubectl(programs / "kubectl", server), free_port(), tmp)
        install(world, helm)
        found.publish(world.port, lambda: (world.pod("gateway")["status"]["podIP"], 8443), stack)
        yield world


def install(world: World, helm: Helm) -> None:
    """Install the chart as a person would, with values for a small machine.

    The volumes belong to root.
    """
    for name in (NAMESPACE, SPARK_NAMESPACE):
        assert world.server.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})[0] == 201
    values: dict[str, Any] = {each: VALUES.get(each, {}) | {"resources": SMALL} for each in COMPONENTS}
    values["taskmanager"] = values["taskmanager"] | {"resources": SMALL | {"limits": {"memory": "4Gi"}}}
    file = world.tmp / "values.yaml"
    file.write_text(yaml.safe_dump(VALUES | values))
    objects = helm.render(f"--values={file}", version="1.20.2")
    settings = of(objects, "ConfigMap")["sluice-settings"]["data"]
    settings["sluice.toml"] = settings["sluice.toml"].replace("[pki]", f"[pki]\njob_hours = {JOB_HOURS}", 1)
    for number in range(len(of(objects, "StatefulSet")) + 1):
        directory = world.node.root / "volumes" / str(number)
        directory.mkdir(parents=True)
        applied = world.kubectl.run("apply", "-f", "-", content=yaml.safe_dump(volume(number, directory)))
        assert applied.returncode == 0, applied.stderr
    applied = world.kubectl.run("apply", "-f", "-", content=yaml.safe_dump_all(objects))
    assert applied.returncode == 0, applied.stderr


def volume(number: int, directory: Path) -> Object:
    """A persistent volume for a directory of the node."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["here"]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"volume-{number}"},
        "spec": {
            "capacity": {"storage": "100Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "local": {"path": str(directory)},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


def test_every_pod_of_the_chart_becomes_ready_and_has_enrolled_with_its_token(world: World) -> None:
    world.until_ready(*COMPONENTS)
    for component in COMPONENTS[1:]:
        uid = world.pod(component)["metadata"]["uid"]
        expected = f"pod:{NAMESPACE}/sluice-{component}/sluice-{component}-0/{uid}"
        assert expected in world.ledger()


def test_the_taskmanager_runs_restricted_with_the_mounts_of_the_chart(world: World) -> None:
    pod = world.pod("taskmanager")
    # Not process 1, which is the pause container's: the pod's containers share their processes.
    status = world.node.inside_of(pod, "sh", "-c", STATUS_OF_TASKMANAGER)
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == ["10001"] * 4
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    assert {int(fields[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    mounts = {
        line.split()[1]: line.split()[2:4] for line in world.node.inside_of(pod, "cat", "/proc/mounts").splitlines()
    }
    assert mounts["/"][1].split(",")[0] == "ro"
    assert mounts["/run/sluice/keys"][0] == "tmpfs"
    token = world.node.inside_of(pod, "stat", "-L", "-c", "%a %u", "/run/sluice/token/token")
    assert token.split() == ["640", "10001"], "the kubelet gives it to the user, and to the group for fsGroup"


def test_a_spark_job_from_outside_runs_in_the_pods(world: World) -> None:
    world.until_ready(*COMPONENTS)
    created = world.node.inside_of(
        world.pod("auth"), "sluice", "token", "create", "test", "--role", "submitter", "--ttl", "1h"
    )
    (world.tmp / "token").touch(0o600)
    (world.tmp / "token").write_text(created)
    edge = world.node.inside_of(world.pod("ca"), "cat", "/var/lib/sluice/home/pki/trust/edge.pem")
    (world.tmp / "edge.pem").write_text(edge)
    pipeline = world.tmp / "pipeline.py"
    pipeline.write_text(PIPELINE)
    assert "total 4950" in world.client("submit", "--wait", "--executors", "1", pipeline)


def test_the_replacement_of_a_deleted_pod_enrols_with_its_own_token(world: World) -> None:
    before = world.pod("taskmanager")["metadata"]["uid"]
    deleted = world.kubectl.run("delete", "pod", "sluice-taskmanager-0", "--timeout=100s")
    assert deleted.returncode == 0, deleted.stderr
    world.until_ready("taskmanager")
    uid = world.pod("taskmanager")["metadata"]["uid"]
    assert uid != before
    assert world.ledger()[-1].endswith(f"/sluice-taskmanager-0/{uid}")


def submit_to_spark(world: World, pipeline: Path) -> subprocess.CompletedProcess[str]:
    """Submit a job to Spark's own manager, and wait until it ends."""
    home, programs = world.tmp / "submitter", world.kubectl.program.parent
    home.mkdir()
    kubeconfig = world.tmp / "kubeconfig.json"
    with with_port_defaults(world.server, world.tmp / "port-defaults") as server:
        write_kubeconfig(kubeconfig, server, ADMINISTRATOR)
        (home / "sluice.toml").write_text(
            f'[kubernetes]\napi = "{server.url}"\nnamespace = "{SPARK_NAMESPACE}"\nimage = "sluice:local"\n'
            f'ca = "sluice-ca.{NAMESPACE}.svc.cluster.local:8444,8445"\nservice_account = "spark"\n'
            'executor_service_account = "spark-executor"\ndriver_cpu = "50m"\nexecutor_cpu = "50m"\n'
            "[spark]\ndriver_memory_mb = 512\n"
        )
        return subprocess.run(
            [
                sys.executable, "-m", "sluice.cli.main", "submit", "--home", str(home), "--target", "kubernetes",
                "--executors", "2", "--executor-memory", "512m", str(pipeline),
            ],
            env={**os.environ, "KUBECONFIG": str(kubeconfig), "PATH": f"{programs}:{os.environ['PATH']}"},
            capture_output=True, text=True, timeout=JOB_SECONDS, check=False,
        )  # fmt: skip


def test_each_pod_of_a_job_of_sparks_kubernetes_manager_has_and_renews_its_identity(world: World) -> None:
    world.until_ready("ca")
    pipeline = world.tmp / "long.py"
    pipeline.write_text(LONG_PIPELINE)
    done = submit_to_spark(world, pipeline)
    said = f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    drivers = [each for each in world.spark_pods() if each["metadata"]["labels"]["spark-role"] == "driver"]
    assert len(drivers) == 1, said
    (driver,) = drivers
    log = world.node.log(driver, "*")
    assert "totals [(0, 1683), (1, 1617), (2, 1650)]" in log, f"{said}\n{log[-6000:]}"
    assert done.returncode == 0, said
    job = driver["metadata"]["labels"]["sluice/job"]
    prefix, name = f"pod:{SPARK_NAMESPACE}/", f"sluice-{job}"
    found = Counter(each for each in world.enrolments() if each[0].startswith(prefix))
    identities = {requester.rpartition("/")[0]: identity for requester, identity in found}
    assert len(identities) == len(found), "one pod has one identity"
    assert identities.pop(f"{prefix}spark/{name}-driver") == f"spiffe://sluice.local/job/{job}/driver"
    # Spark asks for another one, with another number, where the API server took too long to make the first.
    assert len(identities) >= 2
    for requester, identity in identities.items():
        number = requester.removeprefix(f"{prefix}spark-executor/{name}-exec-")
        assert identity == f"spiffe://sluice.local/job/{job}/executor/{number}"
    assert sum(count > 1 for count in found.values()) >= 3, f"not renewed: {found}"
