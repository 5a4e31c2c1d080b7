"""A shuffle worker on real sockets, and clients of jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.shuffle.client.client import ShuffleClient, WorkerAddress
from sluice.runtime.shuffle.worker.config import MIN_MEMORY_BYTES, WorkerConfig
from sluice.runtime.shuffle.worker.worker import ShuffleWorker
from tests.hostile import TRUST_DOMAIN, TestPki

JOB = "a" * 32
OTHER_JOB = "b" * 32
KEY = "0123456789abcdef"


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> TestPki:
    return TestPki(tmp_path_factory.mktemp("pki"))


@pytest.fixture(scope="session")
def identities(pki: TestPki) -> dict[str, TlsIdentity]:
    """The identities of two workers, an executor of the job, and an executor of another job."""
    return {
        "w-1": pki.process(Role.SHUFFLE_WORKER, "w-1"),
        "w-2": pki.process(Role.SHUFFLE_WORKER, "w-2"),
        "executor": pki.identity(SpiffeId.executor(TRUST_DOMAIN, JOB, 1)),
        "other": pki.identity(SpiffeId.executor(TRUST_DOMAIN, OTHER_JOB, 1)),
    }


@dataclass
class Running:
    """A worker that is listening."""

    worker: ShuffleWorker
    address: WorkerAddress
    config: WorkerConfig


StartWorker = Callable[..., Awaitable[Running]]


def config(directory: Path, **settings: object) -> WorkerConfig:
    return WorkerConfig(
        **{"directories": (directory,), "memory_bytes": MIN_MEMORY_BYTES, "reserved_disk_bytes": 1 << 20, **settings}  # type: ignore[arg-type]
    )


@pytest.fixture
async def start_worker(identities: dict[str, TlsIdentity], tmp_path: Path) -> AsyncIterator[StartWorker]:
    """Starts workers. By default they have little memory, and serve the job."""
    running: list[ShuffleWorker] = []

    async def start(name: str = "w-1", *, jobs: tuple[str, ...] = (JOB,), port: int = 0, **settings: object) -> Running:
        made = config(tmp_path / name, **settings)
        worker = ShuffleWorker(made, identities[name])
        for job in jobs:
            worker.allow_job(job, bytes.fromhex(KEY))
        host, port = await worker.start("127.0.0.1", port)
        running.append(worker)
        return Running(worker, WorkerAddress(name, host, port), made)

    yield start
    for worker in running:
        await worker.stop()


def client(
    identities: dict[str, TlsIdentity], *workers: Running, who: str = "executor", replicas: int = 1
) -> ShuffleClient:
    return ShuffleClient(identities[who], [each.address for each in workers], KEY, replicas=replicas)
