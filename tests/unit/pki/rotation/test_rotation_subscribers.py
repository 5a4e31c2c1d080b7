"""Remote processes in a rotation, as tables: their states, and for whom each step waits."""

from __future__ import annotations

import datetime as dt

import pytest

from sluice.pki.authorities.rotation_phases import (
    Generations,
    Keep,
    Laggard,
    Source,
    TrustHolder,
    lacking,
    presenting,
    trusting,
)
from sluice.pki.ca.trust_subscribers import SubscriberRecord, TrustSubscriber
from sluice.pki.rotation.subscribers import SILENCE, subscriber_holders
from sluice.pki.trust.reports import TrustReport

A, B = "aa", "bb"
SIDE = Generations(old=A, new=B)
NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)
WORKER = "spiffe://td/taskmanager/tm-7"
SERIAL = 0xABC


def report(issuer: str, *anchors: str, pid: int = 7) -> TrustReport:
    return TrustReport(
        pid=pid,
        started=1.0,
        identity=WORKER,
        program="taskmanager",
        leaf="0" * 64,
        issuer=issuer,
        anchors=anchors,
        crls={A: 3},
        loaded_at=NOW,
    )


def subscriber(
    *reports: TrustReport, silent: dt.timedelta = SECOND, left: dt.timedelta = SECOND, unreadable: int = 0
) -> TrustSubscriber:
    return TrustSubscriber(
        identity=WORKER,
        heard_at=NOW - silent,
        address="192.0.2.7",
        serial=f"{SERIAL:x}",
        not_after=NOW + left,
        in_use=reports,
        unreadable=unreadable,
    )


def judged(
    *subscribers: TrustSubscriber, incomplete: dt.timedelta | None = None, revoked: int = 0
) -> list[TrustHolder]:
    at = None if incomplete is None else NOW - incomplete
    return list(
        subscriber_holders(SubscriberRecord(subscribers=subscribers, incomplete_at=at), NOW, "the/record", {revoked})
    )


DONE = report(B, B)


@pytest.mark.parametrize(
    ("holders", "activate", "finish", "close"),
    [
        # behind: may not be activated / finished / closed because of this subscriber
        pytest.param(judged(subscriber(report(A, A))), True, True, True, id="has heard nothing"),
        pytest.param(judged(subscriber(report(A, A, B))), False, True, True, id="trusts both and presents A"),
        pytest.param(judged(subscriber(report(B, B, A))), False, False, True, id="presents B and still trusts A"),
        pytest.param(judged(subscriber(DONE)), False, False, False, id="done"),
        pytest.param(judged(subscriber(DONE, report(A, A, pid=8))), True, True, True, id="one of two processes is not"),
        pytest.param(judged(subscriber()), True, True, True, id="has not told what it holds"),
        pytest.param(
            judged(subscriber(DONE, unreadable=1)), True, True, True, id="another of its processes is unknown"
        ),
        pytest.param(judged(subscriber(DONE, silent=SILENCE)), False, False, False, id="done, and about to ask again"),
        pytest.param(judged(subscriber(DONE, silent=SILENCE + SECOND)), True, True, True, id="done, but silent"),
        pytest.param(
            judged(subscriber(report(A, A), silent=SILENCE + SECOND)), True, True, True, id="behind and silent"
        ),
        pytest.param(judged(subscriber(DONE, silent=-SILENCE - SECOND)), True, True, True, id="heard of in the future"),
        pytest.param(judged(subscriber(report(A, A), left=-SECOND)), False, False, False, id="expired"),
        pytest.param(
            judged(subscriber(left=-SECOND, silent=SILENCE * 2)), False, False, False, id="expired and silent"
        ),
        pytest.param(judged(subscriber(report(A, A), left=0 * SECOND)), True, True, True, id="not expired yet"),
        pytest.param(judged(subscriber(report(A, A)), revoked=SERIAL), False, False, False, id="revoked"),
        pytest.param(
            judged(subscriber(report(A, A)), revoked=SERIAL + 1), True, True, True, id="somebody else revoked"
        ),
        pytest.param(judged(incomplete=SECOND), True, True, True, id="not all are known"),
        pytest.param(judged(incomplete=SILENCE + SECOND), False, False, False, id="all had time to tell again"),
    ],
)
def test_a_subscriber_holds_up_exactly_the_rotation_steps_it_is_not_ready_for(
    holders: list[TrustHolder], *, activate: bool, finish: bool, close: bool
) -> None:
    assert bool(lacking(holders, [SIDE], Keep.NEW)) is activate
    assert bool(presenting(holders, [SIDE], Keep.OLD)) is finish
    assert bool(trusting(holders, [SIDE], Keep.OLD)) is close


def test_a_lagging_follower_is_reported_with_its_process_and_address() -> None:
    (holder,) = judged(subscriber(report(A, A)))
    assert (holder.source, holder.identity, holder.place, holder.crls) == (
        Source.FOLLOWER,
        WORKER,
        "192.0.2.7",
        ((A, 3),),
    )
    assert str(Laggard(holder, "why")) == f"{WORKER} (taskmanager 7) at 192.0.2.7: why"


def test_a_silent_subscriber_is_reported_with_the_time_of_its_last_report() -> None:
    (holder,) = judged(subscriber(DONE, silent=dt.timedelta(minutes=5)))
    assert holder.problem == "no report since 2026-11-21 11:55:00 UTC"
