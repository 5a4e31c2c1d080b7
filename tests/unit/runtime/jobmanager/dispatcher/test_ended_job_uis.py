"""Spark's UI of ended jobs: which TaskManager is asked, what it is given, and how failures are shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluice.core.errors import SluiceError
from sluice.runtime.ha.errors import EntryMissing
from sluice.runtime.ha.storage import StoredEntry
from sluice.runtime.jobmanager.dispatcher import ended_job_uis
from sluice.runtime.jobmanager.dispatcher.ended_job_uis import NOT_YET, EndedJobUis, host_of
from sluice.runtime.jobmanager.errors import TaskManagerNotFound, UiNotFound, UiNotReady
from sluice.runtime.jobmanager.history import EventLog
from sluice.runtime.messages import EndedUiAnswer, EndedUiState, EventLogPiece, UiPage, UiRequest

JOB = "1" * 32
ASKED = UiRequest(path="/jobs/", query="", base=f"/v1/jobs/{JOB}/ui")
PAGE = UiPage(status=200, media="text/html", body=b"<p>")


@dataclass
class Archive:
    """A fake archive with the event log of one job."""

    blocks: Sequence[bytes] = (b"a" * 2500, b"b" * 10)
    missing: bool = False

    async def event_log(self, job_id: str) -> EventLog:
        return EventLog(tuple(StoredEntry.of(str(number), data) for number, data in enumerate(self.blocks)))

    async def read_events(self, entry: StoredEntry) -> bytes:
        if self.missing:
            raise EntryMissing("it is gone")
        return self.blocks[int(entry.name)]


@dataclass
class TaskManagers:
    """Fake TaskManagers that answer one after another as the test configures."""

    names: tuple[str, ...] = ("tm-1", "tm-2", "tm-3")
    states: list[EndedUiState] = field(default_factory=lambda: [EndedUiState.SHOWN])
    refusal: SluiceError | None = None
    gone: bool = False
    asked: list[str] = field(default_factory=list)
    pieces: list[tuple[str, EventLogPiece]] = field(default_factory=list)

    async def ended_ui_hosts(self) -> tuple[str, ...]:
        return self.names

    async def ended_ui_page(self, taskmanager: str, job_id: str, request: UiRequest) -> EndedUiAnswer:
        if self.gone:
            raise TaskManagerNotFound("it is not there any more")
        assert (job_id, request) == (JOB, ASKED)
        self.asked.append(taskmanager)
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if self.pieces and self.pieces[-1][1].last:
            state = EndedUiState.SHOWN
        return EndedUiAnswer(state=state, why="it broke", page=PAGE if state is EndedUiState.SHOWN else None)

    async def load_ended_ui(self, taskmanager: str, piece: EventLogPiece) -> None:
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        self.pieces.append((taskmanager, piece))


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_job_uis, "MAX_EVENT_LOG_CHUNK_BYTES", 1000)
    monkeypatch.setattr(ended_job_uis, "ASK_AGAIN_SECONDS", 0.0)


def uis(taskmanagers: TaskManagers, archive: Archive | None = None, step: float = 1.0) -> EndedJobUis:
    now = iter(range(10_000))
    there: Any = taskmanagers
    kept: Any = archive or Archive()
    return EndedJobUis(kept, there, lambda: next(now) * step)


async def test_a_taskmanager_that_has_the_event_log_gets_the_request_without_pieces() -> None:
    there = TaskManagers()
    assert await uis(there).page(JOB, ASKED) == PAGE
    assert (there.asked, there.pieces) == ([host_of(JOB, there.names)], [])


async def test_a_taskmanager_without_the_event_log_gets_its_pieces_in_order_once_for_concurrent_requests() -> None:
    there = TaskManagers(states=[EndedUiState.ABSENT])
    relay = uis(there)
    assert await asyncio.gather(*(relay.page(JOB, ASKED) for _ in range(5))) == [PAGE] * 5
    assert {name for name, _ in there.pieces} == {host_of(JOB, there.names)}
    pieces = [piece for _, piece in there.pieces]
    assert [(each.offset, len(each.data), each.last) for each in pieces] == [
        (0, 1000, False),
        (1000, 1000, False),
        (2000, 500, False),
        (2500, 10, True),
    ]


async def test_a_request_gets_the_not_yet_page_if_loading_takes_too_long() -> None:
    assert await uis(TaskManagers(states=[EndedUiState.LOADING])).page(JOB, ASKED) == NOT_YET


@pytest.mark.parametrize(
    ("there", "archive", "error", "says"),
    [
        pytest.param(TaskManagers(), Archive(blocks=()), UiNotFound, "not kept", id="no event log"),
        pytest.param(TaskManagers(names=()), Archive(), UiNotReady, "no TaskManager", id="no TaskManager"),
        pytest.param(TaskManagers(gone=True), Archive(), UiNotReady, "not there any more", id="TaskManager lost"),
        pytest.param(
            TaskManagers(states=[EndedUiState.FAILED]), Archive(), UiNotFound, "it broke", id="not to be read"
        ),
        pytest.param(
            TaskManagers(states=[EndedUiState.ABSENT], refusal=SluiceError("2 other jobs")),
            Archive(),
            UiNotReady,
            "2 other jobs",
            id="too many",
        ),
        pytest.param(
            TaskManagers(states=[EndedUiState.ABSENT]), Archive(missing=True), UiNotFound, "restore", id="damaged"
        ),
    ],
)
async def test_a_ui_that_is_unavailable_is_reported_with_the_reason(
    there: TaskManagers, archive: Archive, error: type[SluiceError], says: str
) -> None:
    with pytest.raises(error) as caught:
        await uis(there, archive).page(JOB, ASKED)
    assert says in f"{caught.value} {caught.value.remedy}"


def test_a_job_stays_with_its_taskmanager_while_others_come_and_go() -> None:
    jobs = [f"{number:032x}" for number in range(300)]
    before = {job: host_of(job, ["a", "b", "c"]) for job in jobs}
    assert {host_of(job, ["c", "a", "b"]) == before[job] for job in jobs} == {True}
    after = {job: host_of(job, ["a", "c"]) for job in jobs}
    assert all(after[job] == before[job] for job in jobs if before[job] != "b")
    assert set(before.values()) == {"a", "b", "c"}
