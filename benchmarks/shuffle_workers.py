"""A shuffle service without a manager: shuffle workers in separate processes, with fixed allocations.

Every shuffle gets all workers. The data plane is the real one.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import psutil

from sluice.core import write_secret
from sluice.pki import Role, SpiffeId
from sluice.pki.issuing import DirectoryIssuer
from sluice.runtime import ShuffleAllocation, WorkerAddress

HOST = "127.0.0.1"
START_SECONDS = 60.0
MAX_SHUFFLES_PER_CONTEXT = 1 << 20


@dataclass
class ShuffleWorkers:
    """Runs ``count`` workers that serve the jobs in ``jobs``; ``replicas`` of them keep each map's output.

    ``options`` are further options of ``python -m sluice.runtime.shuffle.worker``, or of another ``module`` with the
    same interface.
    """

    directory: Path
    issuer: DirectoryIssuer
    trust_domain: str
    jobs: Sequence[str]
    count: int = 1
    replicas: int = 1
    memory_bytes: int = 256 << 20
    options: Sequence[str] = ()
    module: str = "sluice.runtime.shuffle.worker"
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    _addresses: dict[str, WorkerAddress] = field(default_factory=dict)
    _key: bytes = field(default_factory=lambda: secrets.token_bytes(8), repr=False)

    async def start(self, stack: AsyncExitStack) -> None:
        """Start the workers; they end with ``stack``."""
        self.directory.mkdir()
        write_secret(self.directory / "jobs", "".join(f"{job} {self._key.hex()}\n" for job in self.jobs).encode())
        stack.push_async_callback(self._stop)
        async with asyncio.timeout(START_SECONDS):
            for number in range(1, self.count + 1):
                await self.start_worker(f"shuffle-worker-{number}")

    async def start_worker(self, name: str, port: int = 0) -> None:
        """Start one worker. It recovers the data in its directory, if there is any."""
        identity = self.directory / name / "identity"
        if not identity.exists():
            worker = SpiffeId.process(self.trust_domain, Role.SHUFFLE_WORKER, name)
            self.issuer.issue_to(identity, worker, dns=["localhost"], ips=[HOST])
        with (self.directory / name / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", self.module),
                *(
                    "--identity",
                    str(identity),
                    "--directory",
                    str(self.data(name)),
                    "--jobs",
                    str(self.directory / "jobs"),
                ),
                *("--memory-bytes", str(self.memory_bytes), "--port", str(port), *self.options),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self.processes[name] = process
        if process.stdout is None:
            raise RuntimeError(f"{name} has no output")
        _, host, bound = (await process.stdout.readline()).decode().split()
        self._addresses[name] = WorkerAddress(name, host, int(bound))

    def data(self, name: str) -> Path:
        """Return the data directory of a worker."""
        return self.directory / name / "data"

    def allocate(self, context: int, shuffle_id: int) -> ShuffleAllocation:
        """Allocate all workers, under a shuffle number that is unique across SparkContexts."""
        number = _number(context, shuffle_id)
        return ShuffleAllocation(number, tuple(self._addresses.values()), self.replicas, self._key)

    def release(self, job_id: str, context: int, shuffle_id: int) -> None:
        """Remove a shuffle that Spark no longer needs, as the service does."""
        line = f"release {job_id} {_number(context, shuffle_id)}\n".encode()
        for process in self.processes.values():
            if process.stdin is not None and process.returncode is None:
                process.stdin.write(line)

    async def statistics(self, name: str) -> dict[str, Any]:
        """Return the report of a worker."""
        process = self.processes[name]
        if process.stdin is None or process.stdout is None:
            raise RuntimeError(f"{name} has no input or output")
        process.stdin.write(b"\n")
        answer: dict[str, Any] = msgspec.json.decode(await process.stdout.readline())
        return answer

    def cpu_seconds(self) -> float:
        """CPU time of the running workers so far."""
        times = [psutil.Process(each.pid).cpu_times() for each in self.processes.values() if each.returncode is None]
        return sum(each.user + each.system for each in times)

    async def kill(self, name: str) -> None:
        """Kill one worker with SIGKILL."""
        self.processes[name].kill()
        await self.processes[name].wait()

    async def _stop(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
                await process.wait()


def _number(context: int, shuffle_id: int) -> int:
    return context * MAX_SHUFFLES_PER_CONTEXT + shuffle_id
