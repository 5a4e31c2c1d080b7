"""Judging how a driver attempt ended. Decisions only; no I/O.

An exit code alone proves nothing: a driver whose Spark was lost can still leave its Python process with code 0.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.messages import DriverExit
from runtime.process import Exit

MAX_TRACEBACK_CHARACTERS = 32_768
"""Longest piece of the pipeline's standard error that is reported."""

_TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known at the end of an attempt.

    Attributes:
        python: how the pipeline's process ended; None when it never started.
        jvm_died: how the JVM ended when it did so before the pipeline, else None.
        spark_lost: a SparkContext vanished without having stopped in order.
        cancelled: somebody asked for the end.
        fenced: the agent lost its JobMaster, or was told that it is not its driver any more.
        failure: why the attempt could not be started.
        stderr_tail: the end of the pipeline's standard error.
    """

    python: Exit | None
    jvm_died: Exit | None = None
    spark_lost: bool = False
    cancelled: bool = False
    fenced: bool = False
    failure: str = ""
    stderr_tail: str = ""


def judge(ending: Ending) -> DriverExit:
    """Success only when the pipeline ended with code 0 and nothing was out of order."""
    code = ending.python.code if ending.python is not None else -1
    traceback = last_traceback(ending.stderr_tail)
    if ending.cancelled:
        error = "the driver was cancelled"
    elif ending.fenced:
        error = "the driver lost its JobMaster and stopped itself"
    elif ending.failure:
        error = ending.failure
    elif ending.jvm_died is not None:
        error = f"the driver's JVM ended before the pipeline: {ending.jvm_died}"
    elif ending.python is None:
        error = "the pipeline was never started"
    elif code != 0:
        error = last_line(traceback) or f"the pipeline ended with {ending.python}"
    elif ending.spark_lost:
        error = "Spark was lost while the pipeline ran"
    else:
        return DriverExit(succeeded=True, exit_code=0)
    return DriverExit(succeeded=False, exit_code=code, error=error, traceback=traceback)


def last_traceback(stderr: str) -> str:
    """The last Python traceback in ``stderr`` with what follows it, or its tail when there is none; bounded."""
    start = stderr.rfind(_TRACEBACK)
    # "During handling of the above exception": the chain belongs together.
    while start > 0:
        before = stderr.rfind(_TRACEBACK, 0, start)
        between = stderr[before:start].rstrip()
        if before < 0 or not between.endswith(
            ("another exception occurred:", "the direct cause of the following exception:")
        ):
            break
        start = before
    return (stderr[start:] if start >= 0 else stderr).strip()[-MAX_TRACEBACK_CHARACTERS:]


def last_line(traceback: str) -> str:
    """The exception's own line: the first one at the margin after the frames of the last traceback."""
    lines = traceback[max(traceback.rfind(_TRACEBACK), 0) :].splitlines()
    return next((line[:1000] for line in lines if line and not line[0].isspace() and line != _TRACEBACK), "")
