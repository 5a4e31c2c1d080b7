"""A Spark job on this machine whose shuffles go through workers that tests can kill, or are Spark's own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from benchmarks.shuffle_workers import ShuffleWorkers
from benchmarks.spark_job import Channels, Job
from sluice.runtime.spark.jvm.command import SparkRuntime, TlsEngine
from sluice.runtime.spark.jvm.conf import DriverShape
from tests.hostile import TRUST_DOMAIN, TestPki

SERVE = Path(__file__).parent / "pipelines" / "serve.py"
HOSTS = ("127.0.0.1", "127.0.0.2")
"""Of executors in turn: Spark has no speculative attempt on the host of the first."""
SHAPE = DriverShape(executors=2, executor_cores=2, executor_memory_mb=768, driver_memory_mb=768)

SEALED = tuple(
    pytest.param({"spark.sluice.shuffle.seal": seal}, id=name)
    for name, seal in (("plain", "false"), ("sealed", "true"))
)
"""Settings of a job that does not seal its shuffles, and of one that does."""


@dataclass
class Cluster:
    """One job, and the shuffle workers it has been given so far."""

    directory: Path
    pki: TestPki
    stack: AsyncExitStack
    job: Job
    services: list[ShuffleWorkers] = field(default_factory=list)

    async def serve(self, count: int, replicas: int) -> ShuffleWorkers:
        """Start new shuffle workers for the shuffles from now on."""
        service = ShuffleWorkers(
            self.directory / f"workers-{len(self.services)}", self.pki.issuer, TRUST_DOMAIN, [self.job.job_id], count,
            replicas, memory_bytes=64 << 20,
        )  # fmt: skip
        await service.start(self.stack)
        self.services.append(service)
        self.job.shuffle = service
        return service

    async def run(self, function: str, **arguments: Any) -> Any:
        """Call a function of the pipelines; fails with what it raised."""
        answer = json.loads(await self.job.ask(json.dumps({"run": function, **arguments})))
        assert "error" not in answer, answer["error"]
        return answer["result"]


@asynccontextmanager
async def cluster(
    directory: Path,
    pki: TestPki,
    spark: SparkRuntime,
    conf: Mapping[str, str],
    *,
    shuffle: bool = True,
    shape: DriverShape = SHAPE,
) -> AsyncIterator[Cluster]:
    """A job with two executors.

    Its shuffles go through two workers, or are Spark's own in plaintext.
    """
    channels = Channels.PLAINTEXT
    if shuffle:
        channels = Channels.OPENSSL if spark.engine is TlsEngine.OPENSSL else Channels.JDK
    job = Job(channels, directory / "job", spark, pki.issuer, TRUST_DOMAIN, SERVE, shape, conf, hosts=HOSTS)
    async with AsyncExitStack() as stack:
        found = Cluster(directory, pki, stack, job)
        if shuffle:
            await found.serve(2, 1)
        await job.start(stack)
        yield found


async def both(first: Any, second: Any) -> tuple[Any, Any]:
    """Await two answers at the same time."""
    return await asyncio.gather(first, second)
