"""Writes that are retried while a store is unavailable, and the record of a job whose result is refused for good."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from sluice.runtime.checkpoint import CheckpointsUnavailable
from sluice.runtime.ha import PointerConflict, StorageUnavailable
from sluice.runtime.jobmanager.views import Failure, JobRecord
from sluice.runtime.messages import JobState

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

FIRST_RETRY_SECONDS = 0.2
LONGEST_RETRY_SECONDS = 5.0
"""Longest pause in seconds between retries while a store is unavailable."""
CONFLICT_TRIES = 5
"""How often a write is tried when others write the same entry."""


async def retry_while_unavailable(
    work: Callable[[], Awaitable[_T]],
    what: str,
    check: Callable[[], None],
    *,
    first_retry: float = FIRST_RETRY_SECONDS,
) -> _T:
    """The result of ``work``, retried as long as a store is unavailable and this process leads.

    Args:
        work: safe to repeat.
        what: the part of a job that is written, for the log.
        check: raises ``LeadershipLost``.
        first_retry: seconds before the first retry; each later pause is twice as long, up to a limit.

    Raises:
        LeadershipLost: this process does not lead.
        SluiceError: what ``work`` raised, if a retry cannot help.
    """
    delay, conflicts = first_retry, 0
    while True:
        try:
            return await work()
        except (StorageUnavailable, CheckpointsUnavailable) as error:
            _LOG.warning("a job waits for the storage with %s: %s", what, error)
        except PointerConflict as error:
            conflicts += 1
            if conflicts >= CONFLICT_TRIES:
                raise
            _LOG.warning("a job tries again with %s: %s", what, error)
        await asyncio.sleep(delay)
        check()
        delay = min(delay * 2, LONGEST_RETRY_SECONDS)


def unwritten_result_record(record: JobRecord, error: Exception, now_ms: int) -> JobRecord:
    """The record of a job whose result could not be written: the job has failed, and the record says why."""
    detail = record.detail
    failure = Failure(
        error=f"it was {detail.state}, and that could not be written down, so the next leader runs it again: {error}",
        traceback=detail.failure.traceback if detail.failure is not None else "",
    )
    timestamps = {**detail.timestamps, JobState.FAILED.value: now_ms}
    ended = msgspec.structs.replace(detail, state=JobState.FAILED, failure=failure, timestamps=timestamps)
    return msgspec.structs.replace(record, detail=ended)
