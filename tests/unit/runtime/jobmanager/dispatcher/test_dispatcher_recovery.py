"""A new leader removes the previous leader's job files before its jobs fetch their own."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sluice.runtime.blob.store import BlobStore, BlobWriter
from sluice.runtime.jobmanager.dispatcher.endpoint import Dispatcher
from sluice.runtime.jobmanager.store.job_history import JobHistory
from sluice.runtime.jobmanager.store.job_store import AcceptedJob, Attempt, Recovered
from sluice.runtime.messages import BlobRef, JobSubmission
from sluice.runtime.restart_config import RestartConfig

CONTENT = b"print(1)"
PIPELINE = BlobRef(sha256=hashlib.sha256(CONTENT).hexdigest(), name="p.py", size=len(CONTENT))
JOBS = ("a" * 32, "b" * 32)


class Store:
    """A store with two accepted jobs. No attempt begins before the test ends."""

    origin = "here"

    async def recover(self) -> Recovered:
        submission = JobSubmission(name="p.py", owner="ann", pipeline=PIPELINE)
        jobs = (
            AcceptedJob(
                job_id=job_id, name="p.py", owner="ann", accepted_at=1, cancelled=False, submission=submission,
                attempt=None,
            )
            for job_id in JOBS
        )  # fmt: skip
        return Recovered(accepted=tuple(jobs), ended=())

    def blob_chunks(self, job_id: str, ref: BlobRef) -> Iterator[bytes]:
        assert job_id in JOBS
        assert ref == PIPELINE
        yield CONTENT

    async def begin_attempt(self, job_id: str) -> Attempt:
        assert job_id in JOBS
        await asyncio.Event().wait()
        raise AssertionError


class Histories:
    """A fake history store that answers after a delay, as a real storage does."""

    async def get(self, job_id: str) -> JobHistory:
        assert job_id in JOBS
        await asyncio.sleep(0.05)
        return JobHistory()


class NoHistory:
    """A fake archive without any history."""

    async def load(self) -> None:
        """Do nothing."""

    async def trim(self) -> None:
        """Do nothing."""


class Term:
    """A fake term whose holder always leads."""

    granted_at = 0.0

    def check(self) -> None:
        """Always passes."""


class Blobs(BlobStore):
    """A blob store that records which files are fetched and removed."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, 1000)
        self.events: list[tuple[str, str]] = []

    def writer(self, job_id: str, name: str) -> BlobWriter:
        self.events.append(("fetch", job_id))
        return super().writer(job_id, name)

    def remove_job(self, job_id: str) -> None:
        self.events.append(("remove", job_id))
        super().remove_job(job_id)


async def test_files_of_earlier_leaders_are_removed_before_recovered_jobs_fetch_theirs(tmp_path: Path) -> None:
    blobs, nothing = Blobs(tmp_path / "blobs"), _any(None)
    for job_id in JOBS:
        with blobs.writer(job_id, "old") as writer:
            writer.write(b"of the leader before")
            writer.commit()
    blobs.events.clear()
    dispatcher = Dispatcher(
        store=_any(Store()), history=_any(Histories()), archive=_any(NoHistory()), term=_any(Term()), blobs=blobs,
        resource_manager=nothing, services=_any(SimpleNamespace(drivers=None)),
        finished_jobs_kept=3, lease=0.0, restart=RestartConfig(),
    )  # fmt: skip
    await dispatcher.on_start()
    async with asyncio.timeout(20):
        while sum(what == "fetch" for what, _ in blobs.events) < len(JOBS):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for job_id in JOBS:
            while not (tmp_path / "blobs" / job_id / PIPELINE.sha256).is_file():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert [what for what, _ in blobs.events] == ["remove", "remove", "fetch", "fetch"]
    await dispatcher.on_stop()


def _any(value: object) -> Any:  # a part that stands for another
    return value
