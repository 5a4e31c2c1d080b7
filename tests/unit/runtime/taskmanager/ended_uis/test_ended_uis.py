"""Spark's UI of ended jobs on a TaskManager: which event logs it accepts, which UIs it ends. No JVM."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sluice.runtime.messages import EndedUiAnswer, EndedUiState, EventLogPiece, UiPage, UiRequest
from sluice.runtime.taskmanager.ended_uis import ended_uis
from sluice.runtime.taskmanager.ended_uis.ended_ui import UiPlaces
from sluice.runtime.taskmanager.ended_uis.ended_uis import IDLE_SECONDS, STALLED_SECONDS, EndedUis
from sluice.runtime.taskmanager.errors import EndedUiRefused

ONE, TWO, THREE = "1" * 32, "2" * 32, "3" * 32
JOBS = UiRequest(path="/jobs/", query="", base="/v1/jobs/1/ui")


@dataclass
class Ui:
    """A fake UI that shows its event log once the test allows it."""

    job_id: str
    places: UiPlaces
    why: str = ""
    shown: bool = False
    started: bool = False
    ended: bool = False
    status: int = 200

    def start(self) -> None:
        self.started = True

    async def ask(self, request: UiRequest) -> UiPage:
        return UiPage(status=self.status, body=self.places.event_log.read_bytes())

    async def end(self) -> None:
        self.ended = True
        self.places.remove()


@dataclass
class Uis:
    """The endpoint, its UIs and its clock."""

    directory: Path
    now: float = 0.0
    made: dict[str, Ui] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.endpoint = EndedUis(self.directory, self.make, lambda: self.now)

    def make(self, job_id: str, places: UiPlaces) -> Ui:
        self.made[job_id] = Ui(job_id, places)
        return self.made[job_id]

    async def load(self, job_id: str, *pieces: bytes, last: bool = True, offset: int = 0) -> None:
        for number, data in enumerate(pieces):
            end = last and number == len(pieces) - 1
            await self.endpoint._load(EventLogPiece(job_id=job_id, offset=offset, data=data, last=end))
            offset += len(data)

    async def shown(self, job_id: str) -> Ui:
        await self.load(job_id, b"log of ", job_id.encode())
        self.made[job_id].shown = True
        return self.made[job_id]

    async def page(self, job_id: str) -> EndedUiAnswer:
        return await self.endpoint._page(job_id, JOBS)

    async def state(self, job_id: str) -> EndedUiState:
        return (await self.page(job_id)).state


@pytest.fixture
def uis(tmp_path: Path) -> Uis:
    return Uis(tmp_path / "ended-ui")


async def test_an_ended_ui_is_loaded_started_and_shown(uis: Uis) -> None:
    assert await uis.state(ONE) is EndedUiState.ABSENT
    await uis.load(ONE, b"log ", last=False)
    assert await uis.state(ONE) is EndedUiState.LOADING
    assert not uis.made[ONE].started
    await uis.load(ONE, b"of 1", offset=4)
    assert uis.made[ONE].started
    assert await uis.state(ONE) is EndedUiState.LOADING
    uis.made[ONE].shown = True
    answer = await uis.page(ONE)
    assert answer.page is not None
    assert answer.page.body == b"log of 1"
    assert uis.made[ONE].places.work.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("offset", "data"), [pytest.param(9, b"x", id="gap"), pytest.param(2, b"x", id="overlap")])
async def test_an_event_log_piece_with_a_gap_or_overlap_is_refused(uis: Uis, offset: int, data: bytes) -> None:
    await uis.load(ONE, b"abcd", last=False)
    with pytest.raises(EndedUiRefused):
        await uis.load(ONE, data, offset=offset)
    await uis.load(ONE, b"ef", offset=4)
    with pytest.raises(EndedUiRefused):  # it is read already
        await uis.load(ONE, b"gh", offset=6)
    assert uis.made[ONE].places.event_log.read_bytes() == b"abcdef"


async def test_an_event_log_piece_without_the_first_piece_is_refused(uis: Uis) -> None:
    with pytest.raises(EndedUiRefused, match="first piece"):
        await uis.load(ONE, b"x", offset=5)


async def test_an_event_log_over_the_size_limit_is_refused(uis: Uis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ended_uis, "MAX_EVENT_LOG_BYTES", 6)
    with pytest.raises(EndedUiRefused, match="more than 6 bytes"):
        await uis.load(ONE, b"abcd", b"efgh")


async def test_the_least_recently_used_ui_makes_room_for_another(uis: Uis) -> None:
    one = await uis.shown(ONE)
    uis.now = 1
    two = await uis.shown(TWO)
    uis.now = 2
    await uis.page(ONE)
    await uis.shown(THREE)
    assert (one.ended, two.ended) == (False, True)
    assert not two.places.directory.exists()
    assert not two.places.temp.exists()


async def test_uis_that_are_loading_are_not_ended_for_others(uis: Uis) -> None:
    await uis.load(ONE, b"x")
    await uis.load(TWO, b"x")
    with pytest.raises(EndedUiRefused, match="2 other jobs"):
        await uis.load(THREE, b"x")
    assert not uis.made[ONE].ended


async def test_idle_stalled_and_failed_uis_are_removed(uis: Uis) -> None:
    one = await uis.shown(ONE)
    await uis.load(TWO, b"x", last=False)
    uis.now = STALLED_SECONDS + 1
    await uis.endpoint.trim()
    assert (one.ended, uis.made[TWO].ended) == (False, True)
    await uis.load(TWO, b"x")
    uis.made[TWO].why = "it ended"
    answer = await uis.page(TWO)
    assert (answer.state, answer.why) == (EndedUiState.FAILED, "it ended")
    uis.now += STALLED_SECONDS + 1
    await uis.endpoint.trim()
    assert await uis.state(TWO) is EndedUiState.ABSENT
    uis.now = IDLE_SECONDS + 1
    await uis.endpoint.trim()
    assert one.ended


async def test_a_ui_that_answers_503_counts_as_loading(uis: Uis) -> None:
    one = await uis.shown(ONE)
    one.status = 503
    assert await uis.state(ONE) is EndedUiState.LOADING


async def test_a_failed_ui_can_be_loaded_again(uis: Uis) -> None:
    await uis.load(ONE, b"x")
    uis.made[ONE].why = "out of memory"
    await uis.load(ONE, b"y")
    assert await uis.state(ONE) is EndedUiState.LOADING


async def test_two_concurrent_loads_of_a_job_make_one_ui(uis: Uis) -> None:
    done = await asyncio.gather(uis.load(ONE, b"x"), uis.load(ONE, b"x"), return_exceptions=True)
    assert [type(each) for each in done] == [type(None), EndedUiRefused]


async def test_stopping_ends_all_uis_and_removes_their_files(uis: Uis) -> None:
    one = await uis.shown(ONE)
    await uis.endpoint.on_stop()
    assert one.ended
    assert list(uis.directory.iterdir()) == []


async def test_files_left_by_a_killed_process_are_removed_at_the_next_start(uis: Uis) -> None:
    left = UiPlaces.make(uis.directory / ONE)
    left.event_log.write_bytes(b"x")
    await uis.endpoint.on_start()
    await uis.endpoint.on_stop()
    assert list(uis.directory.iterdir()) == []
    left.remove()
