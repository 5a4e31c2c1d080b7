"""The record of what a receiver was told.

Events are sent once, lasting conditions again after an interval, and the record is bounded.
"""

from __future__ import annotations

import msgspec

from sluice.runtime.ha.pointers import MAX_POINTER_BYTES
from sluice.runtime.notify.config import MAX_RECEIVERS
from sluice.runtime.notify.delivered import MAX_DELIVERED, Delivered
from sluice.runtime.notify.events import Event, job_failed, worker_excluded

REPEAT = 1000.0
NOW = 1_764_000_000.0


def job(number: int, at: float = NOW) -> Event:
    return job_failed(f"job-{number}", "name", "ada", at)


def worker(number: int, at: float = NOW) -> Event:
    return worker_excluded(f"sw-{number}", "no room", at)


def test_job_events_from_before_a_receiver_was_added_are_not_sent() -> None:
    delivered = Delivered(since=NOW)
    assert not delivered.should_send(job(1, NOW - 1), NOW, REPEAT)
    assert not delivered.should_send(job(1, NOW), NOW, REPEAT)
    assert delivered.should_send(job(1, NOW + 0.1), NOW, REPEAT)
    assert delivered.should_send(worker(1, NOW - 1), NOW, REPEAT), "it is so now"


def test_one_time_events_are_sent_once_and_lasting_conditions_again_after_an_interval() -> None:
    delivered = Delivered(since=0)
    delivered.record_confirmed([job(1), worker(1)], NOW, REPEAT)
    for later in (0, REPEAT - 1):
        assert not delivered.should_send(worker(1), NOW + later, REPEAT)
    assert delivered.should_send(worker(1), NOW + REPEAT, REPEAT)
    assert not delivered.should_send(job(1), NOW + 1000 * REPEAT, REPEAT)
    assert delivered.should_send(worker(1), NOW - 3600, REPEAT), "the clock was set back"


def test_delivered_events_survive_encoding_and_decoding() -> None:
    delivered = Delivered(since=5.5)
    delivered.record_confirmed([job(1), worker(1)], NOW, REPEAT)
    again = msgspec.json.decode(msgspec.json.encode(delivered), type=Delivered)
    assert again == delivered
    assert not again.should_send(job(1), NOW, REPEAT)


def test_delivered_events_of_all_receivers_fit_into_a_pointer_and_jobs_displace_only_jobs() -> None:
    delivered = Delivered(since=1.0)
    delivered.record_confirmed([worker(1)], NOW, REPEAT)
    for number in range(3 * MAX_DELIVERED):
        delivered.record_confirmed([job(number, NOW + number)], NOW, REPEAT)
    assert len(delivered.told) == MAX_DELIVERED
    assert not delivered.should_send(worker(1), NOW, REPEAT)
    assert not any(delivered.should_send(job(n, NOW + n), NOW, REPEAT) for n in range(3 * MAX_DELIVERED))
    assert delivered.should_send(job(-1, NOW + 3 * MAX_DELIVERED), NOW, REPEAT)
    everything = {f"{n:032d}": delivered for n in range(MAX_RECEIVERS)}
    assert len(msgspec.json.encode(everything)) <= MAX_POINTER_BYTES


def test_conditions_that_are_due_to_be_sent_again_are_forgotten() -> None:
    delivered = Delivered(since=1.0)
    delivered.record_confirmed([worker(1), job(1)], NOW, REPEAT)
    delivered.record_confirmed([worker(2)], NOW + REPEAT, REPEAT)
    assert set(delivered.told) == {worker(2).key, job(1).key}
