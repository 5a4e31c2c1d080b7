"""Tests of who is told what, and when.

The test controls the clock; receivers and the store fail on demand.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluice.core import REGISTRY, StoreError
from sluice.runtime.notify.config import NotifyConfig, Receiver, WebhookConfig
from sluice.runtime.notify.errors import NotifyError
from sluice.runtime.notify.events import Event, job_failed, worker_excluded
from sluice.runtime.notify.kinds import Kind
from sluice.runtime.notify.message import MAX_EVENTS, Message
from sluice.runtime.notify.notifier import (
    FIRST_BACKOFF_SECONDS,
    MAX_BACKOFF_SECONDS,
    MAX_WAITING,
    Notifier,
)
from tests.waiting import until

START = dt.datetime(2026, 11, 23, 12, 0, tzinfo=dt.UTC)
MINUTE, HOUR = 60.0, 3600.0


@dataclass
class FakeReceiver:
    """A fake receiver that records messages, or raises ``fails``."""

    messages: list[Message] = field(default_factory=list)
    attempts: int = 0
    fails: Exception | None = None
    hangs: bool = False
    complaint: str = ""

    async def send(self, message: Message) -> str:
        self.attempts += 1
        if self.fails is not None:
            raise self.fails
        if self.hangs:
            await asyncio.Event().wait()
        self.messages.append(message)
        return self.complaint

    @property
    def told(self) -> list[str]:
        """The subjects of all received events, in order."""
        return [event.subject for message in self.messages for event in message.events]


@dataclass
class FakeStore:
    """A fake store in memory; with ``fails`` it behaves like a full disk."""

    data: bytes | None = None
    fails: bool = False
    writes: int = 0

    async def read(self) -> bytes | None:
        return self.data

    async def write(self, data: bytes) -> None:
        if self.fails:
            raise StoreError("no space is left")
        self.writes += 1
        self.data = data


@dataclass
class World:
    """A cluster with its events, a store, receivers and a clock."""

    config: NotifyConfig
    store: FakeStore = field(default_factory=FakeStore)
    receivers: dict[str, FakeReceiver] = field(default_factory=dict)
    jobs: list[Event] = field(default_factory=list)
    workers: list[Event] = field(default_factory=list)
    blind: bool = False
    now: float = START.timestamp()

    def __post_init__(self) -> None:
        for each in self.config.receivers:
            self.receivers[each.name] = FakeReceiver()
        self.start()

    def start(self) -> None:
        """Start or restart the notifier."""
        self.notifier = Notifier(
            self.config,
            "sluice.local",
            {Kind.JOB_FAILED: self._jobs, Kind.WORKER_EXCLUDED: self._workers},
            self.store,
            sender=self._sender,
            clock=lambda: dt.datetime.fromtimestamp(self.now, dt.UTC),
            chance=lambda: 0.0,
        )

    def _sender(self, config: Receiver) -> FakeReceiver:
        return self.receivers[config.name]

    async def _jobs(self) -> Sequence[Event]:
        return list(self.jobs)

    async def _workers(self) -> Sequence[Event]:
        if self.blind:
            raise StoreError("nobody answers")
        return list(self.workers)

    def fail_job(self, number: int) -> None:
        self.jobs.append(job_failed(f"job-{number}", "name", "ada", self.now))

    def exclude(self, name: str) -> None:
        self.workers.append(worker_excluded(name, "no room", self.now))

    async def after(self, seconds: float = 0.0) -> None:
        """Advance the clock, then run one step of the notifier."""
        self.now += seconds
        await self.notifier.step()

    @property
    def ops(self) -> FakeReceiver:
        return self.receivers["ops"]


def hook(name: str, *kinds: Kind) -> WebhookConfig:
    return WebhookConfig(name=name, kinds=kinds, url="https://chat.example.com/")


def world(*receivers: WebhookConfig, **settings: Any) -> World:
    hooks = receivers or (hook("ops", Kind.JOB_FAILED, Kind.WORKER_EXCLUDED),)
    return World(NotifyConfig(webhooks=hooks, **settings))


async def test_a_job_that_fails_before_the_first_check_is_reported() -> None:
    """A cluster has just been started, and its first job fails at once."""
    it = world()
    it.now += 1
    it.fail_job(1)
    await it.after(14)
    assert it.ops.told == ["job-1"]


async def test_events_after_the_start_are_reported_once() -> None:
    it = world()
    it.fail_job(0)
    await it.after()
    assert it.ops.told == [], "it failed before anybody was to be told"
    it.now += 1
    it.fail_job(1)
    it.exclude("sw-1")
    for _ in range(50):
        await it.after(MINUTE)
    assert sorted(it.ops.told) == ["job-1", "sw-1"]
    assert it.ops.attempts == 1


async def test_a_lasting_condition_is_reported_again_after_the_repeat_interval() -> None:
    it = world(repeat_hours=24.0)
    it.exclude("sw-1")
    await it.after()
    await it.after(23.9 * HOUR)
    assert it.ops.told == ["sw-1"]
    await it.after(0.2 * HOUR)
    assert it.ops.told == ["sw-1", "sw-1"]


async def test_events_soon_after_a_message_are_grouped_into_the_next_message() -> None:
    it = world(group_minutes=5.0)
    await it.after()
    it.now += 1
    for number in range(20):
        it.fail_job(number)
        await it.after(15)
    assert [len(each.events) for each in it.ops.messages] == [1]
    await it.after(15)
    assert [len(each.events) for each in it.ops.messages] == [1, 19]


async def test_a_receiver_gets_only_the_kinds_of_events_that_it_names() -> None:
    it = world(hook("jobs", Kind.JOB_FAILED), hook("ops", Kind.WORKER_EXCLUDED), hook("none", Kind.AUTHORITY_ENDS))
    await it.after()
    it.now += 1
    it.fail_job(1)
    it.exclude("sw-1")
    await it.after(MINUTE)
    assert it.receivers["jobs"].told == ["job-1"]
    assert it.ops.told == ["sw-1"]
    assert it.receivers["none"].attempts == 0


async def test_after_a_restart_no_event_is_sent_again_and_no_event_is_left_out() -> None:
    it = world(group_minutes=5.0)
    await it.after()
    it.now += 1
    it.fail_job(1)
    it.exclude("sw-1")
    await it.after(1)
    it.fail_job(2)
    await it.after(1)
    assert len(it.ops.messages) == 1
    it.now += 1
    it.fail_job(3)
    it.start()
    await it.after(1)
    assert len(it.ops.messages) == 1, "a restart does not end the pause between messages"
    await it.after(5 * MINUTE)
    assert sorted(it.ops.told) == ["job-1", "job-2", "job-3", "sw-1"]


async def test_a_failing_receiver_is_retried_with_backoff_and_gets_every_event_in_the_end() -> None:
    it = world()
    await it.after()
    it.ops.fails = NotifyError("no")
    it.now += 1
    it.fail_job(1)
    at = []
    for _ in range(3600):
        tried = it.ops.attempts
        await it.after(1)
        if it.ops.attempts > tried:
            at.append(it.now)
    pauses = [after - before for before, after in itertools.pairwise(at)]
    assert pauses == sorted(pauses)
    assert pauses[0] == FIRST_BACKOFF_SECONDS
    assert pauses[-1] == MAX_BACKOFF_SECONDS
    it.fail_job(2)
    it.ops.fails = None
    await it.after(MAX_BACKOFF_SECONDS)
    assert it.ops.told == ["job-1", "job-2"]


async def test_a_failing_receiver_does_not_keep_messages_from_other_receivers(caplog: pytest.LogCaptureFixture) -> None:
    it = world(hook("ops", Kind.WORKER_EXCLUDED), hook("other", Kind.WORKER_EXCLUDED))
    it.ops.fails = ZeroDivisionError("a fault of ours")
    it.exclude("sw-1")
    await it.after()
    assert it.receivers["other"].told == ["sw-1"]
    assert "ZeroDivisionError" in caplog.text


async def test_a_condition_that_ends_before_it_could_be_sent_is_not_reported() -> None:
    it = world()
    it.ops.fails = NotifyError("no")
    it.exclude("sw-1")
    await it.after()
    it.workers.clear()
    it.ops.fails = None
    await it.after(HOUR)
    assert it.ops.told == []


async def test_a_failed_job_that_is_no_longer_kept_is_still_reported() -> None:
    it = world()
    await it.after()
    it.ops.fails = NotifyError("no")
    it.now += 1
    it.fail_job(1)
    await it.after()
    it.jobs.clear()
    it.ops.fails = None
    await it.after(HOUR)
    assert it.ops.told == ["job-1"]


async def test_a_kind_that_cannot_be_collected_is_not_over_and_does_not_stop_other_kinds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = world()
    it.ops.fails = NotifyError("no")
    it.exclude("sw-1")
    await it.after()
    it.blind, it.ops.fails = True, None
    it.now += 1
    it.fail_job(1)
    await it.after(HOUR)
    await it.after(HOUR)
    assert sorted(it.ops.told) == ["job-1", "sw-1"]
    assert caplog.text.count("cannot collect notifications of worker-excluded now") == 1


async def test_no_message_is_sent_while_the_delivery_state_cannot_be_stored() -> None:
    it = world()
    it.store.fails = True
    it.exclude("sw-1")
    for _ in range(3):
        with pytest.raises(StoreError):
            await it.after(HOUR)
    assert it.ops.attempts == 0, "or each restart would send everything"
    it.store.fails = False
    await it.after()
    assert it.ops.told == ["sw-1"]


async def test_a_full_disk_after_a_message_stops_the_next_message_and_sends_no_event_twice() -> None:
    it = world(group_minutes=0.0)
    await it.after()
    it.store.fails = True
    it.exclude("sw-1")
    with pytest.raises(StoreError):
        await it.after(1)
    it.exclude("sw-2")
    with pytest.raises(StoreError):
        await it.after(1)
    assert it.ops.told == ["sw-1"]
    it.store.fails = False
    await it.after(1)
    assert it.ops.told == ["sw-1", "sw-2"]


async def test_a_notifier_killed_between_sending_and_storing_sends_the_event_again() -> None:
    it = world()
    await it.after()
    it.now += 1
    it.fail_job(1)
    it.store.fails = True
    with pytest.raises(StoreError):
        await it.after()
    it.store.fails = False
    it.start()
    await it.after(HOUR)
    assert it.ops.told == ["job-1", "job-1"], "at least once"


async def hanging() -> tuple[World, asyncio.Task[None]]:
    """Return a world where one receiver was told of a job and another does not answer."""
    it = world(hook("ops", Kind.JOB_FAILED), hook("slow", Kind.JOB_FAILED))
    await it.after()
    it.now += 1
    it.fail_job(1)
    it.receivers["slow"].hangs = True
    step = asyncio.create_task(it.after())
    await until(lambda: it.ops.told and it.receivers["slow"].attempts)
    return it, step


async def test_stopping_while_a_receiver_hangs_sends_no_event_twice_to_the_other_receiver() -> None:
    it, step = await hanging()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    it.receivers["slow"].hangs = False
    it.start()
    await it.after(HOUR)
    assert it.ops.told == ["job-1"]
    assert it.receivers["slow"].told == ["job-1"]


@pytest.mark.parametrize("full", [False, True])
async def test_a_notifier_can_be_stopped_while_a_receiver_hangs_even_if_the_disk_is_full(full: bool) -> None:
    it, step = await hanging()
    it.store.fails = full
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b'{"ops": {"since": "x"}}', b'{"ops": {"sinse": 1}}'])
async def test_a_damaged_delivery_state_is_replaced_with_a_warning(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    it = world()
    it.store.data = data
    it.fail_job(0)
    it.exclude("sw-1")
    await it.after()
    assert it.ops.told == ["sw-1"]
    assert "may be sent again" in caplog.text
    assert json.loads(it.store.data or b"")["ops"]["told"]


async def test_a_flood_of_failed_jobs_is_bounded_and_comes_after_urgent_events() -> None:
    it = world(group_minutes=1.0)
    await it.after()
    it.now += 1
    for number in range(10 * MAX_WAITING):
        it.fail_job(number)
    it.exclude("sw-1")
    await it.after()
    first = it.ops.messages[0]
    assert len(first.events) == MAX_EVENTS
    assert first.events[0].subject == "sw-1"
    assert first.more == MAX_WAITING + 1 - MAX_EVENTS
    for _ in range(200):
        await it.after(MINUTE)
    assert len(it.ops.told) == len(set(it.ops.told))
    assert len(it.store.data or b"") < 64 << 10


async def test_a_new_receiver_gets_no_old_job_events_and_a_removed_receiver_is_forgotten() -> None:
    it = world()
    await it.after()
    it.now += 1
    it.fail_job(1)
    await it.after()
    it.config = NotifyConfig(webhooks=(hook("new", Kind.JOB_FAILED),))
    it.receivers["new"] = FakeReceiver()
    it.start()
    await it.after(1)
    assert it.receivers["new"].attempts == 0
    assert set(json.loads(it.store.data or b"")) == {"new"}


async def test_events_that_a_receiver_partly_refuses_are_logged_and_not_sent_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    it = world()
    it.ops.complaint = "it refuses 1 of 2 addresses"
    it.exclude("sw-1")
    with caplog.at_level(logging.ERROR):
        await it.after()
    await it.after(HOUR)
    assert it.ops.attempts == 1
    assert "refuses 1 of 2" in caplog.text


async def test_metrics_count_sent_failed_and_waiting_notifications() -> None:
    def value(name: str) -> float:
        return REGISTRY.get_sample_value(name, {"receiver": "counted"}) or 0.0

    it = world(hook("counted", Kind.WORKER_EXCLUDED))
    counted = it.receivers["counted"]
    counted.fails = NotifyError("no")
    it.exclude("sw-1")
    it.exclude("sw-2")
    await it.after()
    assert value("sluice_notify_waiting") == 2
    assert value("sluice_notify_failures_total") == 1
    counted.fails = None
    await it.after(HOUR)
    assert value("sluice_notify_waiting") == 0
    assert value("sluice_notify_sent_total") == 2
