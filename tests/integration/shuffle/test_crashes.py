"""Killed worker processes and damaged files.

A read returns the right data or fails with a clear error; it never returns wrong data.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluice.core.files import SECRET_MODE
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.shuffle.client.client import ShuffleClient, WorkerAddress
from sluice.runtime.shuffle.control_plane.messages import WorkerReport
from sluice.runtime.shuffle.data_plane.errors import (
    Draining,
    MapUnknown,
    QuotaExceeded,
    SegmentCorrupt,
    ShuffleUnavailable,
)
from tests.integration.shuffle.conftest import JOB, KEY, StartWorker, client

SHUFFLE = 3
DEADLINE_SECONDS = 60.0


@asynccontextmanager
async def process(
    identity: TlsIdentity, folder: Path
) -> AsyncIterator[tuple[asyncio.subprocess.Process, WorkerAddress]]:
    """Run a worker that serves the job, in a process of its own."""
    jobs = folder / "jobs"
    jobs.write_text(f"{JOB} {KEY}\n")
    jobs.chmod(SECRET_MODE)
    argv = ["--identity", str(identity.directory), "--directory", str(folder / "data"), "--jobs", str(jobs)]
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sluice.runtime.shuffle.worker",
        *argv,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert running.stdout is not None
    assert running.stdin is not None
    try:
        line = await asyncio.wait_for(running.stdout.readline(), DEADLINE_SECONDS)
        _, host, port = line.decode().split()
        yield running, WorkerAddress(identity.spiffe_id.name, host, int(port))
    finally:
        running.stdin.close()
        await asyncio.wait_for(running.wait(), DEADLINE_SECONDS)


async def test_committed_maps_survive_kill_9(identities: dict[str, TlsIdentity], tmp_path: Path) -> None:
    written = {(partition, sequence): bytes([partition]) * 5000 for sequence, partition in enumerate([0, 1, 2] * 20)}
    async with (
        process(identities["w-1"], tmp_path) as (running, address),
        ShuffleClient(identities["executor"], [address], KEY) as executor,
    ):
        whole, half = executor.writer(SHUFFLE, 1, map_index=0), executor.writer(SHUFFLE, 2, map_index=0)
        for (partition, _), data in written.items():
            await whole.write(partition, data)
            await half.write(partition, data)
        await half.flush()
        await whole.commit()
        running.send_signal(signal.SIGKILL)
        await running.wait()
        with pytest.raises(ShuffleUnavailable):
            await half.commit()
    async with (
        process(identities["w-1"], tmp_path) as (_, address),
        ShuffleClient(identities["executor"], [address], KEY) as executor,
    ):
        found = {(s.partition, s.sequence): s.data async for s in executor.read(SHUFFLE, [address], [1], 0, 3)}
        assert found == written
        with pytest.raises(MapUnknown):
            _ = [each async for each in executor.read(SHUFFLE, [address], [2], 0, 3)]


@pytest.mark.parametrize("damage", ["flipped bit", "cut off"])
async def test_damage_on_disk_is_reported_and_the_replica_is_read(
    start_worker: StartWorker, identities: dict[str, TlsIdentity], damage: str
) -> None:
    workers = [await start_worker("w-1"), await start_worker("w-2")]
    async with client(identities, *workers, replicas=2) as executor:
        writer = executor.writer(SHUFFLE, 1, map_index=0)
        for partition in range(4):
            await writer.write(partition, bytes([partition]) * 1000)
        where = await writer.commit()
        path = workers[0].config.directories[0] / JOB / str(SHUFFLE) / "data"
        content = bytearray(path.read_bytes())
        content[2500] ^= 1
        path.write_bytes(content if damage == "flipped bit" else content[:2500])
        with pytest.raises(SegmentCorrupt, match="partition 2") as error:
            _ = [each async for each in executor.read(SHUFFLE, where[:1], [1], 0, 4)]
        assert (error.value.partition, error.value.map_id) == (2, 1)
        assert [each.data async for each in executor.read(SHUFFLE, where[:1], [1], 0, 2)] == [bytes(1000), b"\1" * 1000]
        found = [each async for each in executor.read(SHUFFLE, where, [1], 0, 4)]
        assert [each.data for each in found] == [bytes([partition]) * 1000 for partition in range(4)]


async def test_a_draining_worker_finishes_open_maps_and_accepts_no_new_ones(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker()
    async with client(identities, worker) as executor:
        begun = executor.writer(SHUFFLE, 1, map_index=0)
        await begun.write(0, b"before")
        await begun.flush()
        await _pushed(worker.worker.report, 6)
        worker.worker.drain(True)
        await begun.write(0, b"after")
        where = await begun.commit()
        late = executor.writer(SHUFFLE, 2, map_index=0)
        await late.write(0, b"late")
        with pytest.raises((Draining, MapUnknown)):
            await late.commit()
        assert [each.data async for each in executor.read(SHUFFLE, where, [1], 0, 1, ordered=True)] == [
            b"before",
            b"after",
        ]


async def test_a_job_cannot_have_more_than_its_quota(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    worker = await start_worker(job_quota_bytes=30_000)
    async with client(identities, worker) as executor:
        writer = executor.writer(SHUFFLE, 1, map_index=0)
        await writer.write(0, bytes(15_000))
        await writer.commit()
        more = executor.writer(SHUFFLE, 2, map_index=0)
        await more.write(0, bytes(10_000))
        with pytest.raises((QuotaExceeded, MapUnknown)):
            await more.commit()


async def _pushed(report: Callable[[], WorkerReport], size: int) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while sum(job.pushed_bytes for job in report().jobs) < size:  # noqa: ASYNC110  threads change it
            await asyncio.sleep(0.01)
