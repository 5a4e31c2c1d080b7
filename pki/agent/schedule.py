"""When an identity is renewed, when a failed attempt is made again, and when somebody must be told.

Decisions only; no I/O, no clock: instants come in and go out.
"""

from __future__ import annotations

import datetime as dt
import enum

from sluice.pki.x509.profiles import Validity

RENEW_EARLIEST = 0.45
RENEW_LATEST = 0.55
"""Share of its life after which an identity is renewed: half, spread so that a cluster does not ask all at once."""
FIRST_RETRY = dt.timedelta(seconds=1)
LONGEST_RETRY = dt.timedelta(minutes=5)
SHORTEST_RETRY = dt.timedelta(milliseconds=500)
WARN_BELOW = 0.25
"""Share of its life left below which a renewal that did not happen is a warning."""
ALARM_BELOW = 0.10
_MOST_DOUBLINGS = 16


class Urgency(enum.IntEnum):
    """How close to its end an identity is; more is worse."""

    FRESH = 0
    WARNING = 1
    CRITICAL = 2
    EXPIRED = 3


def renew_at(validity: Validity, spread: float) -> dt.datetime:
    """The instant of renewal; ``spread`` in [0, 1) is drawn once per generation."""
    share = RENEW_EARLIEST + (RENEW_LATEST - RENEW_EARLIEST) * spread
    return validity.start + (validity.end - validity.start) * share


def retry_at(now: dt.datetime, failures: int, spread: float, *, longest: dt.timedelta = LONGEST_RETRY) -> dt.datetime:
    """When to try again after the ``failures``-th failure in a row: doubling, bounded, the upper half at random."""
    whole = min(FIRST_RETRY * (1 << min(max(failures, 1) - 1, _MOST_DOUBLINGS)), longest)
    return now + max(whole * (0.5 + 0.5 * spread), SHORTEST_RETRY)


def urgency(validity: Validity, now: dt.datetime) -> Urgency:
    """How urgent the renewal is at ``now``."""
    left = validity.end - now
    life = validity.end - validity.start
    if left <= dt.timedelta(0):
        return Urgency.EXPIRED
    if left < life * ALARM_BELOW:
        return Urgency.CRITICAL
    if left < life * WARN_BELOW:
        return Urgency.WARNING
    return Urgency.FRESH


def is_due(validity: Validity, now: dt.datetime, spread: float) -> bool:
    """Whether to renew at ``now``; also when a clock that jumped back makes the identity one of the future."""
    return now < validity.start or now >= renew_at(validity, spread)
