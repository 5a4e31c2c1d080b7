"""Reports are sent until they are recorded.

Connections end when the policy refuses them, or when no answer comes.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sluice.core.egress_evidence import EgressDecision, EgressReceipt, EgressReport, EgressTarget
from sluice.core.errors import SluiceError
from sluice.runtime.egress import (
    BoxId,
    Destination,
    EgressJournal,
    EgressReporter,
    OpenConnection,
    UnsentRows,
    reporting_egress,
)
from sluice.runtime.egress.reporter import GRACE_SECONDS, NO_ANSWER, NOT_ALLOWED

BOX = BoxId("a" * 32, 1, "driver")
API = Destination("api.example.com", "", 443)
OTHER = Destination("", "2001:db8::7", 443)
GOOD = EgressReceipt(recorded=True, decided=True)


class JobManager:
    def __init__(self) -> None:
        self.reports: list[EgressReport] = []
        self.answers: list[EgressReceipt | Exception] = []
        self.there = True
        self.told = asyncio.Event()

    def find(self) -> JobManager | None:
        return self if self.there else None

    async def dial(self) -> JobManager:
        return self

    async def decide_egress(self, target: EgressTarget) -> EgressDecision:
        if not self.answers:
            return EgressDecision(decided=True, allowed=target.host == "api.example.com")
        raise SluiceError("away")

    async def report_egress(self, report: EgressReport) -> EgressReceipt:
        self.reports.append(report)
        self.told.set()
        answer = self.answers.pop(0) if self.answers else GOOD
        if isinstance(answer, Exception):
            raise answer
        return answer


class World:
    def __init__(self, *, enforce: bool = True) -> None:
        self.now = 100.0
        self.ended: list[tuple[str, str]] = []
        self.journal = EgressJournal(clock=lambda: self.now, monotonic=lambda: self.now)
        self.jobmanager = JobManager()
        self.reporter = EgressReporter(self.journal, self.jobmanager.find, enforce=enforce, clock=lambda: self.now)

    async def nobody(self) -> JobManager:
        raise SluiceError("nobody leads")

    def open(self, to: Destination) -> OpenConnection:
        return self.journal.opened(BOX, to, end=lambda reason: self.ended.append((to.host or to.address, reason)))


async def test_rows_are_sent_again_until_they_are_recorded() -> None:
    world = World()
    world.journal.opened(BOX, API, end=lambda _: None).closed()
    world.jobmanager.answers = [SluiceError("away"), EgressReceipt(recorded=False, decided=False), GOOD]
    for _ in range(3):
        await world.reporter.step()
    assert len({row.id for report in world.jobmanager.reports for row in report.rows}) == 1
    assert world.journal.idle


async def test_connections_that_the_policy_refuses_are_ended() -> None:
    world = World()
    world.open(API)
    world.open(OTHER)
    await world.reporter.step()
    assert world.ended == []
    number = [each.host for each in world.jobmanager.reports[0].targets].index("api.example.com")
    world.jobmanager.answers = [EgressReceipt(recorded=True, decided=True, refused=(number, 99))]
    await world.reporter.step()
    assert world.ended == [("api.example.com", NOT_ALLOWED)]


@pytest.mark.parametrize("how", ["no JobManager", "an error", "not decided"])
async def test_all_connections_are_ended_after_the_grace_period_without_an_answer(how: str) -> None:
    world = World()
    world.open(API)
    await world.reporter.step()
    world.jobmanager.there = how != "no JobManager"
    silence: EgressReceipt | Exception = SluiceError("away")
    if how == "not decided":
        silence = EgressReceipt(recorded=False, decided=False)
    world.jobmanager.answers = [silence] * 2
    world.now += GRACE_SECONDS - 0.1
    await world.reporter.step()
    assert world.ended == []
    world.now += 0.2
    await world.reporter.step()
    assert world.ended == [("api.example.com", NO_ANSWER.format(GRACE_SECONDS))]


async def test_no_connection_is_ended_if_a_new_leader_answers_within_the_grace_period() -> None:
    world = World()
    world.open(API)
    world.jobmanager.there = False
    world.now += GRACE_SECONDS - 1
    await world.reporter.step()
    world.jobmanager.there = True
    await world.reporter.step()
    world.now += GRACE_SECONDS - 1
    await world.reporter.step()
    assert world.ended == []


async def test_a_reporter_that_only_records_ends_no_connection() -> None:
    world = World(enforce=False)
    world.open(API)
    world.jobmanager.answers = [EgressReceipt(recorded=True, decided=True, refused=(0,)), SluiceError("away")]
    await world.reporter.step()
    world.now += 10 * GRACE_SECONDS
    await world.reporter.step()
    assert world.ended == []


async def test_a_running_reporter_sends_new_rows_and_a_flush_sends_the_remaining_ones() -> None:
    world = World()
    async with reporting_egress(world.reporter):
        connection = await asyncio.to_thread(world.open, API)
        await world.jobmanager.told.wait()
    world.jobmanager.there = False  # the link has ended, then the boxes
    world.journal.refused(BOX, OTHER, "no rule allows it")
    connection.closed("the process has ended")
    assert await world.reporter.flush(world.jobmanager.dial) == ()
    rows = {(row.target, row.open) for report in world.jobmanager.reports for row in report.rows}
    assert rows == {("api.example.com:443", True), ("api.example.com:443", False), ("[2001:db8::7]:443", False)}
    assert world.journal.idle


@pytest.mark.parametrize("how", ["no JobManager", "an error", "not recorded"])
async def test_rows_that_could_not_be_sent_are_left_for_the_next_process_of_that_name(how: str, tmp_path: Path) -> None:
    world = World()
    world.journal.refused(BOX, OTHER, "no rule allows it")
    world.open(API)
    answers: dict[str, EgressReceipt | Exception] = {
        "an error": SluiceError("away"), "not recorded": EgressReceipt(recorded=False, decided=False)
    }  # fmt: skip
    world.jobmanager.answers = [answers[how]] if how in answers else []
    left = await world.reporter.flush(world.nobody if how == "no JobManager" else world.jobmanager.dial)
    assert {(row.target, row.open) for row in left} == {("api.example.com:443", False), ("[2001:db8::7]:443", False)}

    path = tmp_path / "rows.json"
    unsent = UnsentRows(path)
    unsent.replace(left)
    unsent.close()
    assert path.stat().st_mode & 0o777 == 0o600
    following = World()
    following.journal.restore(UnsentRows(path).load())
    assert await following.reporter.step()
    assert {row.id for row in following.jobmanager.reports[0].rows} == {row.id for row in left}
    assert following.journal.idle


async def test_a_decision_about_a_destination_is_allowed_refused_or_undecided_without_an_answer() -> None:
    world = World()
    good = EgressTarget(job_id=BOX.job_id, host="api.example.com", port=443)
    assert await world.reporter.decide(good) == EgressDecision(decided=True, allowed=True)
    other = EgressTarget(job_id=BOX.job_id, host="evil.example.com", port=443)
    assert await world.reporter.decide(other) == EgressDecision(decided=True, allowed=False)
    world.jobmanager.answers = [SluiceError("away")]
    assert await world.reporter.decide(good) == EgressDecision(decided=False, allowed=False)
    world.jobmanager.there = False
    assert await world.reporter.decide(good) == EgressDecision(decided=False, allowed=False)
