"""The clock that everything takes as an argument, so that tests can move it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

Clock = Callable[[], dt.datetime]
"""Returns the present, with a time zone."""


def utc_now() -> dt.datetime:
    """The present, in UTC."""
    return dt.datetime.now(dt.UTC)
