"""Archiving of ended jobs: a job that cannot be archived is counted and does not hold anything up."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sluice.core.errors import SluiceError
from sluice.core.metrics import REGISTRY
from sluice.runtime.ha.errors import LeadershipLost, StorageUnavailable
from sluice.runtime.jobmanager.dispatcher.job_archiving import JobArchiver

JOB = "1" * 32


class Archive:
    """A fake archive that fails with the given error, if any."""

    def __init__(self, error: SluiceError | None) -> None:
        self.error = error
        self.trimmed = 0

    async def put(self, record: object, logs: object, events: object) -> None:
        if self.error is not None:
            raise self.error

    async def trim(self) -> None:
        self.trimmed += 1


def lost() -> float:
    return REGISTRY.get_sample_value("sluice_history_jobs_lost_total") or 0.0


def archiver(archive: Archive) -> JobArchiver:
    anything: Any = archive
    jobs: Any = {JOB: SimpleNamespace(record=SimpleNamespace(detail=None))}
    return JobArchiver(anything, jobs, anything, lambda: 0.0)


async def test_a_job_that_cannot_be_archived_is_counted_as_lost_and_the_archive_still_trimmed() -> None:
    before, archive = lost(), Archive(StorageUnavailable("no space left"))
    await archiver(archive).keep(JOB)
    assert (lost() - before, archive.trimmed) == (1, 1)


async def test_a_job_that_is_archived_or_left_to_another_leader_is_not_counted_as_lost() -> None:
    before = lost()
    await archiver(Archive(None)).keep(JOB)
    with pytest.raises(LeadershipLost):
        await archiver(Archive(LeadershipLost("another one leads"))).keep(JOB)
    assert lost() == before
