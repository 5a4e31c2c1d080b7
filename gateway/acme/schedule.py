"""When to order a certificate: after two thirds of the current one's lifetime, with backoff after failures. No I/O.

ACME servers limit how often a name may be tried. An attempt counts as failed from its start until it has succeeded.
So a process that is killed during an attempt, or restarted repeatedly, does not try more often.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import dataclass

import msgspec

RENEWAL_FRACTION = 2 / 3
"""Fraction of the lifetime after which a certificate is renewed."""
JITTER_FRACTION = 1 / 30
"""Maximum random delay after that, as a fraction of the lifetime. It spreads renewals that would coincide."""
FIRST_PAUSE = dt.timedelta(minutes=15)
"""Pause after the first failure; it doubles with each further one.

Let's Encrypt allows five failed validations of a name per hour.
"""
LONGEST_PAUSE = dt.timedelta(hours=24)
LONGEST_RETRY_AFTER = dt.timedelta(days=7)
"""Upper limit of Retry-After: the longest rate limit window of public CAs."""
MAX_ERROR_CHARACTERS = 1000


class RenewalState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State that survives a restart. Times are Unix time; 0 means never."""

    orders_as: str = ""
    """Digest of the settings of these attempts. Other settings start without failures."""
    failures: int = 0
    """Attempts since the last success, including a running one."""
    next_attempt: float = 0.0
    last_attempt: float = 0.0
    last_success: float = 0.0
    last_error: str = ""
    issued_by: str = ""
    """Directory URL of the server that issued the certificate in use."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Lifetime of the certificate in use. ``serial`` determines the jitter."""

    begin: dt.datetime
    end: dt.datetime
    serial: int


@dataclass(frozen=True, slots=True)
class Due:
    """When the next order is due, and why."""

    at: dt.datetime
    reason: str

    def is_due(self, now: dt.datetime) -> bool:
        """Whether the order is due at ``now``."""
        return now >= self.at


def renewal_time(lifetime: Lifetime) -> dt.datetime:
    """When to renew. The result is always the same for the same certificate."""
    digest = hashlib.sha256(str(lifetime.serial).encode()).digest()
    jitter = int.from_bytes(digest[:4], "big") / 2**32 * JITTER_FRACTION
    return lifetime.begin + (lifetime.end - lifetime.begin) * (RENEWAL_FRACTION + jitter)


def due(state: RenewalState, settings_digest: str, directory: str, lifetime: Lifetime | None, now: dt.datetime) -> Due:
    """When to order the next certificate.

    Args:
        state: earlier attempts.
        settings_digest: digest of the current settings.
        directory: URL of the ACME server.
        lifetime: lifetime of the certificate in use if it is valid for all names; None if there is none.
        now: the current time.
    """
    if lifetime is None:
        wanted = Due(now, "there is no valid certificate for gateway.server_names")
    elif state.issued_by != directory:
        wanted = Due(now, "gateway.acme.directory now names another server")
    else:
        wanted = Due(renewal_time(lifetime), "the certificate is due for renewal")
    if not state.failures or state.orders_as != settings_digest:
        return wanted
    # If the clock was set back, limit the pause to the longest one possible.
    again = min(_moment(state.next_attempt), now + LONGEST_RETRY_AFTER)
    return wanted if wanted.at >= again else Due(again, f"backoff after {state.failures} failures")


def started(state: RenewalState, settings_digest: str, now: dt.datetime, chance: float) -> RenewalState:
    """The state to store before an attempt, as if it had failed. ``chance`` is a random number from 0 to 1."""
    failures = (state.failures if state.orders_as == settings_digest else 0) + 1
    return msgspec.structs.replace(
        state,
        orders_as=settings_digest,
        failures=failures,
        last_attempt=now.timestamp(),
        next_attempt=(now + pause_after(failures, chance)).timestamp(),
        last_error="the attempt was interrupted",
    )


def failed(state: RenewalState, error: str, retry_after: dt.timedelta | None, now: dt.datetime) -> RenewalState:
    """The state after a failed attempt. ``retry_after`` from the server applies if it is the longer pause."""
    asked = now.timestamp() + min(retry_after or dt.timedelta(), LONGEST_RETRY_AFTER).total_seconds()
    return msgspec.structs.replace(
        state, last_error=error[:MAX_ERROR_CHARACTERS], next_attempt=max(state.next_attempt, asked)
    )


def succeeded(state: RenewalState, directory: str, now: dt.datetime) -> RenewalState:
    """The state after a new certificate is in use."""
    return RenewalState(
        orders_as=state.orders_as,
        last_attempt=state.last_attempt,
        last_success=now.timestamp(),
        issued_by=directory,
    )


def pause_after(failures: int, chance: float) -> dt.timedelta:
    """The pause after ``failures`` failures in a row: exponential up to the maximum, plus up to a quarter of jitter."""
    doubled: dt.timedelta = FIRST_PAUSE * 2 ** min(failures - 1, 16)
    return min(doubled, LONGEST_PAUSE) * (1 + chance / 4)


def _moment(unix_time: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(unix_time, dt.UTC)
