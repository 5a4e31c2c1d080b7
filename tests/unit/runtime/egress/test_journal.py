"""The journal of connections out of sandboxes: bounded, aggregated, and kept until recorded."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.core.egress_evidence import MAX_EGRESS_ROWS, EgressRow, EgressTarget, EgressVerdict
from sluice.runtime.egress import BoxId, Destination, EgressJournal, TooManyDestinations, journal as module
from sluice.runtime.egress.open_connection import OpenConnection

BOX = BoxId("a" * 32, 1, "driver")
API = Destination("api.example.com", "", 443)
DNS = Destination("evil.example.com", "", 53, "dns")


class World:
    def __init__(self) -> None:
        self.now = 1000.0
        self.woken = 0
        self.ended: list[str] = []
        self.journal = EgressJournal(clock=lambda: 1_700_000_000 + self.now, monotonic=lambda: self.now)
        self.journal.wake = self._wake

    def _wake(self) -> None:
        self.woken += 1

    def opened(self, to: Destination = API, **more: Any) -> OpenConnection:
        return self.journal.opened(BOX, to, end=self.ended.append, **more)

    def rows(self) -> list[EgressRow]:
        """Report the current rows and mark them as recorded at once."""
        report = self.journal.report()
        self.journal.settle(report)
        return list(report.rows)


@pytest.fixture
def world() -> World:
    return World()


def test_a_connection_is_reported_when_it_opens_and_when_it_closes(world: World) -> None:
    moved = [0, 0]
    connection = world.opened(measure=lambda: (moved[0], moved[1]))
    assert world.woken == 1
    report = world.journal.report()
    assert [(row.open, row.verdict, row.target) for row in report.rows] == [
        (True, EgressVerdict.ALLOWED, "api.example.com:443")
    ]
    assert report.targets == (EgressTarget(job_id=BOX.job_id, host="api.example.com", port=443),)
    moved[:] = 10, 20
    world.now += 2
    connection.closed("done")
    (row,) = world.rows()
    assert row.id == report.rows[0].id
    assert (row.open, row.bytes_up, row.bytes_down, row.duration_ms, row.reason) == (False, 10, 20, 2000, "done")
    assert world.journal.idle
    connection.closed("again")
    assert world.journal.idle


def test_the_bytes_of_an_open_connection_are_reported_periodically(world: World) -> None:
    world.opened(measure=lambda: (7, 9))
    assert len(world.rows()) == 1
    assert world.rows() == []
    world.now += module.REPORT_AGAIN_SECONDS
    (row,) = world.rows()
    assert (row.open, row.bytes_up) == (True, 7)


def test_refusals_that_are_alike_are_one_row(world: World) -> None:
    for _ in range(1000):
        world.journal.refused(BOX, DNS, "no rule allows it", count=2)
    assert world.rows() == [], "more of its kind may come"
    world.now += module.ALIKE_SECONDS
    (row,) = world.rows()
    assert (row.count, row.verdict, row.protocol) == (2000, EgressVerdict.REFUSED, "dns")
    assert row.target == "evil.example.com:53"
    world.journal.refused(BOX, DNS, "no rule allows it")
    world.now += module.ALIKE_SECONDS
    (later,) = world.rows()
    assert (later.count, later.id != row.id) == (1, True)


def test_other_destinations_reasons_and_boxes_are_rows_of_their_own(world: World) -> None:
    world.journal.refused(BOX, DNS, "no rule allows it")
    world.journal.refused(BOX, DNS, "too many look-ups")
    world.journal.refused(BoxId(BOX.job_id, 1, "executor/1"), DNS, "no rule allows it")
    world.journal.refused(BOX, Destination("", "203.0.113.7", 53, "udp"), "no rule allows it")
    world.now += module.ALIKE_SECONDS
    assert len(world.rows()) == 4


def test_rows_are_kept_until_they_are_recorded(world: World) -> None:
    world.opened().closed()
    first, second = world.journal.report(), world.journal.report()
    assert [row.id for row in first.rows] == [row.id for row in second.rows]
    world.journal.settle(first)
    assert world.journal.report().rows == ()


def test_the_last_report_of_a_process_includes_recent_refusals_at_once(world: World) -> None:
    world.journal.refused(BOX, DNS, "no rule allows it")
    report = world.journal.report(last=True)
    assert len(report.rows) == 1
    world.journal.refused(BOX, DNS, "no rule allows it")
    world.journal.settle(report)
    assert not world.journal.idle, "what came after the report is another row"


def test_rows_without_room_are_dropped_and_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT_ROWS", 3)
    for port in range(1, 6):
        world.journal.refused(BOX, Destination("", "203.0.113.7", port, "udp"), "no rule allows it", count=10)
    world.now += module.ALIKE_SECONDS
    report = world.journal.report()
    assert (len(report.rows), report.dropped) == (3, 20)
    world.journal.settle(report)
    assert world.journal.report().dropped == 0


def test_a_report_is_bounded(world: World) -> None:
    for number in range(MAX_EGRESS_ROWS + 50):
        world.journal.refused(BOX, Destination(f"h{number}.example.com", "", 1), "no")
    world.now += module.ALIKE_SECONDS
    assert len(world.rows()) == MAX_EGRESS_ROWS
    assert len(world.rows()) == 50


def test_a_new_destination_beyond_the_limit_is_refused_until_another_has_no_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_EGRESS_TARGETS", 2)
    one, _ = world.opened(Destination("a", "", 1)), world.opened(Destination("b", "", 1))
    with pytest.raises(TooManyDestinations):
        world.opened(Destination("c", "", 1))
    again = world.opened(Destination("a", "", 1))
    one.closed()
    with pytest.raises(TooManyDestinations):
        world.opened(Destination("c", "", 1))
    again.closed()
    world.opened(Destination("c", "", 1))


def test_only_connections_to_the_given_targets_are_ended(world: World) -> None:
    first, second, other = world.opened(), world.opened(), world.opened(Destination("other.example.com", "", 443))
    gone = frozenset({first.target})
    assert world.journal.end_targets(gone, "not allowed any more") == 2
    assert world.ended == ["not allowed any more"] * 2
    world.journal.end_targets(gone, "again")
    assert len(world.ended) == 2, "each is ended once"
    for each in (first, second, other):
        each.closed("by itself")
    reasons = sorted(row.reason for row in world.rows())
    assert reasons == ["by itself", "not allowed any more", "not allowed any more"]


def test_a_connection_that_failed_to_end_is_tried_again_and_others_end(world: World) -> None:
    attempts: list[str] = []

    def fail(reason: str) -> None:
        attempts.append(reason)
        raise ValueError(reason)

    world.journal.opened(BOX, API, end=fail)
    world.opened()
    world.journal.end_all("no answer")
    assert world.ended == ["no answer"]
    world.journal.end_all("no answer")
    assert attempts == ["no answer"] * 2


def test_a_refusal_by_the_gateway_and_one_that_is_only_recorded_have_distinct_verdicts(world: World) -> None:
    world.opened().closed("403 of the gateway", refused=True)
    world.opened(would_refuse="no rule allows it").closed()
    verdicts = {row.verdict: row.reason for row in world.rows()}
    assert verdicts == {
        EgressVerdict.REFUSED: "403 of the gateway",
        EgressVerdict.WOULD_REFUSE: "no rule allows it",
    }


def test_texts_are_bounded(world: World) -> None:
    world.journal.refused(BoxId(BOX.job_id, 1, "x" * 99), Destination("h" * 9999, "1" * 999, 1, "p" * 99), "r" * 9999)
    world.now += module.ALIKE_SECONDS
    (row,) = world.rows()
    assert (len(row.host), len(row.reason), len(row.address), len(row.process)) == (256, 256, 64, 32)
