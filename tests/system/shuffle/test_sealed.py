"""Spark's sealed shuffles: workers hold nothing readable, and readers believe none of their lies."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from benchmarks.shuffle_workers import ShuffleWorkers
from sluice.runtime.shuffle.data_plane.sealing import MapSealer, SealKeys
from sluice.runtime.spark.jvm.command import SparkRuntime
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.system.shuffle.cluster import Cluster, cluster
from tests.system.shuffle.pipelines.sealed import MARK
from tests.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(400)]

CONF = {
    "spark.sluice.shuffle.seal": "true",
    "spark.sluice.shuffle.buffer": "4k",
    "spark.sql.adaptive.enabled": "false",
    "spark.shuffle.compress": "false",
    "spark.stage.maxConsecutiveAttempts": "2",
}
ROWS = 2000
LIES = int(os.environ.get("SLUICE_LIES", "300"))
"""Reads that are lied to; most ask again, and are lied to again."""
AT_ONCE = 100
CREDIT = 4 << 20
IN_SOCKETS = 64 << 20
"""More than what kernels and TLS keep of one connection."""
SEED = int(os.environ.get("SLUICE_LIES_SEED", "1"))


@dataclass
class Liars:
    """A job whose worker lies while the file ``flag`` exists."""

    job: Cluster
    workers: ShuffleWorkers
    flag: Path

    def said(self) -> list[str]:
        """All lies that the worker has told so far."""
        found = self.flag.with_suffix(".said")
        return found.read_text().splitlines() if found.exists() else []


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def liars(tmp_path_factory: pytest.TempPathFactory, pki: TestPki, spark: SparkRuntime) -> AsyncIterator[Liars]:
    """A job and a lying worker, which starts out honest."""
    directory = tmp_path_factory.mktemp("sealed")
    async with cluster(directory, pki, spark, CONF) as job:
        workers = ShuffleWorkers(
            directory / "liars", pki.issuer, TRUST_DOMAIN, [job.job.job_id], memory_bytes=64 << 20,
            module="tests.lying_worker",
        )  # fmt: skip
        flag = directory / "lies"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LYING_WORKER", str(flag))
            patch.setenv("LYING_SEED", str(SEED))
            await workers.start(job.stack)
        job.job.shuffle = workers
        yield Liars(job, workers, flag)


async def test_worker_stores_only_ciphertext_of_a_sealed_shuffle(liars: Liars) -> None:
    right = [sum(each % 7 < 4 for each in range(ROWS)), ROWS]
    assert await liars.job.run("sealed.write", rows=ROWS) == right
    found = await liars.job.run("sealed.read")
    assert min(found.values()) > 2 * 4  # more than one segment of each map
    stored = [path.read_bytes() for path in liars.workers.data("shuffle-worker-1").rglob("*") if path.is_file()]
    assert sum(map(len, stored)) > ROWS * len(MARK)
    assert not any(MARK.encode() in each for each in stored)


@pytest.mark.timeout(400 + LIES)
async def test_altered_answers_of_a_worker_fail_the_fetch(liars: Liars) -> None:
    before = len(liars.said())
    liars.flag.touch()
    try:
        for number in range(0, LIES, AT_ONCE):
            answer = await liars.job.run("sealed.believe", reads=AT_ONCE, seed=SEED + number)
            assert answer == {"believed": [], "errors": {"FetchFailedException": AT_ONCE}}
    finally:
        liars.flag.unlink()
    assert len(liars.said()) - before >= LIES


async def test_worker_that_sends_more_than_its_credit_is_disconnected(liars: Liars) -> None:
    liars.flag.write_text("flood")
    try:
        assert not await liars.job.run("sealed.flooded", credit=CREDIT)
    finally:
        liars.flag.unlink()
    sent = liars.flag.with_suffix(".flood")
    await until(lambda: sent.exists() and sent.read_text(), "the worker goes on")
    assert int(sent.read_text()) < CREDIT + IN_SOCKETS


async def test_altered_answers_fail_the_job_and_honest_answers_give_the_right_result_again(liars: Liars) -> None:
    right = await liars.job.run("sealed.count")
    liars.flag.touch()
    try:
        with pytest.raises(AssertionError, match=r"partition|segments|shuffle-worker-1"):
            await liars.job.run("sealed.count")
    finally:
        liars.flag.unlink()
    assert await liars.job.run("sealed.count") == right


async def test_plugin_opens_segments_that_python_has_sealed(liars: Liars) -> None:
    sealer = MapSealer(SealKeys(liars.job.job._secret, liars.job.job.job_id), 7, 1 << 40)
    segments = [sealer.seal(2, b"one"), sealer.seal(3, b"other"), sealer.seal(2, b"", last=True)]
    places = [(2, b"one", 0), (3, b"other", 0), (2, b"", 2)]
    for sequence, (segment, (partition, data, last)) in enumerate(zip(segments, places, strict=True)):
        found = await liars.job.run(
            "sealed.open_segment", sealed=base64.b64encode(segment).decode(), shuffle=7,
            place=[partition, 1 << 40, sequence],
        )  # fmt: skip
        assert found == [base64.b64encode(data).decode(), last]
