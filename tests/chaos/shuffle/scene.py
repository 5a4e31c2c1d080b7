"""A small cluster on which faults happen one after the other, each followed by a repair."""

from __future__ import annotations

import contextlib
import json
import os
import resource
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from benchmarks.shuffle_workers import ShuffleWorkers
from sluice.runtime.messages import ShuffleAllocation
from sluice.runtime.spark.jvm.command import SparkRuntime
from tests.chaos.shuffle.network import FaultProxy
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.system.shuffle.cluster import SHAPE, Cluster, cluster

WORKERS = ("shuffle-worker-1", "shuffle-worker-2", "shuffle-worker-3")
MEMORY_BYTES = 64 << 20
LEAST_BYTES = 2000
"""A worker with less traffic in a run has no part in it: so much is said without a map."""
CONF = {
    "spark.sluice.shuffle.timeout": "5s",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.excludeOnFailure.enabled": "false",
}


@dataclass(frozen=True, slots=True)
class Flavour:
    """A configuration of the cluster for some of the runs."""

    name: str
    conf: Mapping[str, str]
    worker_options: Sequence[str] = ()


ALL_FLAVOURS = (
    Flavour("plain", {}),
    Flavour(
        "sealed-small-zstandard-pipelined",
        {
            "spark.sluice.shuffle.seal": "true",
            "spark.io.compression.codec": "zstd",
            "spark.sluice.shuffle.buffer": "8k",
            "spark.sluice.shuffle.frame": "64k",
        },
        ("--layout", "map", "--policy", "pipelined"),
    ),
    Flavour(
        "sealed-uncompressed-hybrid",
        {"spark.sluice.shuffle.seal": "true", "spark.shuffle.compress": "false", "spark.reducer.maxSizeInFlight": "1m"},
        ("--policy", "hybrid"),
    ),
    Flavour(  # statuses of maps say of many partitions only which of them are empty
        "sealed", {"spark.sluice.shuffle.seal": "true", "spark.shuffle.minNumPartitionsToHighlyCompress": "8"}
    ),
    Flavour("encrypted-by-spark", {"spark.io.encryption.enabled": "true"}, ("--engine", "standard")),
)
FLAVOURS = tuple(each for each in ALL_FLAVOURS if each.name.startswith(os.environ.get("SLUICE_CHAOS_FLAVOUR", "")))


@dataclass
class ProxiedWorkers(ShuffleWorkers):
    """Shuffle workers that jobs reach through proxies, which can inject network faults."""

    proxies: dict[str, FaultProxy] = field(default_factory=dict)

    @asynccontextmanager
    async def open_proxies(self) -> AsyncIterator[None]:
        """Start a proxy for each worker. At the end of the block, close all proxies that are open then."""
        for name in self.processes:
            self.proxies[name] = await FaultProxy.open(self.port(name))
        yield
        for proxy in self.proxies.values():
            proxy.close()

    async def move_proxy(self, name: str) -> None:
        """Replace a worker's proxy by one at another address, and close the old one."""
        old = self.proxies[name]
        old.close()
        self.proxies[name] = await FaultProxy.open(self.port(name))
        self.proxies[name].passed, self.proxies[name].harmed = old.passed, old.harmed

    def allocate(self, context: int, shuffle_id: int) -> ShuffleAllocation:
        """Allocate all workers, each at the address of its proxy."""
        found = super().allocate(context, shuffle_id)
        workers = tuple(msgspec.structs.replace(each, port=self.proxies[each.name].port) for each in found.workers)
        return msgspec.structs.replace(found, workers=workers)

    def port(self, name: str) -> int:
        """Return the port on which the worker itself listens."""
        return self._addresses[name].port

    async def start_worker(self, name: str, port: int = 0) -> None:
        """Start one worker, and point its proxy to it."""
        await super().start_worker(name, port)
        if name in self.proxies:
            self.proxies[name].lead_to(self.port(name))


@dataclass
class Scene:
    """The cluster, and the damage that a run has done to it."""

    job: Cluster
    workers: ProxiedWorkers
    is_usable: bool = True
    broken: set[str] = field(default_factory=set)
    """Workers that have to be started again before the next run."""
    seen: set[str] = field(default_factory=set)
    """Effects of the run's fault that no log tells."""
    volume: int = 0
    """About how many bytes the run shuffles."""
    _passed: dict[str, int] = field(default_factory=dict)
    _old: set[Path] = field(default_factory=set)

    @property
    def passed(self) -> int:
        """The number of bytes between the job and the workers in this run."""
        return sum(self._passed_at(name) for name in WORKERS)

    def used(self) -> list[str]:
        """Return the workers that this run has used so far, or all workers if it has used none yet."""
        return [name for name in WORKERS if self._passed_at(name) > LEAST_BYTES] or list(WORKERS)

    def files(self, name: str) -> list[Path]:
        """Return the non-empty files that this run has written on a worker.

        They disappear when the job no longer needs them.
        """
        found = []
        for path in sorted(self._files(name) - self._old):
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size:
                    found.append(path)
        return found

    def _files(self, name: str) -> set[Path]:
        """Return the files of all shuffles of a worker: ``JOB/SHUFFLE/FILE``.

        Spare files, which wait to be overwritten, are not included.
        """
        walk = os.walk(self.workers.data(name))  # which takes it easy when a folder goes meanwhile
        return {Path(folder) / file for folder, _, files in walk if Path(folder).name.isdigit() for file in files}

    def keepers(self) -> list[str]:
        """Return the workers that have files of this run or, if there are none, those that the run has used."""
        return [name for name in WORKERS if self.files(name)] or self.used()

    def _passed_at(self, name: str) -> int:
        return self.workers.proxies[name].passed - self._passed.get(name, 0)

    async def ask(self, function: str, job: Mapping[str, Any]) -> Mapping[str, str]:
        """Send a job to the driver program, and return its answer: ``result`` or ``error``."""
        answer: dict[str, str] = json.loads(
            await self.job.job.ask(json.dumps({"run": f"seeded.{function}", "job": job}))
        )
        return answer

    def process(self, name: str) -> psutil.Process:
        """Return the process of a worker."""
        return psutil.Process(self.workers.processes[name].pid)

    def limit_files(self, name: str, size: int) -> None:
        """Limit the size of a worker's files to ``size`` bytes from now on, as if its disk was full."""
        resource.prlimit(self.workers.processes[name].pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        self.broken.add(name)

    async def kill_executor(self, which: int) -> None:
        """Kill an executor with SIGKILL, and start another one, as a TaskManager would."""
        running = [each for each in self.job.job.executors.values() if each.running]
        victim = running[which % len(running)]
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(victim.pid).kill()
        await victim.wait()
        if self.passed > LEAST_BYTES:
            self.seen.add("executor with outputs gone")
        await self.job.job.start_executor(max(self.job.job.executors) + 1)

    async def repair(self) -> None:
        """Repair everything. Workers are restarted with the data in their directories."""
        for name in WORKERS:
            process = self.workers.processes[name]
            if name in self.broken and process.returncode is None:
                await self.workers.kill(name)
            if process.returncode is not None:
                await self.workers.start_worker(name)
        self.broken.clear()
        for proxy in self.workers.proxies.values():
            proxy.repair()

    def forget(self) -> None:
        """Begin a new run: forget the seen effects, and do not count earlier traffic and files any more."""
        self.seen.clear()
        for name, proxy in self.workers.proxies.items():
            self._passed[name] = proxy.passed
            self._old |= self._files(name)


@asynccontextmanager
async def scene(directory: Path, pki: TestPki, spark: SparkRuntime, flavour: Flavour) -> AsyncIterator[Scene]:
    """Run a cluster with two executors and three workers within the block."""
    async with AsyncExitStack() as stack:
        job = await stack.enter_async_context(cluster(directory, pki, spark, {**CONF, **flavour.conf}))
        workers = ProxiedWorkers(
            directory / "proxies", pki.issuer, TRUST_DOMAIN, [job.job.job_id], len(WORKERS), 1, MEMORY_BYTES,
            flavour.worker_options,
        )  # fmt: skip
        await workers.start(stack)
        await stack.enter_async_context(workers.open_proxies())
        job.job.shuffle = workers
        assert len(job.job.executors) == SHAPE.executors
        yield Scene(job, workers)
