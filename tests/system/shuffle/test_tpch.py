"""All TPC-H queries: same results through the sealed service, without it, and from another engine.

``SLUICE_TPCH_SCALE=1 pytest tests/system/shuffle/test_tpch.py`` (``make test-tpch``) uses the scale that
TPC-H starts at.
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
    """The same tables for a job with our shuffles and a job with Spark's own, and DuckDB's answers."""

    ours: Cluster
    sparks: Cluster
    answers: Answers


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def warehouse(
    tmp_path_factory: pytest.TempPathFactory, pki: TestPki, spark: SparkRuntime
) -> AsyncIterator[Warehouse]:
    """The warehouse; its tables are generated once."""
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
async def test_tpch_query_gives_the_rows_of_sparks_shuffle_and_of_another_engine(
    warehouse: Warehouse, number: int
) -> None:
    sql = warehouse.answers.queries[number]
    ours, sparks = await asyncio.gather(
        warehouse.ours.run("tpch.query", sql=sql), warehouse.sparks.run("tpch.query", sql=sql)
    )
    assert sorted(map(repr, ours)) == sorted(map(repr, sparks))
    assert same(ours, warehouse.answers.rows[number])
