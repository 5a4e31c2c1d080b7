"""Livy's batch API, as its clients use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]  # has no types
import msgspec
import pytest

from sluice.runtime.blob.store import BlobStore
from sluice.runtime.rest.protocol.problems import ArtifactRefused
from sluice.runtime.rest.submissions.artifacts import ArtifactStores
from tests.integration.runtime.conftest import Cluster, eventually


@pytest.fixture
def pipelines(tmp_path: Path) -> Path:
    """The one store from which batches may read files."""
    directory = tmp_path / "pipelines"
    directory.mkdir()
    (directory / "report.json").write_text(
        json.dumps({"executors": 1, "end": "when-told", "flag": str(tmp_path / "finish")})
    )
    (directory / "module.py").write_text("x = 1\n")
    (tmp_path / "secret.py").write_text("hidden\n")
    (directory / "link.py").symlink_to(tmp_path / "secret.py")
    return directory


@pytest.fixture
async def cluster(cluster: Cluster, pipelines: Path) -> Cluster:
    """A cluster whose batches may read files from ``pipelines``."""
    settings = msgspec.structs.replace(cluster.config.jobmanager, artifact_stores=(f"file://{pipelines}",))
    cluster.config = msgspec.structs.replace(cluster.config, jobmanager=settings)
    await cluster.master.aclose()
    await cluster.start_jobmanager()
    return cluster


async def post(cluster: Cluster, **batch: Any) -> tuple[int, Any]:
    return await cluster.call("POST", "/batches", json=batch)


async def test_a_batch_is_submitted_polled_read_and_deleted(cluster: Cluster, pipelines: Path) -> None:
    await cluster.start_taskmanager("tm-1")
    status, batch = await post(
        cluster,
        file=f"file://{pipelines}/report.json",
        pyFiles=[f"file://{pipelines}/module.py"],
        args=["--n", 3],
        name="nightly",
        conf={"spark.sql.shuffle.partitions": 3},
        numExecutors=1,
        executorCores=2,
        executorMemory="1g",
    )
    assert status == 201, batch
    assert (batch["name"], batch["owner"], batch["proxyUser"]) == ("nightly", "ada", None)
    number = batch["id"]
    assert number < 2**53
    await cluster.until_running(batch["appId"], 1)
    (taskmanager,) = (await cluster.get("/v1/taskmanagers"))["taskmanagers"]
    slots = [each for each in taskmanager["slots"] if each["job_id"] == batch["appId"]]
    assert [(each["cores"], each["memory_mb"]) for each in slots] == [(2, 1024)]
    await cluster.until_running(batch["appId"], 1)
    assert await cluster.get(f"/batches/{number}/state") == {"id": number, "state": "running"}
    listed = await cluster.get("/batches?from=0&size=10")
    assert (listed["from"], listed["total"], listed["sessions"][0]["id"]) == (0, 1, number)
    cluster.flag.touch()

    async def succeeded() -> bool:
        return bool((await cluster.get(f"/batches/{number}/state"))["state"] == "success")

    await eventually(succeeded, "the batch has succeeded")
    whole = await cluster.get(f"/batches/{number}/log?from=0&size=-1")
    assert whole["log"][0] == "stdout: "
    assert "stderr: " in whole["log"]
    assert whole["total"] == len(whole["log"])
    tail = await cluster.get(f"/batches/{number}/log?size=1")
    assert (tail["from"], tail["log"]) == (whole["total"] - 1, whole["log"][-1:])
    assert await cluster.call("DELETE", f"/batches/{number}") == (200, {"msg": "deleted"})
    assert await cluster.get(f"/batches/{number}/state") == {"id": number, "state": "success"}


async def test_deleting_a_running_batch_cancels_it(cluster: Cluster, pipelines: Path) -> None:
    await cluster.start_taskmanager("tm-1")
    _, batch = await post(cluster, file=f"file://{pipelines}/report.json", numExecutors=1)
    await cluster.until_running(batch["appId"], 1)
    assert await cluster.call("DELETE", f"/batches/{batch['id']}") == (200, {"msg": "deleted"})

    async def killed() -> bool:
        return bool((await cluster.get(f"/batches/{batch['id']}/state"))["state"] == "killed")

    await eventually(killed, "the batch is killed")


async def test_an_unsupported_batch_is_refused_and_nothing_is_kept(cluster: Cluster, pipelines: Path) -> None:
    good = f"file://{pipelines}/report.json"
    for batch, status, kind in (
        ({"file": good, "className": "org.example.Main"}, 400, "BadRequest"),
        ({"file": good, "jars": ["x.jar"]}, 400, "BadRequest"),
        ({"file": good, "driverMemory": "4g"}, 400, "BadRequest"),
        ({"file": good, "driverCores": 2}, 400, "BadRequest"),
        ({"file": good, "executorMemory": "much"}, 400, "BadRequest"),
        ({"file": good, "executorMemory": "1m"}, 400, "SubmissionRejected"),
        ({"file": good, "executorCores": 0}, 400, "BadRequest"),
        ({"file": good, "executorCores": 5000}, 400, "SubmissionRejected"),
        ({"file": good, "archives": ["s3://bucket/env.zip#env"]}, 400, "ArtifactRefused"),
        ({"file": good, "proxyUser": "root"}, 403, "NotYours"),
        ({"file": good, "queue": "fast"}, 400, "SubmissionRejected"),
        ({"file": good, "conf": {"spark.ssl.rpc.enabled": False}}, 400, "ForbiddenSparkConf"),
        ({"file": good, "numExecutors": 0}, 400, "SubmissionRejected"),
        ({"file": good, "pyFiles": [good]}, 400, "SubmissionRejected"),
        ({"file": good, "unheard": 1}, 400, "BadRequest"),
        ({"file": f"file://{pipelines}/none.py"}, 400, "ArtifactRefused"),
        ({"file": f"file://{pipelines}/link.py"}, 400, "ArtifactRefused"),
        ({"file": f"file://{pipelines.parent}/secret.py"}, 400, "ArtifactRefused"),
        ({"file": "s3://bucket/x.py"}, 400, "ArtifactRefused"),
    ):
        answer, problem = await post(cluster, **batch)
        assert (answer, problem["type"]) == (status, f"urn:sluice:problem:{kind}"), (batch, problem)
    assert (await cluster.get("/batches"))["total"] == 0
    assert not [path for path in cluster.home.blobs.rglob("*") if path.is_file()]


@pytest.mark.parametrize("number", ["1", "0", "x", "99999999999999999999", "-1", "1e3"])
async def test_an_unknown_or_malformed_batch_number_is_not_found(cluster: Cluster, number: str) -> None:
    assert (await cluster.call("GET", f"/batches/{number}"))[0] == 404
    assert (await cluster.call("DELETE", f"/batches/{number}"))[0] == 404


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/pipelines",
        "s3://bucket/pipelines-of-others/x.py",
        "s3://bucket/pipelines/../x.py",
        "s3://bucket/pipelines//x.py",
        "s3://bucket/pipelines/./x.py",
        "s3://bucket/pipelines/%2e%2e/x.py",
        "s3://bucket/pipelines/x.py?versionId=1",
        "s3://bucket/pipelines/x.py#y",
        "s3://bucket/pipelines/",
        "simplecache::s3://bucket/pipelines/x.py",
        "s3://bucket/pipelines/x.py::file:///etc/passwd",
        "s3://bucket/pipelines/" + "x" * 2000,
        "S3://bucket/pipelines/x.py",
        "/srv/x.py",
        "file://host/srv/x.py",
        "local:///srv/x.py",
        "",
    ],
)
def test_an_artifact_url_not_plainly_below_a_store_is_refused(url: str) -> None:
    with pytest.raises(ArtifactRefused):
        ArtifactStores(["s3://bucket/pipelines", "file:///srv"])._allowed(url)


@pytest.mark.parametrize("store", ["/srv", "s3:bucket", "file:///srv/../etc", "", "a::b"])
def test_a_malformed_artifact_store_url_is_refused(store: str) -> None:
    with pytest.raises(ArtifactRefused):
        ArtifactStores([store])


async def test_artifacts_are_fetched_from_any_store_that_fsspec_opens(tmp_path: Path) -> None:
    with fsspec.open("memory://team/x.py", "wb") as file:
        file.write(b"print(1)")
    store = BlobStore(tmp_path, 1000)
    blob = await ArtifactStores(["memory://team/"]).fetch("memory://team/x.py", store, "a" * 32)
    assert (blob.name, blob.size, store.path("a" * 32, blob.sha256).read_bytes()) == ("x.py", 8, b"print(1)")
    with pytest.raises(ArtifactRefused):
        await ArtifactStores(["memory://team/"]).fetch("memory://team/none.py", store, "a" * 32)
