"""Processes on other machines as holders in a rotation: by what they told the online authority. Decisions only."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator

from sluice.pki.authorities.rotation_phases import Holder, Source
from sluice.pki.ca.follower_file import WRITE_SECONDS
from sluice.pki.ca.followers import Follower, FollowerRecord
from sluice.pki.ca.protocol import TRUST_WAIT_SECONDS

SILENCE = dt.timedelta(seconds=2 * TRUST_WAIT_SECONDS + WRITE_SECONDS)
"""Who lives asks again after each wait; two of them, and the age that the times in the file may have."""


def follower_holders(
    record: FollowerRecord, now: dt.datetime, place: str, revoked: Collection[int] = frozenset()
) -> Iterator[Holder]:
    """A holder for each process that follows from another machine; for each that is silent, one with the reason.

    Whose certificate has expired or was revoked (``revoked``: serial numbers) counts no more. ``place`` is where the
    record is.
    """
    if record.incomplete_at is not None and not _is_over(record.incomplete_at, now):
        why = f"not all that follow from other machines are known at {_utc(record.incomplete_at)}"
        yield Holder(Source.FOLLOWER, place, place, problem=why)
    for follower in record.followers:
        if follower.not_after >= now and int(follower.serial, 16) not in revoked:
            yield from _holders(follower, now)


def _holders(follower: Follower, now: dt.datetime) -> Iterator[Holder]:
    problem = ""
    if _is_over(follower.heard_at, now):
        problem = f"not heard of since {_utc(follower.heard_at)}"
    elif follower.unreadable:
        problem = f"{follower.unreadable} of its processes do not tell what they hold"
    elif not follower.in_use:
        problem = "it follows, and has not told yet what it holds"
    if problem:
        yield Holder(Source.FOLLOWER, follower.identity, follower.address, problem=problem)
        return
    for report in follower.in_use:
        yield Holder(
            Source.FOLLOWER,
            follower.identity,
            follower.address,
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
