"""The exceptions of a job: what went wrong in which attempt, where, and the cause of it. Bounded; no I/O.

After Flink's exception history. An entry that ended an attempt is worth more than one that the job got over, so those
go last when there are too many.
"""

from __future__ import annotations

from runtime.jobmanager.views import ExceptionEntry
from runtime.spark.causes import HEADING, cause

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


def shortened(text: str, limit: int) -> str:
    """The end of ``text``, which says most in a traceback."""
    return text[-limit:]
