"""`resources.provider = "kubernetes"`: real Spark jobs on TaskManagers that are pods.

The API server is real, the chart is installed, and the cluster has the rights that it grants. Scheduler,
kubelet and containers are fakes (see kubelet.py). There is no DNS: three addresses in the environment of
pods are on loopback.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.free_ports import free_ports
from tests.integration.cluster.conftest import LocalCluster, eventually, start_cluster
from tests.kubernetes.api_server import ApiServer, api_server
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.test_chart import NAMESPACE, Helm, Kubectl, containers, helm, of
from tests.processes import command_line

__all__ = ["helm"]
pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

MOST = 2
ACCOUNT = "system:serviceaccount:"
PIPELINE = """
import os, pathlib, sys, time
from pyspark.sql import SparkSession
place, name, wait = pathlib.Path(sys.argv[1]), sys.argv[2], len(sys.argv) > 3
spark = SparkSession.builder.getOrCreate()
total = spark.sparkContext.parallelize(range(100), 4).sum()
with open(place / f"{name}.runs", "a") as runs:
    runs.write(f"{total}\\n")
while wait and not (place / f"{name}.go").exists():
    time.sleep(0.2)
spark.stop()
"""
COMMON = """
[pki]
trust_domain = "sluice.local"

[taskmanager]
slots = 1
slot_memory_mb = 512
driver_slots = 1

[spark]
driver_memory_mb = 512
executors = 1

[shuffle]
enabled = false

[isolation]
writable = [{shared}]
"""
CLUSTER = """
[jobmanager]
rpc_port = {rpc}
heartbeat_interval = 1.0
heartbeat_timeout = 20.0

[ha]
mode = "kubernetes"
storage = {storage}
session_timeout = 10.0
lease = 40.0
kubernetes_api = "{api}"
kubernetes_namespace = "{namespace}"
kubernetes_account = {account}

[resources]
provider = "kubernetes"
max_taskmanagers = {most}
taskmanager_idle_timeout = 3.0

[pods]
template = {template}
own_pod = "sluice-jobmanager-0"

[ca]
port = {ca}
enrolment_port = {enrolment}

[ca.kubernetes]
api = "{api}"
account = {ca_account}
trust_config_map = "sluice-trust"

[[ca.kubernetes.identities]]
namespace = "{namespace}"
service_account = "sluice-taskmanager"
role = "taskmanager"
dns = ["{{pod}}.sluice-taskmanager.{namespace}.svc.cluster.local"]
"""


@dataclass(frozen=True)
class World:
    """A cluster whose TaskManagers are pods."""

    cluster: LocalCluster
    server: ApiServer
    kubelet: Kubelet
    kubectl: Kubectl
    pipeline: Path

    def submit(self, name: str, *options: str) -> str:
        """Submit a job that records each of its runs in the shared folder; returns its id."""
        return self.cluster.submit(self.pipeline, str(self.cluster.shared), name, *options)

    def runs(self, name: str) -> list[str]:
        """The lines that the job wrote, one for each run."""
        file = self.cluster.shared / f"{name}.runs"
        return file.read_text().split() if file.exists() else []

    def finished(self, job_id: str) -> None:
        """Wait until the job has ended; it must have succeeded."""
        job = self.cluster.wait_for_state(job_id, "FINISHED", "FAILED", seconds=400)
        logs = [each.read_text()[-1500:] for each in self.kubelet.root.rglob("driver.agent.log")]
        assert job["state"] == "FINISHED", f"{job}, {logs}"

    def no_pods(self) -> None:
        """Wait until all pods are deleted."""
        eventually(lambda: not self.kubelet.pods(), "all pods are given back", 200)

    def registered(self) -> set[str]:
        """The TaskManagers that the JobManager knows."""
        return {each["id"] for each in self.cluster.get("/v1/taskmanagers")["taskmanagers"]}


def account_directory(server: ApiServer, directory: Path, account: str) -> Path:
    """Write a directory as Kubernetes mounts it for a service account of the release."""
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token"
    status, made = server.call("POST", path, {"spec": {"expirationSeconds": 7200}})
    assert status == 201, made
    server.account(directory, str(made["status"]["token"]))
    (directory / "namespace").write_text(NAMESPACE)
    return directory


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory with a short name: paths of sockets below it have at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="kp"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="module")
def world(programs: Path, place: Path, helm: Helm) -> Iterator[World]:
    (place / "k").mkdir()
    with api_server(programs, place / "k") as server:
        kubectl = Kubectl(programs / "kubectl", server)
        assert server.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})[0] == 201
        objects = helm.render("--set=taskmanager.provider=kubernetes", "--set=isolation.level=none", version="1.20.2")
        home, rpc, ca, enrolment = place / "c" / "home", *free_ports(3)
        home.mkdir(parents=True, mode=0o700)
        cluster = LocalCluster(home)
        common = COMMON.format(shared=json.dumps(str(cluster.shared)))
        config_maps = of(objects, "ConfigMap")
        config_maps["sluice-settings"]["data"]["sluice.toml"] = common
        applied = kubectl.run("apply", "-f", "-", content=yaml.safe_dump_all(objects))
        assert applied.returncode == 0, applied.stderr
        template = place / "pod.json"
        template.write_text(config_maps["sluice-taskmanager-pods"]["data"]["taskmanager.json"])
        own_pod(server, objects)
        settings = CLUSTER.format(
            rpc=rpc, ca=ca, enrolment=enrolment, api=server.url, namespace=NAMESPACE, most=MOST,
            storage=json.dumps(str(place / "ha")), template=json.dumps(str(template)),
            account=json.dumps(str(account_directory(server, place / "jm", "sluice-jobmanager"))),
            ca_account=json.dumps(str(account_directory(server, place / "ca", "sluice-ca"))),
        )  # fmt: skip
        (home / "sluice.toml").write_text(common + settings)
        (place / "p").mkdir()
        addresses = {
            "SLUICE_CA_ADDRESS": f"127.0.0.1:{ca},{enrolment}",
            "SLUICE_JOBMANAGER": f"127.0.0.1:{rpc}",
            "SLUICE__TASKMANAGER__HOST": "127.0.0.1",
        }
        pipeline = place / "pipeline.py"
        pipeline.write_text(PIPELINE)
        selector = "sluice/cluster=default,sluice/managed-by=resource-manager"
        # Sockets of a job are below it: in a pod the path is short.
        temporary = place / "t"
        temporary.mkdir()
        addresses["TMPDIR"] = str(temporary)
        with Kubelet(server, NAMESPACE, selector, place / "p", addresses) as kubelet:
            start_cluster(home)
            try:
                yield World(cluster, server, kubelet, kubectl, pipeline)
            finally:
                cluster.sluice("down")


def own_pod(server: ApiServer, objects: list[dict[str, Any]]) -> None:
    """Create the pod object that its StatefulSet would create for the JobManager, which runs outside."""
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets/sluice-jobmanager"
    status, owner = server.call("GET", path)
    assert status == 200, owner
    template = of(objects, "StatefulSet")["sluice-jobmanager"]["spec"]["template"]
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "sluice-jobmanager", "controller": True}
    metadata = template["metadata"] | {
        "name": "sluice-jobmanager-0",
        "ownerReferences": [reference | {"uid": owner["metadata"]["uid"]}],
    }
    spec = template["spec"] | {"volumes": [*template["spec"]["volumes"], {"name": "data", "emptyDir": {}}]}
    made, answer = server.call("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", {"metadata": metadata, "spec": spec})
    assert made == 201, answer


def test_a_spark_job_runs_on_a_pod_that_is_created_and_deleted_with_it(world: World) -> None:
    assert not world.kubelet.pods()
    job_id = world.submit("one")
    world.finished(job_id)
    assert world.runs("one") == ["4950"]
    world.no_pods()
    eventually(lambda: not world.registered(), "no TaskManager is registered")
    (pod,) = world.kubelet.started.values()
    assert pod["metadata"]["labels"]["sluice/epoch"] == "1"
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("StatefulSet", "sluice-jobmanager")
    attempts = world.cluster.job(job_id)["attempts"]
    assert [each["taskmanager"] for each in attempts] == [pod["metadata"]["name"]]


def test_a_pod_is_restricted_and_holds_no_secret(world: World) -> None:
    """As Pod Security's level "restricted" demands, which this version of the API server does not check."""
    pod = next(iter(world.kubelet.started.values()))
    spec = pod["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert all(set(each) <= {"name", "emptyDir", "configMap", "projected"} for each in spec["volumes"])
    for container in containers(spec):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}


def test_two_jobs_never_share_a_pod_neither_concurrently_nor_in_succession(world: World) -> None:
    """A pod has room for one executor and one driver, and a job needs one of each, so it fills its pod."""
    before = set(world.kubelet.started)
    jobs = [world.submit(name, "wait") for name in ("two", "three")]
    for name in ("two", "three"):
        eventually(lambda name=name: world.runs(name), f"{name} runs", 300)  # type: ignore[misc]  # bound per turn
    drivers = {each["id"]: each["drivers"] for each in world.cluster.get("/v1/taskmanagers")["taskmanagers"]}
    assert sorted(drivers.values()) == sorted([job] for job in jobs)
    waiting = world.submit("four")
    eventually(lambda: "as many as there may be" in world.cluster.job(waiting)["pending_reason"], "the limit is told")
    (world.cluster.shared / "two.go").touch()
    world.finished(jobs[0])
    world.finished(waiting)
    (world.cluster.shared / "three.go").touch()
    world.finished(jobs[1])
    assert len(set(world.kubelet.started) - before) == 3, "a pod for each job"
    assert [world.runs(name) for name in ("two", "three", "four")] == [["4950"]] * 3
    world.no_pods()


def test_a_job_reports_that_it_waits_for_the_quota_and_runs_when_there_is_room(world: World) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}/resourcequotas"
    pods = str(len(world.server.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")[1]["items"]))
    assert world.server.call("POST", path, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": pods}}})[0] == 201
    # The controller that counts is not there.
    status = {"status": {"hard": {"pods": pods}, "used": {"pods": pods}}}
    assert world.server.call("PATCH", f"{path}/few/status", status, kind="merge-patch+json")[0] == 200
    job_id = world.submit("five")
    eventually(lambda: "exceeded quota: few" in world.cluster.job(job_id)["pending_reason"], "the quota is told", 200)
    assert world.server.call("DELETE", f"{path}/few")[0] == 200
    world.finished(job_id)
    assert world.runs("five") == ["4950"]
    world.no_pods()


def test_the_pods_of_a_killed_leader_are_taken_over_by_the_next_leader(world: World) -> None:
    """`kill -9` while a job runs: the pod stays, its driver continues, and no pod is left over."""
    before = set(world.kubelet.started)
    job_id = world.submit("six", "wait")
    eventually(lambda: world.runs("six"), "the job runs", 300)
    (process,) = [each for each in world.cluster.processes() if "jobmanager" in command_line(each)]
    os.kill(process.pid, signal.SIGKILL)

    def led_again() -> bool:
        try:
            return bool(world.cluster.job(job_id)["state"] == "RUNNING" and world.registered())
        except Exception:  # noqa: BLE001  # nobody leads yet: whatever the client says of it
            return False

    eventually(led_again, "another JobManager leads", 200)
    (world.cluster.shared / "six.go").touch()
    world.finished(job_id)
    assert world.runs("six") == ["4950"]
    assert len(set(world.kubelet.started) - before) == 1
    world.no_pods()


def asked_for(server: ApiServer) -> dict[tuple[str, str, str, str, str], int]:
    """The API calls of each of our service accounts, with the status of the last answer.

    Taken from the API server's audit log.
    """
    found: dict[tuple[str, str, str, str, str], int] = {}
    for line in server.audit.read_text().splitlines():
        event = json.loads(line)
        user, what = event["user"]["username"], event.get("objectRef") or {}
        if user.startswith(f"{ACCOUNT}{NAMESPACE}:"):
            kind = "/".join(part for part in (what.get("resource", ""), what.get("subresource", "")) if part)
            name = what.get("name", "") if event["verb"] != "create" else ""
            key = (user.rpartition(":")[2], event["verb"], kind, what.get("apiGroup", ""), name)
            found[key] = int((event.get("responseStatus") or {}).get("code", 0))
    return found


def rules_of(world: World, account: str) -> Iterator[tuple[str, str, str, str]]:
    """Each (verb, resource, group, name) that an account's roles grant; an empty name stands for any."""
    kinds = [("role", account), ("clusterrole", f"sluice-{NAMESPACE}-token-reviews")]
    for kind, name in kinds if account == "sluice-ca" else kinds[:1]:
        done = world.kubectl.run("get", kind, name, "-o", "json")
        assert done.returncode == 0, done.stderr
        for rule in json.loads(done.stdout)["rules"]:
            for verb in rule["verbs"]:
                for resource in rule["resources"]:
                    for group in rule["apiGroups"]:
                        for each in rule.get("resourceNames") or [""]:
                            yield verb, resource, group, each


def test_rbac_allows_exactly_the_calls_in_the_audit_log_of_the_api_server(world: World) -> None:
    """The API server's audit log of all tests above, replayed with `kubectl auth can-i` under the chart's roles."""
    asked = asked_for(world.server)
    assert {account for account, *_ in asked} == {"sluice-jobmanager", "sluice-ca"}, "the others ask for nothing"
    assert 403 not in {code for key, code in asked.items() if key[2] != "pods"}
    for account, verb, resource, group, name in asked:
        target = f"{resource}.{group}" if group else resource
        everywhere = resource == "tokenreviews"
        assert world.kubectl.may(account.removeprefix("sluice-"), verb, target, name, everywhere=everywhere)
    for account in ("sluice-jobmanager", "sluice-ca"):
        used = {(verb, resource, group, name) for who, verb, resource, group, name in asked if who == account}
        for verb, resource, group, name in rules_of(world, account):
            if name == "sluice-jobmanager-1":
                continue  # the other JobManager's own pod
            assert any((verb, resource, group) == each[:3] and name in {"", each[3]} for each in used), (
                account, verb, resource, name,
            )  # fmt: skip
