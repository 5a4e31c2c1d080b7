"""Decides whether a driver attempt succeeded, and why it failed. No I/O.

An exit code alone proves nothing: a driver that has lost its Spark can still exit with code 0.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from sluice.runtime.messages import DriverExit
from sluice.runtime.node import Exit
from sluice.runtime.out_of_memory import describe_exit
from sluice.runtime.sandbox import Limits, hint
from sluice.runtime.spark.causes import cause, last_line, last_traceback

MAX_TRACEBACK_CHARACTERS = 32_768
"""Maximum length of the reported part of the pipeline's standard error."""

UNCAUGHT = 1
"""The exit code of Python after an uncaught exception or ``sys.exit("message")``."""
CODES_WITH_MESSAGE = frozenset({UNCAUGHT, 2})
"""Exit codes of programs that print the reason on their last line: ``sys.exit("message")`` and argparse."""
NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Ending:
    """The facts about the end of an attempt.

    Attributes:
        python: the exit of the pipeline's process; None: it never started.
        jvm_died: the exit of the JVM if it failed or ended before the pipeline; otherwise None.
        spark_lost: whether a SparkContext disappeared without having stopped normally.
        cancelled: whether the attempt was cancelled.
        fenced: whether the agent lost its JobMaster, or the JobMaster no longer accepts it as its driver.
        failure: why the attempt could not be started.
        stderr_tail: the end of the pipeline's standard error.
        memory_mb: heap of the driver's JVM in MiB.
        kernel_killed: whether the kernel has killed a process during the attempt because memory was exhausted.
        excess: the limit for which the JVM or pipeline was killed; empty: none.
        limits: the limits that the kernel enforces on the pipeline's process.
    """

    python: Exit | None
    jvm_died: Exit | None = None
    spark_lost: bool = False
    cancelled: bool = False
    fenced: bool = False
    failure: str = ""
    stderr_tail: str = ""
    memory_mb: int = 0
    kernel_killed: bool = False
    excess: str = ""
    limits: Limits = NO_LIMITS


def judge(ending: Ending) -> DriverExit:
    """The result of an attempt. It is a success only if the pipeline exited with code 0 and nothing else failed."""
    code = ending.python.code if ending.python is not None else -1
    stderr = ending.stderr_tail
    traceback = (last_traceback(stderr) or stderr.strip())[-MAX_TRACEBACK_CHARACTERS:]
    if ending.cancelled:
        error = "the driver was cancelled"
    elif ending.fenced:
        error = "the driver lost its JobMaster and stopped itself"
    elif ending.excess:
        error, traceback = ending.excess, ""
    elif ending.failure:
        error = ending.failure
    elif ending.jvm_died is not None:
        error = f"the driver's JVM ended before the pipeline: {_jvm_end(ending, ending.jvm_died)}"
    elif ending.python is None:
        error = "the pipeline was never started"
    elif code != 0:
        error = _error_of(ending.python, ending.stderr_tail, kernel_killed=ending.kernel_killed)
        refused = hint(error, ending.limits)
        error += f" ({refused})" if refused else ""
    elif ending.spark_lost:
        error = "Spark was lost while the pipeline ran"
    else:
        return DriverExit(succeeded=True, exit_code=0)
    return DriverExit(succeeded=False, exit_code=code, error=error, traceback=traceback)


def _jvm_end(ending: Ending, died: Exit) -> str:
    return describe_exit(
        died, memory_mb=ending.memory_mb, setting="driver_memory_mb in [spark]", kernel_killed=ending.kernel_killed
    )


def _error_of(ended: Exit, stderr: str, *, kernel_killed: bool) -> str:
    """Why a pipeline ended with an exit code other than 0, in one line."""
    if ended.code == -signal.SIGKILL and kernel_killed:
        return (
            f"out of memory: the kernel killed the pipeline's Python process ({ended}); collect less into it, "
            "or give the machine or container more memory"
        )
    if ended.code < 0:
        return f"the pipeline was {ended}"
    # An uncaught exception ends Python with code 1. The program chose any other code itself.
    raised = cause(last_traceback(stderr)) if ended.code == UNCAUGHT else ""
    said = last_line(stderr)
    if raised or (said and ended.code in CODES_WITH_MESSAGE):
        return raised or said
    return f"the pipeline ended with {ended}" + (f": {said}" if said else "")
