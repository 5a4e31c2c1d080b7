"""The cause of a failure is the exception behind it.

The outputs were recorded from real programs and from Spark 4.3.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from sluice.runtime.jobmanager.exceptions import headline, root_cause
from sluice.runtime.node.child_process import Exit
from sluice.runtime.spark.causes import (
    HEADING,
    MAX_CAUSE_CHARACTERS,
    cause,
    last_line,
    last_traceback,
)
from sluice.runtime.spark.driver.verdict import Ending, judge

PARSE_ERROR = (
    "pyspark.errors.exceptions.captured.ParseException: [PARSE_SYNTAX_ERROR] Syntax error at or near 'SELEC'. "
    "SQLSTATE: 42601 (line 1, pos 0)"
)
NOT_FOUND = (
    "pyspark.errors.exceptions.captured.AnalysisException: [PATH_NOT_FOUND] Path does not exist: "
    "file:/nowhere/data.parquet. SQLSTATE: 42K03"
)
RECORDED = Path(__file__).with_name("recorded")
UNRESOLVED = (
    "pyspark.errors.exceptions.captured.AnalysisException: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or "
    "function parameter with name `missing` cannot be resolved. Did you mean one of the following? [`id`]. "
    "SQLSTATE: 42703;"
)


@pytest.mark.parametrize(
    ("name", "code", "error"),
    [
        ("syntax", 1, "SyntaxError: expected ':'"),
        ("indent", 1, "IndentationError: expected an indented block after function definition on line 1"),
        ("args", 2, "args.py: error: the following arguments are required: --rows"),
        ("imp", 1, "ModuleNotFoundError: No module named 'nothing_of_the_kind'"),
        ("exit3", 3, "the pipeline ended with exit code 3: rows are missing"),
        ("exitm", 1, "no such table: sales"),
        ("multi", 1, "Bad: first line"),
        ("group", 1, "ExceptionGroup: two things (2 sub-exceptions)"),
        ("note", 1, "ValueError: a value"),
        ("thread", 4, "the pipeline ended with exit code 4: ZeroDivisionError: division by zero"),
        ("empty", 1, "AssertionError"),
        ("imported", 1, "SyntaxError: expected ':'"),
        ("udf", 1, "ValueError: seven cannot be halved"),
        ("rdd", 1, "ZeroDivisionError: integer division or modulo by zero"),
        ("analysis", 1, UNRESOLVED),
        ("missing", 1, NOT_FOUND),
        (
            "sqlparse",
            1,
            PARSE_ERROR,
        ),
    ],
)
def test_the_cause_of_recorded_failures_is_found(name: str, code: int, error: str) -> None:
    text = (RECORDED / f"{name}.txt").read_text()
    assert judge(Ending(Exit(code), stderr_tail=text)).error == error
    if name == "exitm":
        return  # nothing tells a last line from the message of an exception before it
    # What a program prints before has nothing to do with it.
    earlier = 'WARN: File "x", line 3\n' + (RECORDED / "imp.txt").read_text() + "retried\n"
    assert judge(Ending(Exit(code), stderr_tail=earlier + text)).error == error


@pytest.mark.parametrize(
    ("ended", "error"),
    [
        (Exit(-9), "the pipeline was killed by SIGKILL"),
        (Exit(-11), "the pipeline was killed by SIGSEGV"),
        (Exit(3), "the pipeline ended with exit code 3"),
        (Exit(1), "the pipeline ended with exit code 1"),
    ],
)
def test_the_cause_of_a_silent_failure_is_its_exit_code_or_signal(ended: Exit, error: str) -> None:
    assert judge(Ending(ended)).error == error


def test_a_signal_is_the_cause_whatever_was_printed_before() -> None:
    text = (RECORDED / "imp.txt").read_text()
    assert judge(Ending(Exit(-9), stderr_tail=text)).error == "the pipeline was killed by SIGKILL"


def test_the_traceback_of_a_worker_stays_with_the_error_of_spark() -> None:
    text = (RECORDED / "udf.txt").read_text()
    assert last_traceback("[Stage 0:>   (0 + 1) / 2]" + text) == text.rstrip()


JVM = """py4j.protocol.Py4JJavaError: An error occurred while calling o54.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)
"""


def test_an_error_of_the_jvm_has_its_innermost_cause() -> None:
    traceback = f'{HEADING}\n  File "/srv/app/x.py", line 3, in <module>\n    run()\n{JVM}'
    assert cause(traceback).startswith("org.apache.spark.SparkException: Job aborted")
    assert cause(traceback + "Caused by: java.io.IOException: No space left on device\n\t... 1 more\n") == (
        "java.io.IOException: No space left on device"
    )


def test_the_cause_of_a_failed_task_is_the_exception_of_its_python_worker() -> None:
    error = f"org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] thrown from the Python worker: {HEADING}"
    trace = (
        f'{error}\n  File "/srv/app/udf.py", line 8, in half\n    raise ValueError("seven")\nValueError: seven\n'
        " SQLSTATE: 38000\n\tat org.apache.spark.api.python.PythonRunner.read(PythonRunner.scala:1097)\n"
    )
    assert headline(error, trace) == "ValueError: seven"
    assert root_cause(error, trace) == "ValueError: seven"
    assert headline("java.io.IOException: disk full", trace) == "java.io.IOException: disk full"
    assert headline(error, "") == error


def test_a_progress_bar_is_not_part_of_the_last_line() -> None:
    assert last_line("[Stage 0:>  (0 + 2) / 2]\r          \rno such table\n\n") == "no such table"


@given(st.text(st.sampled_from(f"{HEADING} \n:'^|+\r\tCausedby"), max_size=400), st.integers(0, 3))
def test_the_cause_in_arbitrary_output_is_at_most_one_bounded_line(text: str, headings: int) -> None:
    output = text + "".join(f"\n{HEADING}\n{text}" for _ in range(headings))
    for line in (cause(output), last_line(output), judge(Ending(Exit(1), stderr_tail=output)).error):
        assert len(line.splitlines()) <= 1
        assert len(line) <= MAX_CAUSE_CHARACTERS
    assert output.rstrip().endswith(last_traceback(output))
