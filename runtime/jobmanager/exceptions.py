"""The exceptions of a job: what went wrong in which attempt, where, and the cause of it. Bounded; no I/O.

After Flink's exception history. An entry that ended an attempt is worth more than one that the job got over, so those
go last when there are too many.
"""

from __future__ import annotations

import msgspec

from sluice.runtime.jobmanager.views import AttemptView, ExceptionEntry
from sluice.runtime.messages import JobState
from sluice.runtime.spark.causes import HEADING, cause

MAX_EXCEPTIONS = 32
"""Most entries of one job."""
MAX_ERROR_CHARACTERS = 2_000
MAX_TRACEBACK_CHARACTERS = 32_768


def root_cause(error: str, traceback: str) -> str:
    """The innermost cause that ``traceback`` names, or ``error`` when it names none."""
    return cause(traceback) or error[:MAX_ERROR_CHARACTERS]


def headline(error: str, traceback: str) -> str:
    """``error``, or the cause where it is only the beginning of a traceback."""
    cut = error.rstrip().endswith(HEADING)
    return (cause(traceback) if cut else "") or error[:MAX_ERROR_CHARACTERS]


def added(history: tuple[ExceptionEntry, ...], entry: ExceptionEntry) -> tuple[ExceptionEntry, ...]:
    """``history`` with one more entry, and without those there is no room for: the oldest that ended no attempt."""
    entries = [*history, entry]
    while len(entries) > MAX_EXCEPTIONS:
        borne = next((index for index, each in enumerate(entries) if not each.ended_attempt), 0)
        del entries[borne]
    return tuple(entries)


def judged(
    history: tuple[ExceptionEntry, ...], attempts: tuple[AttemptView, ...], state: JobState
) -> tuple[ExceptionEntry, ...]:
    """``history`` with what became of each: a job that finished got over all, an attempt that failed over none of its.

    Args:
        history: of the job.
        attempts: the latest of the job.
        state: of the job.
    """
    outcomes = {each.number: each.outcome for each in attempts}

    def recovered(entry: ExceptionEntry) -> bool | None:
        if state is JobState.FINISHED:
            return True
        failed = entry.ended_attempt or outcomes.get(entry.attempt) == JobState.FAILED.value
        return False if failed and state is JobState.FAILED else None

    return tuple(msgspec.structs.replace(each, recovered=recovered(each)) for each in history)


def shortened(text: str, limit: int) -> str:
    """The end of ``text``, which says most in a traceback."""
    return text[-limit:]
