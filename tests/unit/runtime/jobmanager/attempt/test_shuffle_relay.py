"""Tests of one job's shuffles: their numbers on the data plane, and when they are released."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import cast

import pytest

from sluice.runtime.jobmanager.attempt.shuffle_relay import ATTEMPT_SHIFT, ShuffleRelay
from sluice.runtime.messages import KnownShuffle, OutputLocation, RunningDriver, ShuffleAllocation, WorkerAddress
from sluice.runtime.shuffle.control_plane.errors import NoShuffleService
from sluice.runtime.shuffle.control_plane.manager_link import ShuffleManagerLink

JOB = "a" * 32


class Link:
    """A fake link to the shuffle service that records the calls it receives."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.errors: list[Exception] = []
        self.answering = asyncio.Event()
        self.answering.set()

    async def allocate(self, job_id: str, shuffle_number: int, partitions: int) -> ShuffleAllocation:
        self.heard.append(("allocate", shuffle_number, partitions))
        await self.answering.wait()
        if self.errors:
            raise self.errors.pop()
        worker = WorkerAddress(name="w-1", host="h", port=1)
        return ShuffleAllocation(shuffle_number=shuffle_number, workers=(worker,), replicas=1, integrity_key=b"0" * 8)

    def keep(self, job_id: str) -> None:
        self.heard.append(("keep", job_id))

    async def release_shuffle(self, job_id: str, shuffle_number: int) -> None:
        if self.errors:
            raise self.errors.pop()
        self.heard.append(("release", shuffle_number))

    async def release_before(self, job_id: str, shuffle_number: int) -> None:
        self.heard.append(("before", shuffle_number))

    async def release_job(self, job_id: str) -> None:
        self.heard.append(("job", job_id))

    async def locate(self, job_id: str, shuffle_number: int, workers: Collection[str]) -> tuple[OutputLocation, ...]:
        self.heard.append(("locate", shuffle_number, list(workers)))
        return (OutputLocation(pushed_to="w-1", address=WorkerAddress("w-2", "h", 2)),)

    async def workers_lost(self, job_id: str, workers: Collection[str]) -> None:
        self.heard.append(("lost", list(workers)))


def relay_of(link: Link) -> ShuffleRelay:
    return ShuffleRelay(cast("ShuffleManagerLink", link), JOB)


async def begin(relay: ShuffleRelay, attempt: int, app_id: str) -> None:
    over = relay.begin(attempt, app_id)
    if over is not None:
        await over


async def test_no_two_shuffles_of_a_job_ever_have_the_same_number() -> None:
    link = Link()
    relay = relay_of(link)
    numbers = []
    for attempt, app_id in ((1, "a"), (1, "b"), (2, "a"), (3, "a")):
        await begin(relay, attempt, app_id)
        numbers += [(await relay.register(spark, 4)).shuffle_number for spark in (0, 1)]
    assert len(set(numbers)) == len(numbers)
    assert numbers == sorted(numbers)
    assert [number >> ATTEMPT_SHIFT for number in numbers] == [1, 1, 1, 1, 2, 2, 3, 3]


async def test_a_new_spark_context_ends_earlier_shuffles_and_a_repeated_one_does_not() -> None:
    link = Link()
    relay = relay_of(link)
    await begin(relay, 1, "a")
    first = await relay.register(0, 4)
    await begin(relay, 1, "a")
    assert await relay.register(0, 4) == first
    assert len(link.heard) == 1
    await begin(relay, 1, "b")
    assert link.heard[-1] == ("before", first.shuffle_number + 1)
    assert (await relay.register(0, 4)).shuffle_number == first.shuffle_number + 1


async def test_a_later_attempt_under_another_leader_ends_the_shuffles_of_all_earlier_attempts() -> None:
    link = Link()
    await begin(relay_of(link), 4, "a")
    assert link.heard == [("before", 4 << ATTEMPT_SHIFT)]


async def test_concurrent_registrations_of_a_shuffle_are_sent_as_one() -> None:
    link = Link()
    relay = relay_of(link)
    await begin(relay, 1, "a")
    answers = await asyncio.gather(*(relay.register(0, 4) for _ in range(3)))
    assert len(set(map(id, answers))) == 1
    assert len(link.heard) == 1


async def test_a_shuffle_that_found_no_service_can_be_registered_again() -> None:
    link = Link()
    relay = relay_of(link)
    await begin(relay, 1, "a")
    link.errors.append(NoShuffleService("nobody"))
    with pytest.raises(NoShuffleService):
        await relay.register(0, 4)
    await relay.workers_lost(0, ["w-1"])
    assert (await relay.register(0, 4)).workers
    assert len(link.heard) == 2


async def test_an_unregistered_shuffle_is_released_once_and_a_missing_service_is_tolerated() -> None:
    link = Link()
    relay = relay_of(link)
    await begin(relay, 1, "a")
    number = (await relay.register(0, 4)).shuffle_number
    await relay.unregister(0)
    await relay.unregister(0)
    await relay.unregister(9)
    assert link.heard[1:] == [("release", number)]
    await relay.register(1, 4)
    link.errors.append(NoShuffleService("nobody"))
    await relay.unregister(1)


async def test_only_workers_of_the_shuffle_are_reported_as_lost() -> None:
    link = Link()
    relay = relay_of(link)
    await begin(relay, 1, "a")
    await relay.register(0, 4)
    await relay.workers_lost(0, ["w-1", "w-of-somebody-else"])
    await relay.workers_lost(0, ["w-of-somebody-else"])
    await relay.workers_lost(5, ["w-1"])
    assert link.heard[1:] == [("lost", ["w-1"])]


async def test_a_released_relay_cancels_registrations_and_ends_all_shuffles_of_the_job() -> None:
    link = Link()
    relay = relay_of(link)
    await begin(relay, 1, "a")
    link.answering.clear()
    waiting = asyncio.ensure_future(relay.register(0, 4))
    await asyncio.sleep(0)
    await relay.release()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(NoShuffleService):
        await relay.register(1, 4)
    assert link.heard[-1] == ("job", JOB)


async def test_without_the_shuffle_service_a_relay_registers_nothing() -> None:
    relay = ShuffleRelay(None, JOB)
    assert relay.begin(1, "a") is None
    assert not relay.enabled
    with pytest.raises(NoShuffleService, match="does not use"):
        await relay.register(0, 4)
    await relay.unregister(0)
    await relay.workers_lost(0, ["w-1"])
    await relay.release()


async def test_the_workers_of_a_shuffle_are_located_by_its_number_on_the_data_plane() -> None:
    link = Link()
    relay = relay_of(link)
    await begin(relay, 2, "a")
    registered = await relay.register(0, 4)
    found = await relay.locate(0)
    assert link.heard[-1] == ("locate", registered.shuffle_number, ["w-1"])
    assert found == (OutputLocation(pushed_to="w-1", address=WorkerAddress("w-2", "h", 2)),)
    with pytest.raises(NoShuffleService, match="not registered"):
        await relay.locate(1)


def told(*shuffles: tuple[int, int], asked: int, app_id: str = "a") -> RunningDriver:
    known = tuple(KnownShuffle(shuffle_id=spark, number=number, partitions=4) for spark, number in shuffles)
    return RunningDriver(spark_auth_secret="0" * 64, app_id=app_id, shuffles=known, shuffles_asked=asked)


async def test_the_relay_of_a_new_leader_continues_the_shuffles_of_a_running_driver() -> None:
    link = Link()
    relay = relay_of(link)
    first = 2 << ATTEMPT_SHIFT
    relay.resume(2, told((7, first + 1), (8, first + 2), asked=5))
    assert link.heard == [("keep", JOB)]
    link.heard.clear()
    await begin(relay, 2, "a")
    assert link.heard == []  # the same SparkContext: nothing is over
    assert (await relay.register(7, 4)).shuffle_number == first + 1
    await relay.locate(8)
    await relay.workers_lost(8, ["w-1", "w-9"])
    assert link.heard == [
        ("allocate", first + 1, 4), ("allocate", first + 2, 4), ("locate", first + 2, ["w-1"]), ("lost", ["w-1"]),
    ]  # fmt: skip
    await relay.unregister(7)
    assert link.heard[-1] == ("release", first + 1)
    assert (await relay.register(9, 4)).shuffle_number == first + 5  # what was asked may have used all before it


async def test_reported_shuffle_numbers_of_another_attempt_are_ignored() -> None:
    link = Link()
    relay = relay_of(link)
    relay.resume(2, told((7, (1 << ATTEMPT_SHIFT) + 3), asked=0))
    await begin(relay, 2, "a")
    assert (await relay.register(7, 4)).shuffle_number == 2 << ATTEMPT_SHIFT


async def test_a_later_context_of_a_resumed_driver_ends_its_shuffles() -> None:
    link = Link()
    relay = relay_of(link)
    first = 1 << ATTEMPT_SHIFT
    relay.resume(1, told((0, first), asked=1))
    await begin(relay, 1, "b")
    assert link.heard[-1] == ("before", first + 1)
    with pytest.raises(NoShuffleService):
        await relay.locate(0)
