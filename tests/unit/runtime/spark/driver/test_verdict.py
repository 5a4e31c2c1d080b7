"""How the end of a driver attempt is judged."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sluice.runtime.node.child_process import Exit
from sluice.runtime.sandbox import Limits
from sluice.runtime.spark.causes import MAX_CAUSE_CHARACTERS, last_traceback
from sluice.runtime.spark.driver.verdict import MAX_TRACEBACK_CHARACTERS, Ending, judge

WELL = Exit(0)


def test_an_attempt_with_exit_code_0_and_no_problems_succeeded() -> None:
    assert judge(Ending(WELL)).succeeded


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        pytest.param(Ending(Exit(3)), "exit code 3", id="exit code"),
        pytest.param(Ending(Exit(-9)), "SIGKILL", id="killed"),
        pytest.param(Ending(None), "never started", id="never started"),
        pytest.param(Ending(None, failure="no Java"), "no Java", id="failure to start"),
        pytest.param(Ending(WELL, jvm_died=Exit(-9)), "JVM ended before", id="JVM gone, exit code 0"),
        pytest.param(Ending(WELL, spark_lost=True), "Spark was lost", id="Spark lost, exit code 0"),
        pytest.param(Ending(WELL, fenced=True), "lost its JobMaster", id="fenced, exit code 0"),
        pytest.param(Ending(WELL, cancelled=True), "cancelled", id="cancelled, exit code 0"),
        pytest.param(Ending(Exit(1), cancelled=True, jvm_died=Exit(1)), "cancelled", id="cancelled is the cause"),
    ],
)
def test_any_other_ending_is_a_failure_with_its_cause(ending: Ending, said: str) -> None:
    result = judge(ending)
    assert not result.succeeded
    assert said in result.error


def stderr_of(program: str) -> str:
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    return run.stderr


def test_the_error_is_the_exception_line_of_the_traceback() -> None:
    result = judge(Ending(Exit(1), stderr_tail="a warning\n" + stderr_of("1/0")))
    assert result.error == "ZeroDivisionError: division by zero"
    assert result.traceback.startswith("Traceback")
    assert "a warning" not in result.traceback


@pytest.mark.parametrize(
    "program",
    [
        "try:\n 1/0\nexcept ZeroDivisionError as e:\n raise KeyError('x') from e",
        "try:\n 1/0\nexcept ZeroDivisionError:\n raise KeyError('x')",
    ],
    ids=["cause", "context"],
)
def test_chain_of_exceptions_stays_together(program: str) -> None:
    result = judge(Ending(Exit(1), stderr_tail=stderr_of(program)))
    assert result.error == "KeyError: 'x'"
    assert "ZeroDivisionError" in result.traceback


def test_earlier_traceback_that_was_only_logged_is_left_out() -> None:
    tail = stderr_of(
        "import traceback\ntry:\n 1/0\nexcept Exception:\n traceback.print_exc()\nprint()\nraise ValueError('end')"
    )
    assert "ZeroDivisionError" not in last_traceback(tail)
    assert judge(Ending(Exit(1), stderr_tail=tail)).error == "ValueError: end"


def test_the_error_of_a_multi_line_exception_is_its_first_line() -> None:
    assert judge(Ending(Exit(1), stderr_tail=stderr_of("raise ValueError('one\\ntwo')"))).error == "ValueError: one"


def test_standard_error_without_a_traceback_is_given_as_it_is() -> None:
    result = judge(Ending(Exit(2), stderr_tail="usage: pipeline.py FILE\n"))
    assert result.traceback == "usage: pipeline.py FILE"


def test_traceback_is_bounded() -> None:
    result = judge(Ending(Exit(1), stderr_tail="x" * (2 * MAX_TRACEBACK_CHARACTERS)))
    assert len(result.traceback) == MAX_TRACEBACK_CHARACTERS
    assert len(result.error) == MAX_CAUSE_CHARACTERS


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        pytest.param(
            Ending(Exit(1), jvm_died=Exit(3), memory_mb=768),
            "the driver's JVM ended before the pipeline: out of memory: its heap of 768 MiB is full (exit code 3); "
            "raise driver_memory_mb in [spark]",
            id="heap of the driver",
        ),
        pytest.param(
            Ending(WELL, jvm_died=Exit(-9), memory_mb=768, kernel_killed=True),
            "the driver's JVM ended before the pipeline: out of memory: the kernel killed it (killed by SIGKILL), "
            "as the machine or container has no memory left beyond its heap of 768 MiB; give the machine or container "
            "more memory, or lower driver_memory_mb in [spark]",
            id="driver killed by the kernel",
        ),
        pytest.param(
            Ending(Exit(-9), kernel_killed=True, memory_mb=768),
            "out of memory: the kernel killed the pipeline's Python process (killed by SIGKILL); collect less into it, "
            "or give the machine or container more memory",
            id="pipeline killed by the kernel",
        ),
        pytest.param(
            Ending(Exit(-9), kernel_killed=True, excess="too much output: raise log_mb", stderr_tail="xxx"),
            "too much output: raise log_mb",
            id="exceeded a bound",
        ),
        pytest.param(
            Ending(
                Exit(1),
                stderr_tail="Traceback (most recent call last):\nOSError: [Errno 28] No space left on device: '/tmp/x'",
                limits=Limits(tmp_mb=40),
            ),
            "OSError: [Errno 28] No space left on device: '/tmp/x' (/tmp and /dev/shm of a job hold 40 MiB each; "
            "raise tmp_mb in [isolation])",
            id="full",
        ),
        pytest.param(Ending(Exit(-9), memory_mb=768), "the pipeline was killed by SIGKILL", id="killed by somebody"),
    ],
)
def test_an_exceeded_resource_limit_is_named_with_the_setting_to_raise(ending: Ending, said: str) -> None:
    assert judge(ending).error == said
