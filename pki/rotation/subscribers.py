"""The trust subscribers of the online authority, as holders in a rotation. No I/O."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator

from sluice.pki.authorities import Source, TrustHolder
from sluice.pki.ca import TRUST_WAIT_SECONDS, WRITE_SECONDS, SubscriberRecord, TrustSubscriber

SILENCE = dt.timedelta(seconds=2 * TRUST_WAIT_SECONDS + WRITE_SECONDS)
"""A running subscriber asks again after each wait: two waits, and the file's maximum age."""


def subscriber_holders(
    record: SubscriberRecord, now: dt.datetime, place: str, revoked: Collection[int] = frozenset()
) -> Iterator[TrustHolder]:
    """A holder for each process that follows from another machine; for each that is silent, one with the reason.

    Whose certificate has expired or was revoked (``revoked``: serial numbers) counts no more. ``place`` is where the
    record is.
    """
    if record.incomplete_at is not None and not _is_over(record.incomplete_at, now):
        why = f"not all that follow from other machines are known at {_utc(record.incomplete_at)}"
        yield TrustHolder(Source.FOLLOWER, place, place, problem=why)
    for subscriber in record.subscribers:
        if subscriber.not_after >= now and int(subscriber.serial, 16) not in revoked:
            yield from _holders(subscriber, now)


def _holders(subscriber: TrustSubscriber, now: dt.datetime) -> Iterator[TrustHolder]:
    problem = ""
    if _is_over(subscriber.heard_at, now):
        problem = f"not heard of since {_utc(subscriber.heard_at)}"
    elif subscriber.unreadable:
        problem = f"{subscriber.unreadable} of its processes do not tell what they hold"
    elif not subscriber.in_use:
        problem = "it follows, and has not told yet what it holds"
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
    """Longer ago than a process that lives is silent, or (the clock was set) not in the past at all."""
    return abs(now - moment) > SILENCE


def _utc(moment: dt.datetime) -> str:
    return f"{moment.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
