"""Questions about a job whose attempt ends while they wait in its JobMaster's mailbox."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.runtime.ha.storage import StoredEntry
from sluice.runtime.jobmanager.dispatcher.job_queries import JobQueries, answer_or_record
from sluice.runtime.jobmanager.errors import JobNotFound, LogNotFound
from sluice.runtime.jobmanager.history.event_log import EventLog
from sluice.runtime.jobmanager.views import SparkUiState
from sluice.runtime.messages import LogChunk
from sluice.runtime.rpc import EndpointNotFound, EndpointStopped, RpcError, RpcTimeout


async def answering(outcome: RpcError | str) -> str:
    if isinstance(outcome, RpcError):
        raise outcome
    return outcome


async def test_a_running_attempt_answers_a_query_itself() -> None:
    assert await answer_or_record(answering("live"), lambda: "on record") == "live"


@pytest.mark.parametrize("error", [EndpointStopped("stopped before checkpoints ran"), EndpointNotFound("gone")])
async def test_a_query_of_an_attempt_that_has_ended_is_answered_from_the_record(error: RpcError) -> None:
    """Otherwise a restart between question and answer is an internal error for the REST client."""
    assert await answer_or_record(answering(error), lambda: "on record") == "on record"


async def test_a_query_that_fails_for_another_reason_raises_its_error() -> None:
    with pytest.raises(RpcTimeout):
        await answer_or_record(answering(RpcTimeout("no answer")), lambda: "on record")


class Logs:
    """A fake source with at most one log, for a TaskManager or the history."""

    def __init__(self, text: str | None) -> None:
        self._text = text

    async def read(self, _: object, source: str, offset: int, limit: int) -> LogChunk:
        assert (source, limit) == ("driver.stdout", 9)
        if self._text is None:
            raise LogNotFound("gone")
        return LogChunk(data=self._text, offset=offset, next_offset=offset + len(self._text), end=True)

    read_log = read


@pytest.mark.parametrize(
    ("there", "terminal", "kept", "shown"),
    [
        ("live", True, "kept", "live"),
        ("", True, "kept", "kept"),
        ("", True, None, ""),
        ("", False, "kept", ""),
        (None, True, "kept", "kept"),
        (None, True, None, None),
    ],
)
async def test_a_log_that_its_taskmanager_lacks_is_read_from_the_history_if_the_job_has_ended(
    there: str | None, terminal: bool, kept: str | None, shown: str | None
) -> None:
    job = SimpleNamespace(record=SimpleNamespace(detail=None), terminal=terminal)
    nothing: Any = None
    jobs: Any = {"id": job}
    logs: Any = Logs(there)
    archive: Any = Logs(kept)
    queries = JobQueries(
        nothing,
        jobs,
        pending_reason=nothing,
        logs=logs,
        archive=archive,
        ended_uis=nothing,
        savepoints=nothing,
        clock=nothing,
    )
    if shown is None:
        with pytest.raises(LogNotFound, match="gone"):
            await queries.read_log("id", "driver.stdout", 0, 9)
    else:
        assert (await queries.read_log("id", "driver.stdout", 0, 9)).data == shown


@dataclass
class EventLogs:
    """A fake archive with one job, with or without an event log."""

    log: EventLog

    def __contains__(self, job_id: str) -> bool:
        return job_id in {"ended", "damaged"}

    async def event_log(self, job_id: str) -> EventLog:
        if job_id == "damaged":
            raise JobNotFound("it cannot be read any more")
        return self.log

    def kept_until(self, job_id: str) -> int:
        return 99


BLOCKS = (StoredEntry.of("a", b"abc"), StoredEntry.of("b", b"de"))


@pytest.mark.parametrize(
    ("job", "log", "state", "size"),
    [
        ("ended", EventLog(BLOCKS), SparkUiState.KEPT, 5),
        ("ended", EventLog(BLOCKS, cut=True), SparkUiState.CUT, 5),
        ("ended", EventLog(), SparkUiState.NONE, 0),
        ("running", EventLog(), SparkUiState.LIVE, 0),
        ("waiting", EventLog(), SparkUiState.NONE, 0),
        ("just ended", EventLog(), SparkUiState.NONE, 0),
        ("damaged", EventLog(), SparkUiState.NONE, 0),
    ],
)
async def test_the_state_of_the_spark_ui_of_a_job_is_reported_with_its_reason(
    job: str, log: EventLog, state: SparkUiState, size: int
) -> None:
    nothing: Any = None
    host: Any = SimpleNamespace(service=None)
    jobs: Any = {
        "running": SimpleNamespace(terminal=False, master_gateway=lambda _: "there"),
        "waiting": SimpleNamespace(terminal=False, master_gateway=lambda _: None),
        "just ended": SimpleNamespace(terminal=True, master_gateway=lambda _: None),
        "damaged": SimpleNamespace(terminal=True),
    }
    archive: Any = EventLogs(log)
    queries = JobQueries(
        host,
        jobs,
        pending_reason=nothing,
        logs=nothing,
        archive=archive,
        ended_uis=nothing,
        savepoints=nothing,
        clock=nothing,
    )
    found = await queries.ui_state(job)
    assert (found.state, found.size) == (state, size)
    assert found.path == ("" if state is SparkUiState.NONE else f"/v1/jobs/{job}/ui")
    assert bool(found.reason) == (state in {SparkUiState.NONE, SparkUiState.CUT})
    assert (found.kept_until is not None) == bool(size)
