"""Committed output outlives executors; a lost worker's data is read from a replica or computed again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from benchmarks.shuffle_workers import ShuffleWorkers
from sluice.runtime.spark.jvm.command import SparkRuntime
from tests.hostile import TestPki
from tests.system.shuffle.cluster import SEALED, Cluster, cluster
from tests.system.shuffle.pipelines.faults import MAPS

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

CONF = {
    "spark.sql.shuffle.partitions": "5",
    "spark.sluice.shuffle.timeout": "5s",
    "spark.io.compression.codec": "zstd",  # LZ4 has all other tests
}
SQL = pytest.mark.parametrize("sql", [pytest.param(True, id="sql"), pytest.param(False, id="rdd")])


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=SEALED)
async def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pki: TestPki, spark: SparkRuntime
) -> AsyncIterator[Cluster]:
    """A job to which each test gives new workers."""
    async with cluster(tmp_path_factory.mktemp("faults"), pki, spark, {**CONF, **request.param}) as started:
        yield started


async def written(job: Cluster, name: str, folder: Path, *, sql: bool) -> list[object]:
    """Write a shuffle; returns the number of its rows, their digest and the number of map attempts."""
    answer: list[object] = await job.run("faults.write", name=name, folder=str(folder), sql=sql)
    assert answer[2] == MAPS
    return answer


@SQL
async def test_no_map_runs_again_after_its_executor_was_killed(job: Cluster, tmp_path: Path, sql: bool) -> None:
    await job.serve(2, 1)
    before = await written(job, "executor", tmp_path, sql=sql)
    number, process = next((n, each) for n, each in job.job.executors.items() if each.running)
    await job.job.start_executor(len(job.job.executors) + 1)
    psutil.Process(process.pid).kill()
    await process.wait()
    assert await job.run("faults.read", name="executor", folder=str(tmp_path)) == before, f"executor {number}"


@SQL
async def test_only_the_maps_of_a_killed_worker_run_again_with_one_replica(
    job: Cluster, tmp_path: Path, sql: bool
) -> None:
    service = await job.serve(2, 1)
    rows, digest, _ = await written(job, "one", tmp_path, sql=sql)
    await service.kill("shuffle-worker-1")
    found = await job.run("faults.read", name="one", folder=str(tmp_path))
    assert found[:2] == [rows, digest]
    assert found[2] == MAPS + MAPS // 2


@SQL
async def test_no_map_runs_again_after_a_worker_was_killed_with_two_replicas(
    job: Cluster, tmp_path: Path, sql: bool
) -> None:
    service = await job.serve(3, 2)
    before = await written(job, "two", tmp_path, sql=sql)
    await service.kill("shuffle-worker-2")
    assert await job.run("faults.read", name="two", folder=str(tmp_path)) == before


async def test_worker_killed_before_the_maps_is_not_used(job: Cluster, tmp_path: Path) -> None:
    service = await job.serve(2, 2)
    await service.kill("shuffle-worker-1")
    await written(job, "left-out", tmp_path, sql=True)


async def test_worker_that_stops_answering_is_replaced_by_its_replica(job: Cluster, tmp_path: Path) -> None:
    service = await job.serve(2, 2)
    before = await written(job, "paused", tmp_path, sql=True)
    process = psutil.Process(service.processes["shuffle-worker-1"].pid)
    process.suspend()
    try:
        assert await job.run("faults.read", name="paused", folder=str(tmp_path)) == before
    finally:
        process.resume()


async def test_restarted_worker_serves_what_was_committed(job: Cluster, tmp_path: Path) -> None:
    service = await job.serve(1, 1)
    before = await written(job, "restart", tmp_path, sql=True)
    port = service.allocate(0, 0).workers[0].port
    await service.kill("shuffle-worker-1")
    await service.start_worker("shuffle-worker-1", port)
    assert await job.run("faults.read", name="restart", folder=str(tmp_path)) == before


async def test_restarted_worker_is_found_at_another_port(job: Cluster, tmp_path: Path) -> None:
    service = await job.serve(1, 1)
    before = await written(job, "moved", tmp_path, sql=True)
    port = service.allocate(0, 0).workers[0].port
    await service.kill("shuffle-worker-1")
    await service.start_worker("shuffle-worker-1")
    assert service.allocate(0, 0).workers[0].port != port
    assert await job.run("faults.read", name="moved", folder=str(tmp_path)) == before


@pytest.mark.parametrize("replicas", [1, 2])
async def test_damaged_files_never_give_a_wrong_answer(job: Cluster, tmp_path: Path, replicas: int) -> None:
    service = await job.serve(2, replicas)
    rows, digest, attempts = await written(job, "damaged", tmp_path, sql=True)
    assert damage(service, "shuffle-worker-1") > 0
    found = await job.run("faults.read", name="damaged", folder=str(tmp_path))
    assert found[:2] == [rows, digest]
    assert found[2] == attempts if replicas == 2 else found[2] > attempts


def damage(service: ShuffleWorkers, name: str) -> int:
    """Flip a bit in every kilobyte of a worker's files over 4096 bytes; returns the number of files."""
    files = [path for path in service.data(name).rglob("*") if path.is_file() and path.stat().st_size > 4096]
    for path in files:
        content = bytearray(path.read_bytes())
        for at in range(512, len(content), 1024):
            content[at] ^= 0x10
        with path.open("r+b") as file:
            file.write(content)
    return len(files)
