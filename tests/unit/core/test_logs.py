"""Logs: JSON with identity and job, and the tail that is kept."""

from __future__ import annotations

import json
import logging

from hypothesis import given, strategies as st

from sluice.core.logs import JsonFormatter
from sluice.runtime.node.log_tail import LogTail

JOB = "0123456789abcdef" * 2


def record(message: str, *arguments: object, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, error.__traceback__) if error is not None else None
    return logging.LogRecord("runtime.x", logging.WARNING, __file__, 1, message, arguments, info)


def test_a_log_line_names_its_process_identity_and_job() -> None:
    line = JsonFormatter("taskmanager/tm-1", "spiffe://td/taskmanager/tm-1").format(record("job %s is RUNNING", JOB))
    event = json.loads(line)
    assert event.pop("time").endswith("+00:00")
    assert event == {
        "level": "WARNING",
        "logger": "runtime.x",
        "message": f"job {JOB} is RUNNING",
        "process": "taskmanager/tm-1",
        "identity": "spiffe://td/taskmanager/tm-1",
        "job": JOB,
    }


def test_a_log_line_contains_its_error_without_line_breaks() -> None:
    try:
        int("a\nb")
    except ValueError as error:
        line = JsonFormatter("", "").format(record("it\nfailed", error=error))
    assert "\n" not in line
    event = json.loads(line)
    assert event["error"]["type"] == "ValueError"
    assert "test_logs.py" in event["error"]["traceback"]
    assert not {"job", "process", "identity"} & set(event)


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=30)), st.integers(1, 200))
def test_pieces_read_from_a_log_tail_join_to_the_end_of_the_log(lines: list[str], limit: int) -> None:
    tail = LogTail(keep=300)
    tail.setFormatter(logging.Formatter("%(message)s"))
    for line in lines:
        tail.handle(record("%s", line))
    whole = "".join(f"{line}\n" for line in lines)
    read, offset, end = "", 0, False
    while not end:
        chunk = tail.read(offset, limit)
        assert chunk.next_offset > offset or chunk.end
        read, offset, end = read + chunk.data, chunk.next_offset, chunk.end
    assert whole.endswith(read)
    assert offset == len(whole.encode())
    assert len(read.encode()) > min(len(whole.encode()), 300) - 130


def test_a_message_that_cannot_be_formatted_is_skipped() -> None:
    tail = LogTail()
    logging.raiseExceptions, kept = False, logging.raiseExceptions
    try:
        tail.handle(record("%d", "x"))
    finally:
        logging.raiseExceptions = kept
    assert tail.read(0, 100).data == ""
