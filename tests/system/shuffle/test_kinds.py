"""Every kind of shuffle gives the same result with the shuffle service as without it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from sluice.runtime.spark.evidence import read_evidence
from sluice.runtime.spark.jvm.command import SparkRuntime
from tests.hostile import TestPki
from tests.system.shuffle.cluster import SEALED, Cluster, cluster

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

CONF = {
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.enabled": "true",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.5",
    "spark.speculation.minTaskRuntime": "1s",
}


@dataclass
class Pair:
    """Two jobs that run the same program: one with our shuffle service, one with Spark's own shuffle."""

    ours: Cluster
    sparks: Cluster

    async def run(self, function: str, *folders: Path) -> tuple[Any, Any]:
        """The answers of both jobs; each gets its own folder if folders are given."""
        arguments = [{"folder": str(folder)} for folder in folders] or [{}, {}]
        ours, sparks = await asyncio.gather(
            self.ours.run(function, **arguments[0]), self.sparks.run(function, **arguments[1])
        )
        return ours, sparks


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=SEALED)
async def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, pki: TestPki, spark: SparkRuntime
) -> AsyncIterator[Pair]:
    """A job with our shuffle service and one with Spark's own shuffle, side by side."""
    directory = tmp_path_factory.mktemp("kinds")
    for name in ("ours", "sparks"):
        (directory / name).mkdir()
    async with AsyncExitStack() as stack:
        ours, sparks = await asyncio.gather(
            stack.enter_async_context(cluster(directory / "ours", pki, spark, {**CONF, **request.param})),
            stack.enter_async_context(cluster(directory / "sparks", pki, spark, CONF, shuffle=False)),
        )
        yield Pair(ours, sparks)


@pytest.mark.parametrize(
    "kind",
    [
        "group", "sql_distinct", "sort", "window", "repartition", "join", "empty", "giant_records", "rdd_reduce",
        "rdd_group", "rdd_sort", "rdd_join", "jvm_sort",
    ],
)  # fmt: skip
async def test_each_kind_of_shuffle_gives_the_result_of_sparks_own_shuffle(pair: Pair, kind: str) -> None:
    ours, sparks = await pair.run(f"kinds.{kind}")
    assert ours == sparks


@pytest.mark.parametrize("kind", ["skew_join", "local_read"])
async def test_adaptive_execution_reads_partial_maps_with_the_result_of_sparks_own_shuffle(
    pair: Pair, kind: str
) -> None:
    ours, sparks = await pair.run(f"kinds.{kind}")
    assert ours == sparks
    assert ours[-1] is True


async def test_a_speculative_attempt_does_not_change_the_result(pair: Pair, tmp_path: Path) -> None:
    folders = [tmp_path / "ours", tmp_path / "sparks"]
    for folder in folders:
        folder.mkdir()
    ours, sparks = await pair.run("kinds.speculation", *folders)
    assert ours[0] == sparks[0]
    assert ours[1] > 1


async def test_streaming_aggregation_gives_the_result_of_sparks_own_shuffle(pair: Pair, tmp_path: Path) -> None:
    folders = [tmp_path / "ours", tmp_path / "sparks"]
    for folder in folders:
        folder.mkdir()
    ours, sparks = await pair.run("kinds.streaming", *folders)
    assert ours == sparks


async def test_real_time_mode_without_the_shuffle_service_is_refused_with_the_reason(
    pair: Pair, tmp_path: Path
) -> None:
    answer = await pair.sparks.run("kinds.real_time", folder=str(tmp_path))
    assert "shuffles in real-time mode need the shuffle service" in answer


async def test_all_shuffle_data_goes_through_the_workers_over_tls_1_3(pair: Pair) -> None:
    await pair.ours.run("kinds.group")
    service = pair.ours.services[0]
    for name in service.processes:
        jobs = (await service.statistics(name))["jobs"]
        assert sum(job["pushed_bytes"] for job in jobs) > 0
    reports = sorted(pair.ours.job.directory.glob("executor-*/reports"))
    workers: set[str] = set()
    for directory in reports:
        dialed = [line for line in read_evidence(directory).connections if line.direction == "dialed"]
        workers |= {line.peer.rpartition("/")[2] for line in dialed if "/shuffle-worker/" in line.peer}
        assert {line.protocol for line in dialed} == {"TLSv1.3"}
    assert workers == {"shuffle-worker-1", "shuffle-worker-2"}
    blocks = list(pair.ours.job.directory.glob("**/shuffle_*.data"))
    assert blocks == []
