"""Pauses between attempts after failures."""

from __future__ import annotations

from sluice.core.backoff import backoff_seconds


def test_backoff_pauses_grow_are_bounded_and_jittered() -> None:
    assert backoff_seconds(1, 0.5, 60.0, lambda: 0.0) == 0.5
    assert backoff_seconds(3, 0.5, 60.0, lambda: 1.0) == 1.0
    assert backoff_seconds(10_000, 0.5, 60.0, lambda: 0.0) == 60.0
