"""Parses times of the command line: ``1h`` ago, or a moment."""

from __future__ import annotations

import datetime as dt
import re

from sluice.cli.errors import UsageError

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_AGO = re.compile(r"([1-9][0-9]{0,6})([smhd])")


def moment(option: str, text: str, now: dt.datetime) -> dt.datetime | None:
    """Parse ``text`` as a moment; None for an empty one. Raises :class:`UsageError` naming ``option``."""
    if not text:
        return None
    if match := _AGO.fullmatch(text):
        try:
            return now - dt.timedelta(**{_UNITS[match[2]]: int(match[1])})
        except OverflowError:
            return dt.datetime.min.replace(tzinfo=dt.UTC)
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r} is not a time", "1h, 30m, 7d, or 2026-03-01T12:00 (UTC)") from error
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found


def utc_text(seconds: float) -> str:
    """A time in seconds since the epoch, as in ``2026-03-01T12:00:00Z``."""
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
