"""The trust subscribers of the online authority, as holders in a rotation. No I/O."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator

from sluice.pki.authorities import Source, TrustHolder
from sluice.pki.ca import TRUST_WAIT_SECONDS, WRITE_SECONDS, SubscriberRecord, TrustSubscriber

SILENCE = dt.timedelta(seconds=2 * TRUST_WAIT_SECONDS + WRITE_SECONDS)
"""A running subscriber asks again after each wait: two waits, plus the file's maximum age."""


def subscriber_holders(
    record: SubscriberRecord, now: dt.datetime, place: str, revoked: Collection[int] = frozenset()
) -> Iterator[TrustHolder]:
    """A holder for each process on another machine that subscribes; silent ones with the reason.

    Without those whose certificate has expired or was revoked (``revoked``: serial numbers). ``place`` is where the
    record is.
    """
    if record.incomplete_at is not None and not _is_over(record.incomplete_at, now):
        why = f"not all subscribers on other machines were known at {_utc(record.incomplete_at)}"
        yield TrustHolder(Source.FOLLOWER, place, place, problem=why)
    for subscriber in record.subscribers:
        if subscriber.not_after >= now and int(subscriber.serial, 16) not in revoked:
            yield from _holders(subscriber, now)


def _holders(subscriber: TrustSubscriber, now: dt.datetime) -> Iterator[TrustHolder]:
    problem = ""
    if _is_over(subscriber.heard_at, now):
        problem = f"no report since {_utc(subscriber.heard_at)}"
    elif subscriber.unreadable:
        problem = f"{subscriber.unreadable} of its processes do not report what they hold"
    elif not subscriber.in_use:
        problem = "it subscribes, but has not reported yet what it holds"
    if problem:
        yield TrustHolder(Source.FOLLOWER, subscriber.identity, subscriber.address, problem=problem)
        return
    for report in subscriber.in_use:
        yield TrustHolder(
            Source.FOLLOWER,
            subscriber.identity,
            subscriber.address,
            program=report.program,
            pid=report.pid,
            issuer=report.issuer,
            anchors=report.anchors,
            crls=tuple(report.crls.items()),
        )


def _is_over(moment: dt.datetime, now: dt.datetime) -> bool:
    """Whether the report is too old for a living process, or (the clock was set) in the future."""
    return abs(now - moment) > SILENCE


def _utc(moment: dt.datetime) -> str:
    return f"{moment.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
