"""Who is given up, and when; with a clock that is moved by hand."""

from __future__ import annotations

import pytest

from sluice.runtime.rpc import HeartbeatMonitor, stall_limit
from sluice.runtime.rpc.heartbeat import MOST_STALLS


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_silent_target_expires_after_the_timeout_and_is_returned_once() -> None:
    clock = Clock()
    monitor: HeartbeatMonitor[str] = HeartbeatMonitor(50.0, clock=clock)
    monitor.beat("a")
    clock.now += 50.0
    assert monitor.expired() == []
    clock.now += 0.1
    assert monitor.expired() == ["a"]
    assert monitor.expired() == []
    assert monitor.expired(clock.now + 1000.0) == []


def test_a_heartbeat_resets_the_timeout_of_its_target_only() -> None:
    clock = Clock()
    monitor: HeartbeatMonitor[str] = HeartbeatMonitor(50.0, clock=clock)
    monitor.beat("a")
    monitor.beat("b")
    clock.now += 40.0
    monitor.beat("a")
    assert monitor.expired(clock.now + 20.0) == ["b"]
    assert monitor.expired(clock.now + 1000.0) == ["a"]


def test_a_target_expires_after_failed_calls_in_a_row_and_a_heartbeat_resets_their_count() -> None:
    monitor: HeartbeatMonitor[str] = HeartbeatMonitor(50.0, failure_threshold=2, clock=Clock())
    monitor.beat("a")
    monitor.call_failed("a")
    monitor.beat("a")
    monitor.call_failed("a")
    assert monitor.expired() == []
    monitor.call_failed("a")
    assert monitor.expired() == ["a"]


def test_a_target_that_is_not_watched_never_expires() -> None:
    clock = Clock()
    monitor: HeartbeatMonitor[str] = HeartbeatMonitor(50.0, clock=clock)
    monitor.call_failed("stranger")
    monitor.beat("a")
    monitor.forget("a")
    monitor.forget("stranger")
    assert monitor.expired(clock.now + 1e9) == []


def test_nobody_is_silent_right_after_a_stall_of_the_watching_process() -> None:
    """It has not read its mail yet. Who is silent still at the next check is dead."""
    clock = Clock()
    monitor: HeartbeatMonitor[str] = HeartbeatMonitor(50.0, stalled_after=20.0, clock=clock)
    for name in ("alive", "dead", "unreachable"):
        monitor.beat(name)
    for _ in range(2):
        monitor.call_failed("unreachable")
    clock.now += 60.0
    assert monitor.expired() == ["unreachable"], "failed calls count all the same"
    monitor.beat("alive")
    clock.now += 1.0
    assert monitor.expired() == ["dead"]


@pytest.mark.parametrize(("interval", "timeout"), [(1.0, 5.0), (4.0, 5.0), (10.0, 50.0), (0.1, 0.1)])
def test_regular_checks_are_no_stall(interval: float, timeout: float) -> None:
    clock = Clock()
    period = min(interval, timeout / 4)
    monitor: HeartbeatMonitor[str] = HeartbeatMonitor(timeout, stalled_after=stall_limit(period, timeout), clock=clock)
    monitor.beat("a")
    checks = 0
    while not monitor.expired():
        clock.now += 1.2 * period  # a little late each time
        checks += 1
    assert timeout < 1.2 * period * checks < timeout + 3 * period


def test_a_process_that_is_always_slow_gives_up_a_silent_target_all_the_same() -> None:
    clock = Clock()
    monitor: HeartbeatMonitor[str] = HeartbeatMonitor(50.0, stalled_after=20.0, clock=clock)
    monitor.beat("dead")
    checks = 0
    while not monitor.expired():
        clock.now += 60.0
        checks += 1
    assert checks == MOST_STALLS + 1
