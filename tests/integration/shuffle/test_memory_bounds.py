"""How much memory peers can make a worker use.

Measured on a separate process, and by the worker's own accounting.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from sluice.core.files import SECRET_MODE
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.shuffle.control_plane.messages import JobReport, WorkerReport
from sluice.runtime.shuffle.data_plane.check_values import SegmentChecks
from sluice.runtime.shuffle.data_plane.frames import FrameType, Header
from sluice.runtime.shuffle.worker.config import MIN_MEMORY_BYTES, MIN_METADATA_BYTES
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.shuffle.conftest import KEY as TEST_KEY, StartWorker
from tests.integration.shuffle.hungry_peers import FETCHES, PUSHES, Frames
from tests.integration.shuffle.raw_peer import RawPeer, commit_frame, fetch_frame, push_frame

KEY = bytes(range(8))
JOBS = {each.__name__: f"{number:032x}" for number, each in enumerate((*PUSHES, *FETCHES), 1)}
HONEST = "f" * 32
SLACK_BYTES = 16 << 20
"""What an allocator keeps of what was freed, and what a request takes for a moment."""
QUOTA_BYTES = 1 << 20
RECORDS_BYTES = 64 << 10
"""Records of runs and commits, of which nothing more is refused."""


@dataclass
class WorkerProcess:
    """A worker in a process of its own."""

    process: subprocess.Popen[str]
    port: int

    def report(self) -> WorkerReport:
        """Ask the worker for a report."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return msgspec.json.decode(self.process.stdout.readline(), type=WorkerReport)

    def job(self, job_id: str) -> JobReport:
        """The worker's report about one job."""
        return next(job for job in self.report().jobs if job.job_id == job_id)

    @property
    def memory_bytes(self) -> int:
        """The resident memory of the process."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextlib.contextmanager
def worker_process(identity: TlsIdentity, folder: Path, *options: str) -> Iterator[WorkerProcess]:
    """Run a worker with little memory that serves all jobs."""
    jobs = folder / "jobs"
    jobs.write_text("".join(f"{job_id} {KEY.hex()}\n" for job_id in (*JOBS.values(), HONEST)))
    jobs.chmod(SECRET_MODE)
    argv = ["--identity", str(identity.directory), "--directory", str(folder / "data"), "--jobs", str(jobs), *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "sluice.runtime.shuffle.worker", *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield WorkerProcess(process, int(process.stdout.readline().split()[2]))
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def drain(peer: RawPeer) -> None:
    """Read and discard the worker's answers until the connection ends."""
    with contextlib.suppress(OSError):
        while peer.socket.recv(1 << 16):
            pass


@contextlib.contextmanager
def hungry(peer: RawPeer, direction: str, frames: bytes) -> Iterator[int]:
    """Send all ``frames``, and yield their size in bytes. The connection stays open within the block."""
    peer.hello(direction)
    answers = threading.Thread(target=drain, args=(peer,))
    answers.start()
    try:
        for start in range(0, len(frames), 1 << 20):
            peer.socket.sendall(frames[start : start + (1 << 20)])
        yield len(frames)
    finally:
        peer.socket.shutdown(2)
        answers.join(60)


def settle(worker: WorkerProcess) -> None:
    """Wait until the worker has nothing left to read: all threads sleep, and none has run in between."""
    before: list[tuple[str, ...]] = []
    while (now := _threads(worker.process.pid)) != before or any(state != "S" for state, *_ in now):
        before = now
        threading.Event().wait(0.1)


def _threads(pid: int) -> list[tuple[str, ...]]:
    """The state, id, and voluntary and involuntary context switches of each thread."""
    found: list[tuple[str, ...]] = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            lines = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
            switches = (lines["voluntary_ctxt_switches"], lines["nonvoluntary_ctxt_switches"])
            found.append((lines["State"].split()[0], task.name, *switches))
    return found


@functools.cache
def all_of(frames: Callable[[bytes], Frames]) -> bytes:
    """All frames as bytes; cached, since it takes longer to make them than to send them."""
    return b"".join(frames(KEY))


def executor(pki: TestPki, job_id: str) -> TlsIdentity:
    return pki.identity(SpiffeId.executor(TRUST_DOMAIN, job_id, 1))


def attack(
    worker: WorkerProcess, pki: TestPki, frames: Callable[[bytes], Frames], *, direction: str
) -> tuple[int, int]:
    """Send ``frames`` as the job of that name; returns the bytes sent and the growth of the process."""
    before = worker.memory_bytes
    with (
        RawPeer(executor(pki, JOBS[frames.__name__]), worker.port) as peer,
        hungry(peer, direction, all_of(frames)) as sent,
    ):
        settle(worker)
        return sent, worker.memory_bytes - before


def write_and_read(worker: WorkerProcess, pki: TestPki) -> None:
    """Write and read data, as an honest job does."""
    identity = executor(pki, HONEST)
    data = bytes(200_000)
    with RawPeer(identity, worker.port) as writer, RawPeer(identity, worker.port) as reader:
        assert writer.hello("push").kind is FrameType.HELLO_OK
        assert reader.hello("fetch").kind is FrameType.HELLO_OK
        checks = SegmentChecks(KEY, 1)
        writer.send(push_frame(checks, 1, 1, [(each, each, data) for each in range(5)]))
        writer.send(commit_frame(1, 1, 5, 5 * len(data)))
        writer.answer_of(FrameType.COMMIT_OK)
        reader.send(fetch_frame(1, [1], 0, 5))
        size = 0
        while (answer := reader.answer()).header.kind is FrameType.DATA:
            size += len(answer.payload)
        assert answer.header.kind is FrameType.END
        assert size > answer.header.extra == 5 * len(data)


@pytest.mark.timeout(300)
def test_no_job_makes_a_worker_exceed_its_memory_limits(
    identities: dict[str, TlsIdentity], pki: TestPki, tmp_path: Path
) -> None:
    """Each attack by a job of its own, one after the other: all together stay within the limits of the worker, which is
    left with room for others.
    """
    limits = ["--memory-bytes", str(MIN_MEMORY_BYTES), "--metadata-bytes", str(MIN_METADATA_BYTES)]
    with worker_process(identities["w-1"], tmp_path, *limits) as worker:
        begin = worker.memory_bytes
        for direction, variants in (("push", PUSHES), ("fetch", FETCHES)):
            for frames in variants:
                attack(worker, pki, frames, direction=direction)
                report = worker.report()
                assert report.metadata_used <= report.metadata_limit == MIN_METADATA_BYTES
                assert report.memory_used <= MIN_MEMORY_BYTES
                assert worker.memory_bytes - begin <= MIN_MEMORY_BYTES + MIN_METADATA_BYTES + SLACK_BYTES
        write_and_read(worker, pki)


@pytest.mark.timeout(300)
def test_metadata_counts_towards_a_jobs_quota(identities: dict[str, TlsIdentity], pki: TestPki, tmp_path: Path) -> None:
    limits = ["--memory-bytes", str(MIN_MEMORY_BYTES), "--job-quota-bytes", str(QUOTA_BYTES)]
    with worker_process(identities["w-1"], tmp_path, *limits) as worker:
        for frames in PUSHES:
            attack(worker, pki, frames, direction="push")
            job = worker.job(JOBS[frames.__name__])
            assert job.bytes <= QUOTA_BYTES + RECORDS_BYTES
            assert job.refused > 0
        write_and_read(worker, pki)


async def test_reads_that_find_no_memory_wait_for_each_other(
    start_worker: StartWorker, identities: dict[str, TlsIdentity]
) -> None:
    """There is room for one at a time: the others are answered after it, each in full."""
    worker = await start_worker(metadata_bytes=MIN_METADATA_BYTES)
    maps, reads, rows = range(3), range(12), 4096
    with (
        RawPeer(identities["executor"], worker.address.port) as writer,
        RawPeer(identities["executor"], worker.address.port) as reader,
    ):
        writer.hello("push")
        reader.hello("fetch")
        checks = SegmentChecks(bytes.fromhex(TEST_KEY), 1)
        for map_id in maps:
            writer.send(push_frame(checks, 1, map_id, [(each, each, b"x") for each in range(rows)]))
            writer.send(commit_frame(1, map_id, rows, rows))
            writer.answer_of(FrameType.COMMIT_OK)
        reader.send(*(fetch_frame(1, list(maps), 0, rows, request=each, credit=1) for each in reads))
        starved = worker.worker.report().metadata_used
        reader.send(*(Header(FrameType.CREDIT, request=each, extra=1 << 20).pack() for each in reads))
        ended: dict[int, int] = {}
        while len(ended) < len(reads):
            answer = reader.answer()
            if answer.header.kind is FrameType.END:
                ended[answer.header.request] = answer.header.count
    assert ended == dict.fromkeys(reads, len(maps) * rows)
    assert starved <= MIN_METADATA_BYTES
