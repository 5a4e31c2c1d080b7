"""The exceptions of a job: the attempt, the place and the root cause of each. Bounded; no I/O.

Modelled on Flink's exception history. When there are too many, entries that ended no attempt are dropped first.
"""

from __future__ import annotations

import msgspec

from sluice.runtime.jobmanager.views import AttemptView, ExceptionEntry
from sluice.runtime.messages import JobState
from sluice.runtime.spark import HEADING, cause

MAX_EXCEPTIONS = 32
"""Most entries per job."""
MAX_ERROR_CHARACTERS = 2_000
MAX_TRACEBACK_CHARACTERS = 32_768


def root_cause(error: str, traceback: str) -> str:
    """The innermost cause that ``traceback`` names, or ``error`` when it names none."""
    return cause(traceback) or error[:MAX_ERROR_CHARACTERS]


def headline(error: str, traceback: str) -> str:
    """``error``, or the root cause when ``error`` is only the first line of a traceback."""
    cut = error.rstrip().endswith(HEADING)
    return (cause(traceback) if cut else "") or error[:MAX_ERROR_CHARACTERS]


def with_entry(history: tuple[ExceptionEntry, ...], entry: ExceptionEntry) -> tuple[ExceptionEntry, ...]:
    """``history`` with ``entry``; beyond the limit, the oldest that ended no attempt are dropped."""
    entries = [*history, entry]
    while len(entries) > MAX_EXCEPTIONS:
        dropped = next((index for index, each in enumerate(entries) if not each.ended_attempt), 0)
        del entries[dropped]
    return tuple(entries)


def with_outcomes(
    history: tuple[ExceptionEntry, ...], attempts: tuple[AttemptView, ...], state: JobState
) -> tuple[ExceptionEntry, ...]:
    """``history`` with ``recovered`` set: a finished job has recovered from all, a failed attempt from none of its own.

    Args:
        attempts: the latest attempts of the job.
    """
    outcomes = {each.number: each.outcome for each in attempts}

    def recovered(entry: ExceptionEntry) -> bool | None:
        if state is JobState.FINISHED:
            return True
        failed = entry.ended_attempt or outcomes.get(entry.attempt) == JobState.FAILED.value
        return False if failed and state is JobState.FAILED else None

    return tuple(msgspec.structs.replace(each, recovered=recovered(each)) for each in history)


def last_characters(text: str, limit: int) -> str:
    """The last ``limit`` characters: the end is the most useful part of a traceback."""
    return text[-limit:]
