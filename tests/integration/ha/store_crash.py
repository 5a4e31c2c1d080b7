"""Takes one job through its life in the store repeatedly, killed one step later each time.

Used by test_store_crash.py.

    python store_crash.py DIRECTORY

The process gets SIGKILL right before a step (:data:`tests.crash_injection.STEPS`). Prints one JSON object
per crash: what the store had confirmed by then, and what the next leader finds.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from functools import partial
from pathlib import Path

import msgspec

from sluice.runtime.blob.store import BlobStore
from sluice.runtime.ha.embedded import EmbeddedElection
from sluice.runtime.ha.storage import LocalStorage
from sluice.runtime.jobmanager.dispatcher.job_records import accepted_detail
from sluice.runtime.jobmanager.store.job_store import JobStore
from sluice.runtime.jobmanager.views import JobRecord
from sluice.runtime.messages import JobState, JobSubmission
from tests.crash_injection import die_before, killed

JOB = "0123456789abcdef" * 2
CONTENT = b"print(1)"


def submission(blobs: BlobStore) -> JobSubmission:
    """Return a submission whose pipeline is stored in ``blobs``."""
    with blobs.writer(JOB, "p.py") as writer:
        writer.write(CONTENT)
        return JobSubmission(name="p.py", owner="alice", pipeline=writer.commit())


def result(wanted: JobSubmission) -> JobRecord:
    """Return the record of the job after it has finished."""
    detail = accepted_detail(JOB, wanted, 1)
    ended = msgspec.structs.replace(detail, state=JobState.FINISHED, end_time=2, duration_ms=1)
    return JobRecord(submission=wanted, detail=ended)


async def live(directory: Path, confirm: int) -> None:
    """Run the whole life of a job, and write each confirmed stage to the descriptor ``confirm``."""
    blobs = BlobStore(directory / "blobs", 1 << 20)
    wanted = submission(blobs)
    election = EmbeddedElection(directory / "ha")
    leadership = await election.elect(lambda: None)
    store = JobStore(leadership.pointers, LocalStorage(directory / "storage"), epoch=leadership.epoch, origin="o")
    await store.accept(JOB, wanted, 1, lambda digest: blobs.path(JOB, digest))
    os.write(confirm, b"accepted\n")
    number = (await store.begin_attempt(JOB)).number
    os.write(confirm, b"attempt %d\n" % number)
    await store.put_result(result(wanted))
    os.write(confirm, b"ended\n")
    await store.clean(JOB)
    os.write(confirm, b"clean\n")
    await store.forget(JOB)
    os.write(confirm, b"forgotten\n")


def live_and_die(directory: Path, step: int, confirm: int) -> None:
    """Run the whole life of a job, killed before its ``step``-th step."""
    die_before(step)
    asyncio.run(live(directory, confirm))


async def look(directory: Path) -> dict[str, object]:
    """What the next leader finds, and what is left when it has cleaned up."""
    leadership = await EmbeddedElection(directory / "ha").elect(lambda: None)
    storage = LocalStorage(directory / "storage")
    store = JobStore(leadership.pointers, storage, epoch=leadership.epoch, origin="o")
    found = await store.recover()
    submissions = [job.submission for job in found.accepted if job.submission is not None]
    blobs = [b"".join(store.blob_chunks(JOB, each.pipeline)) == CONTENT for each in submissions]
    attempts = [(await store.begin_attempt(job.job_id)).number for job in found.accepted]
    for ended in found.ended:
        await store.clean(ended.summary.id)
    left = storage.names("jobs")
    again = await store.recover()
    await leadership.resign()
    return {
        "epoch": leadership.epoch,
        "accepted": len(found.accepted),
        "blobs": blobs,
        "attempts": attempts,
        "ended": [str(ended.summary.state) for ended in found.ended if ended.record is not None],
        "dirty": [ended.dirty for ended in found.ended],
        "damaged": list(found.damaged),
        "left": len(left),
        "again": len(again.accepted),
        "still dirty": any(ended.dirty for ended in again.ended),
    }


def main(directory: Path) -> None:
    """Entry point."""
    for step in itertools.count(1):
        place = directory / str(step)
        place.mkdir()
        died, confirmed = killed(partial(live_and_die, place, step))
        report = {"step": step, "killed": died, "confirmed": confirmed, **asyncio.run(look(place))}
        sys.stdout.write(json.dumps(report) + "\n")
        if not died:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
