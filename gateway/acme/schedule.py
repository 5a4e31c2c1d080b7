"""When a certificate is ordered: at two thirds of the last one's lifetime, and how long after a failure. No I/O.

ACME servers limit how often a name is tried. An attempt counts as failed from its beginning until it has succeeded, so
a process that is killed in the middle of one, or restarted again and again, does not try more often than others.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import dataclass

import msgspec

RENEWAL_FRACTION = 2 / 3
"""Of the lifetime."""
JITTER_FRACTION = 1 / 30
"""Of the lifetime, at most, after that: so that certificates that were issued together are not renewed together."""
FIRST_PAUSE = dt.timedelta(minutes=15)
"""After a failure, doubled with each further one. Let's Encrypt allows five failed validations of a name in an hour."""
LONGEST_PAUSE = dt.timedelta(hours=24)
LONGEST_RETRY_AFTER = dt.timedelta(days=7)
"""However long the server says: that is the longest window of public authorities' limits."""
MAX_ERROR_CHARACTERS = 1000


class RenewalState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What outlives a restart. Times are Unix time; 0: never."""

    orders_as: str = ""
    """Digest of the settings that the attempts were made with: others get a fresh start."""
    failures: int = 0
    """Attempts since the last success, the running one included."""
    next_attempt: float = 0.0
    last_attempt: float = 0.0
    last_success: float = 0.0
    last_error: str = ""
    issued_by: str = ""
    """Directory URL of the server that issued the certificate in use."""


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Of the certificate in use; ``serial`` decides about the jitter."""

    begin: dt.datetime
    end: dt.datetime
    serial: int


@dataclass(frozen=True, slots=True)
class Due:
    """When the next order is made, and why then."""

    at: dt.datetime
    reason: str

    def now(self, now: dt.datetime) -> bool:
        """Whether it is time."""
        return now >= self.at


def renewal_time(lifetime: Lifetime) -> dt.datetime:
    """The same whenever it is asked for one certificate."""
    digest = hashlib.sha256(str(lifetime.serial).encode()).digest()
    jitter = int.from_bytes(digest[:4], "big") / 2**32 * JITTER_FRACTION
    return lifetime.begin + (lifetime.end - lifetime.begin) * (RENEWAL_FRACTION + jitter)


def due(state: RenewalState, orders_as: str, directory: str, lifetime: Lifetime | None, now: dt.datetime) -> Due:
    """When to order.

    Args:
        state: what was tried before.
        orders_as: digest of the settings as they are.
        directory: URL of the ACME server.
        lifetime: of a certificate in use that is good for all names; None: there is none.
        now: the present.
    """
    if lifetime is None:
        wanted = Due(now, "there is no valid certificate for gateway.server_names")
    elif state.issued_by != directory:
        wanted = Due(now, "gateway.acme.directory is that of another server")
    else:
        wanted = Due(renewal_time(lifetime), "the certificate's renewal")
    if not state.failures or state.orders_as != orders_as:
        return wanted
    # A clock that was put back must not make the pause longer than any pause can be.
    again = min(_moment(state.next_attempt), now + LONGEST_RETRY_AFTER)
    return wanted if wanted.at >= again else Due(again, f"the pause after {state.failures} failures")


def begun(state: RenewalState, orders_as: str, now: dt.datetime, chance: float) -> RenewalState:
    """The state to keep before an attempt: as if it had failed. ``chance`` is a random number from 0 to 1."""
    failures = (state.failures if state.orders_as == orders_as else 0) + 1
    return msgspec.structs.replace(
        state,
        orders_as=orders_as,
        failures=failures,
        last_attempt=now.timestamp(),
        next_attempt=(now + pause_after(failures, chance)).timestamp(),
        last_error="the attempt was interrupted",
    )


def failed(state: RenewalState, error: str, retry_after: dt.timedelta | None, now: dt.datetime) -> RenewalState:
    """The state after an attempt that failed; ``retry_after`` is what the server asked for, if that is longer."""
    asked = now.timestamp() + min(retry_after or dt.timedelta(), LONGEST_RETRY_AFTER).total_seconds()
    return msgspec.structs.replace(
        state, last_error=error[:MAX_ERROR_CHARACTERS], next_attempt=max(state.next_attempt, asked)
    )


def succeeded(state: RenewalState, directory: str, now: dt.datetime) -> RenewalState:
    """The state after a certificate was taken into use."""
    return RenewalState(
        orders_as=state.orders_as,
        last_attempt=state.last_attempt,
        last_success=now.timestamp(),
        issued_by=directory,
    )


def pause_after(failures: int, chance: float) -> dt.timedelta:
    """After this many failures in a row: doubled each time, up to the longest, and up to a quarter more by chance."""
    doubled: dt.timedelta = FIRST_PAUSE * 2 ** min(failures - 1, 16)
    return min(doubled, LONGEST_PAUSE) * (1 + chance / 4)


def _moment(unix_time: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(unix_time, dt.UTC)
