"""Structured Streaming's real-time mode: rows go through the workers while both stages run.

Executors open no new listener.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

import psutil
import pytest
import pytest_asyncio

from sluice.runtime.spark.evidence import read_evidence
from sluice.runtime.spark.jvm.command import SparkRuntime
from sluice.runtime.spark.jvm.conf import DriverShape
from tests.hostile import TestPki
from tests.processes import listening_ports
from tests.system.shuffle.cluster import SEALED, Cluster, cluster

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

KEYS = 16
CONF = {"spark.sql.shuffle.partitions": "2", "spark.sluice.shuffle.timeout": "5s"}
SHAPE = DriverShape(executors=2, executor_cores=3, executor_memory_mb=768, driver_memory_mb=768)


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=SEALED)
async def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pki: TestPki, spark: SparkRuntime
) -> AsyncIterator[Cluster]:
    """A job with room for both stages of a query at the same time."""
    conf = {**CONF, **request.param}
    async with cluster(tmp_path_factory.mktemp("real-time"), pki, spark, conf, shape=SHAPE) as started:
        await started.run("kinds.group")  # executors are there
        yield started


_names = itertools.count()


class Query:
    """One query of a job, which counts the rows given to its source."""

    def __init__(self, job: Cluster, folder: Path, kind: str = "aggregate") -> None:
        folder.chmod(0o755)
        self.job, self.folder, self.kind = job, folder, kind
        self.name = f"query-{next(_names)}"
        self.given = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the query, or resume it from its checkpoint."""
        await self.job.run("real_time.start", name=self.name, folder=str(self.folder), kind=self.kind)

    async def add(self, count: int, gap: float = 0.0) -> None:
        """Give the source ``count`` more rows."""
        values = list(range(self.given, self.given + count))
        self.given += await self.job.run("real_time.add", name=self.name, values=values, gap=gap)

    async def failure(self) -> str:
        """The error with which the query failed; the test fails if the query goes on."""
        answer: str = await self.job.run("real_time.failure", name=self.name)
        assert answer, "the query goes on"
        return answer

    async def until_rows(self, count: int) -> None:
        """Wait until the sink has so many rows; fails if the query dies."""
        while len(await self.rows()) < count:
            assert await self.job.run("real_time.is_active", name=self.name), await self.failure()
            await asyncio.sleep(0.2)

    async def until_counted(self) -> None:
        """Wait until each row is counted; fails if the query dies."""
        while await self.counts() != self.expected():
            assert await self.job.run("real_time.is_active", name=self.name), await self.failure()
            await asyncio.sleep(0.2)

    async def rows(self) -> list[list[int]]:
        """The rows that the sink received."""
        answer: list[list[int]] = await self.job.run("real_time.rows", folder=str(self.folder))
        return answer

    async def counts(self) -> dict[int, int]:
        """The highest count of each key."""
        found: dict[int, int] = {}
        for key, count, *_ in await self.rows():
            found[key] = max(found.get(key, 0), count)
        return found

    def expected(self) -> dict[int, int]:
        """How many rows with each key the source was given."""
        return {key: len(range(key, self.given, KEYS)) for key in range(min(KEYS, self.given))}

    async def stop(self) -> None:
        """Stop the query."""
        await self.job.run("real_time.stop", name=self.name)


def listening(job: Cluster) -> set[tuple[int, int]]:
    """Ports on which processes of the job listen."""
    found = set()
    for jvm in job.job.executors.values():
        if jvm.running:
            found |= {(jvm.pid, port) for port in listening_ports(psutil.Process(jvm.pid))}
    return found


async def test_every_row_arrives_once_and_executors_open_no_new_listener(job: Cluster, tmp_path: Path) -> None:
    before = listening(job)
    async with Query(job, tmp_path) as query:
        await query.add(200, gap=0.01)
        assert listening(job) == before
        await query.until_counted()
        await query.add(400)
        assert listening(job) == before
        await query.until_counted()
        assert len(await query.rows()) == query.given
    reports = sorted(job.job.directory.glob("executor-*/reports"))
    dialed = [line for each in reports for line in read_evidence(each).connections if line.direction == "dialed"]
    workers = {line.peer.rpartition("/")[2] for line in dialed if "/shuffle-worker/" in line.peer}
    assert workers == {"shuffle-worker-1", "shuffle-worker-2"}


async def test_duplicates_are_dropped_across_batches(job: Cluster, tmp_path: Path) -> None:
    async with Query(job, tmp_path, "distinct") as query:
        await query.add(300)
        await query.until_rows(300)
        query.given = 100
        await query.add(300)
        await query.until_rows(400)
    assert sorted(value for _, _, value, _ in await query.rows()) == list(range(400))


async def test_query_fails_when_a_worker_with_one_replica_is_killed_and_resumes_from_its_checkpoint(
    job: Cluster, tmp_path: Path
) -> None:
    service = await job.serve(2, 1)
    async with Query(job, tmp_path) as query:
        await query.add(100, gap=0.01)
        await query.until_counted()
        await query.add(100, gap=0.01)
        await service.kill("shuffle-worker-1")
        await query.add(100)
        assert "shuffle-worker-1" in await query.failure()
        await job.serve(2, 1)
        await query.start()
        await query.add(100)
        await query.until_counted()


async def test_query_continues_when_a_worker_with_two_replicas_is_killed(job: Cluster, tmp_path: Path) -> None:
    service = await job.serve(2, 2)
    async with Query(job, tmp_path) as query:
        await query.add(100, gap=0.01)
        await query.until_counted()
        await query.add(100, gap=0.01)
        await service.kill("shuffle-worker-1")
        await query.add(200, gap=0.01)
        await query.until_counted()
        assert len(await query.rows()) == query.given


async def test_query_fails_when_an_executor_is_killed_and_resumes_from_its_checkpoint(
    job: Cluster, tmp_path: Path
) -> None:
    await job.serve(2, 1)
    async with Query(job, tmp_path) as query:
        await query.add(100, gap=0.01)
        await query.until_counted()
        process = next(each for each in job.job.executors.values() if each.running)
        await query.add(50)
        psutil.Process(process.pid).kill()
        await process.wait()
        await query.failure()
        await job.job.start_executor(len(job.job.executors) + 1)
        await job.run("real_time.until_slots", count=SHAPE.executors * SHAPE.executor_cores)
        await query.start()
        await query.add(100)
        await query.until_counted()
