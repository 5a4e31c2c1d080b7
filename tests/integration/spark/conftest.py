"""One compiled plugin, one PKI and one running job for all tests of this package.

They are shared because starting JVMs takes long.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from sluice.runtime.messages import ConnectionEvidence
from sluice.runtime.spark.evidence import read_evidence
from sluice.runtime.spark.jvm.command import SparkRuntime, find_spark_runtime
from tests.hostile import TestPki
from tests.integration.spark.small_cluster import RunningJob, Work, reports_of, running_job
from tests.shared_folder import shared_folder

PIPELINES = Path(__file__).parent / "pipelines"


@pytest.fixture(scope="session")
def spark() -> SparkRuntime:
    """The Spark runtime: Java, Spark and the plugin."""
    return find_spark_runtime()


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> TestPki:
    """A PKI that issues the identities of all jobs of the session."""
    return TestPki(tmp_path_factory.mktemp("pki"))


@dataclass
class Rounds:
    """A job that runs a round of work whenever it is told to."""

    job: RunningJob
    folder: Path
    done: int = 0

    async def run(self) -> dict[str, int]:
        """Run one more round and return its result."""
        self.done += 1
        (self.folder / f"go-{self.done}").touch()
        result = self.folder / f"result-{self.done}"
        await self.job.until(lambda: result.exists() or self.job.master.finished.done())
        assert result.exists(), self.job.log("driver.stderr")
        decoded: dict[str, int] = json.loads(result.read_text())
        return decoded

    def driver_jvm(self) -> psutil.Process:
        """The driver's JVM."""
        return self.job.processes("java")[0]

    def jdk_executor(self) -> int:
        """The number of a running executor that uses the JDK's TLS engine."""
        return next(number for number in self.job.master.executors if number % 2)

    def openssl_executor(self) -> int:
        """The number of a running executor that uses OpenSSL's TLS engine."""
        return next(number for number in self.job.master.executors if not number % 2)

    def evidence(self) -> tuple[ConnectionEvidence, ...]:
        """The connections that the driver and all executors recorded."""
        executors = range(1, self.job.master.launched + 1)
        directories = [self.job.identity_dir, *(self.job.master.identity_dir(number) for number in executors)]
        return tuple(line for directory in directories for line in read_evidence(reports_of(directory)).connections)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def rounds(pki: TestPki, spark: SparkRuntime, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rounds]:
    """A running job with two executors that has done a first round.

    The scope is a module, not longer: the job's event loop stands still while tests elsewhere run, and then
    its driver gives up.
    """
    directory = tmp_path_factory.mktemp("rounds")
    folder = shared_folder(directory)
    work = Work(
        PIPELINES / "rounds.py",
        args=[str(folder)],
        # Executors on one machine would otherwise read each other's files.
        conf={"spark.scheduler.minRegisteredResourcesRatio": "1.0"},
        shared=folder,
    )
    async with running_job(pki, directory / "job", spark, work) as job:
        rounds = Rounds(job, folder)
        await rounds.run()
        yield rounds
        (folder / "stop").touch()
        assert (await job.result()).succeeded
