"""The clock that everything takes as an argument, so that tests can move it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

Clock = Callable[[], dt.datetime]
"""Returns the present, with a time zone."""


def utc_now() -> dt.datetime:
    """The present, in UTC."""
    return dt.datetime.now(dt.UTC)


def rfc3339(instant: dt.datetime) -> str:
    """``instant`` in UTC with milliseconds, as in ``2026-01-31T12:00:00.000Z`` (RFC 3339)."""
    return instant.astimezone(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
