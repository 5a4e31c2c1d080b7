"""How pages show values: times, durations, sizes, identities, states. Pure functions of values and the time."""

from __future__ import annotations

import datetime as dt
from typing import Literal

Tone = Literal["ok", "run", "warn", "bad", "idle"]
"""The meaning of a colour; text beside it always says the same."""

_STATE_TONES: dict[str, Tone] = {
    "FINISHED": "ok",
    "RUNNING": "run",
    "INITIALIZING": "run",
    "CREATED": "run",
    "RECONCILING": "run",
    "RESTARTING": "warn",
    "SUSPENDED": "warn",
    "CANCELLING": "warn",
    "FAILING": "bad",
    "FAILED": "bad",
    "CANCELED": "idle",
}

SHARE_THAT_SHOULD_BE_LEFT = 0.4
"""Leaves are renewed at half of their life: one with less than this left is overdue."""


def state_tone(state: str) -> Tone:
    """The tone of a job's state."""
    return _STATE_TONES.get(state, "idle")


def duration(milliseconds: float) -> str:
    """``850 ms``, ``8.1 s``, ``3 min 20 s``, ``2 h 5 min``, ``3 d 4 h``."""
    if milliseconds < 1000:
        return f"{max(0, int(milliseconds))} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    for unit, below, smaller, size in (("min", 3600, "s", 60), ("h", 86400, "min", 3600)):
        if seconds < below:
            return _two(int(seconds), size, unit, size // 60, smaller)
    return _two(int(seconds), 86400, "d", 3600, "h")


def _two(seconds: int, size: int, unit: str, smaller_size: int, smaller: str) -> str:
    """A duration in a unit and the next smaller one, without the latter when it is zero."""
    rest = seconds % size // smaller_size
    return f"{seconds // size} {unit}" + (f" {rest} {smaller}" if rest else "")


def size(number: float) -> str:
    """``512 B``, ``1.4 MB`` (powers of 1000)."""
    value = float(number)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError  # pragma: no cover  # the last unit takes everything


def moment(seconds: float) -> str:
    """``2026-11-21 11:25:20`` in UTC, of seconds since the epoch."""
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%d %H:%M:%S}"


def machine_moment(seconds: float) -> str:
    """The moment for programs (RFC 3339)."""
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%dT%H:%M:%SZ}"


def ago(seconds: float, now: float) -> str:
    """``12 s ago``, ``in 3 h 2 min``."""
    apart = duration(abs(now - seconds) // 1 * 1000) if abs(now - seconds) >= 1 else "now"
    if apart == "now":
        return "just now"
    return f"{apart.replace('.0 s', ' s')} ago" if seconds <= now else f"in {apart.replace('.0 s', ' s')}"


def identity_path(spiffe_id: str) -> str:
    """An identity without scheme and trust domain, as in ``taskmanager/tm-1``."""
    _, scheme, rest = spiffe_id.partition("spiffe://")
    return rest.partition("/")[2] if scheme else spiffe_id


def left(not_after: float, now: float) -> str:
    """``21 h 4 min left``, ``expired``."""
    if now >= not_after:
        return "expired"
    return f"{duration((not_after - now) // 1 * 1000).replace('.0 s', ' s')} left"


def short_identity(spiffe_id: str) -> str:
    """:func:`identity_path` with a job's id shortened."""
    parts = identity_path(spiffe_id).split("/")
    if parts[0] == "job" and len(parts) > 2:
        parts[1] = parts[1][:8]
    return "/".join(parts)


def expiry_tone(not_before: float, not_after: float, now: float) -> Tone:
    """The tone of a certificate: renewed in time, overdue, or expired."""
    if now >= not_after:
        return "bad"
    left, life = not_after - now, max(1.0, not_after - not_before)
    if left < SHARE_THAT_SHOULD_BE_LEFT * life:
        return "bad" if left < SHARE_THAT_SHOULD_BE_LEFT * life / 4 else "warn"
    return "ok"
