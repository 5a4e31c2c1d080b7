"""All queries of TPC-H: the same through the service, sealed, as without it, and as another engine answers them.

``SLUICE_TPCH_SCALE=1 pytest tests/system/shuffle/test_tpch.py`` (``make test-tpch``) takes the scale that TPC-H begins
with.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio

from sluice.runtime.spark.jvm.command import SparkRuntime
from tests.hostile import TestPki
from tests.system.shuffle.cluster import Cluster, cluster
from tests.system.shuffle.tpch import QUERIES, TABLES, Answers, generate, same

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(900)]

SCALE = float(os.environ.get("SLUICE_TPCH_SCALE", "0.01"))
CONF = {
    "spark.sql.adaptive.enabled": "true",
    # Without it, every join at this scale would be a broadcast.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "6",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "1m",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
}
SEALED = {"spark.sluice.shuffle.seal": "true"}


@dataclass
class Warehouse:
    """The same tables for a job of ours, a job of Spark's own, and DuckDB's answers."""

    ours: Cluster
    sparks: Cluster
    answers: Answers


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def warehouse(
    tmp_path_factory: pytest.TempPathFactory, pki: TestPki, spark: SparkRuntime
) -> AsyncIterator[Warehouse]:
    """Generated once."""
    directory = tmp_path_factory.mktemp("tpch")
    for name in ("tables", "ours", "sparks"):
        (directory / name).mkdir()
    async with AsyncExitStack() as stack:
        answers, ours, sparks = await asyncio.gather(
            asyncio.to_thread(generate, directory / "tables", SCALE),
            stack.enter_async_context(cluster(directory / "ours", pki, spark, {**CONF, **SEALED})),
            stack.enter_async_context(cluster(directory / "sparks", pki, spark, CONF, shuffle=False)),
        )
        assert len(list((directory / "tables").glob("*.parquet"))) == len(TABLES)
        for job in (ours, sparks):
            await job.run("tpch.load", folder=str(directory / "tables"))
        yield Warehouse(ours, sparks, answers)


@pytest.mark.parametrize("number", QUERIES)
async def test_query(warehouse: Warehouse, number: int) -> None:
    sql = warehouse.answers.queries[number]
    ours, sparks = await asyncio.gather(
        warehouse.ours.run("tpch.query", sql=sql), warehouse.sparks.run("tpch.query", sql=sql)
    )
    assert sorted(map(repr, ours)) == sorted(map(repr, sparks))
    assert same(ours, warehouse.answers.rows[number])
