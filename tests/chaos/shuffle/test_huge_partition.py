"""Shuffles a huge partition through one worker with little memory.

The partition is larger than any 32-bit offset or Java array.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.runtime.spark.jvm.command import find_spark_runtime
from tests.hostile import TestPki
from tests.system.shuffle.cluster import cluster

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(600)]

ROWS = 18_000_000
ROW_BYTES = 128


async def test_a_partition_of_more_than_two_gibibytes_passes_through_one_shuffle_worker(tmp_path: Path) -> None:
    assert ROWS * ROW_BYTES > 2 << 30
    conf = {"spark.sql.adaptive.enabled": "false", "spark.sluice.shuffle.timeout": "300s"}
    async with cluster(tmp_path, TestPki(tmp_path / "pki"), find_spark_runtime(), conf) as started:
        service = await started.serve(1, 1)
        before, after = await started.run("kinds.huge_partition", rows=ROWS)
        assert after == before
        assert int(before[0]) == ROWS
        assert (await service.statistics("shuffle-worker-1"))["written_bytes"] > 2 << 30
