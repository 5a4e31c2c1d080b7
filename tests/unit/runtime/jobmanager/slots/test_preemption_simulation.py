"""Simulations of preemption in whole clusters.

The SlotManager is real; TaskManagers, jobs and time are simulated.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings, strategies as st

from sluice.runtime.jobmanager.gateways import SlotRequirement
from sluice.runtime.jobmanager.slots.preemption import Preemption
from sluice.runtime.jobmanager.slots.reservations import KILL_SECONDS
from sluice.runtime.jobmanager.slots.slot_ledger import Release
from sluice.runtime.jobmanager.slots.slot_manager import SlotManager
from sluice.runtime.messages import SlotCount, SlotProfile, SlotReport, SlotState, SlotStatus
from sluice.runtime.scheduling_config import QueueConfig, SchedulingConfig

SMALL = SlotProfile(cores=1, memory_mb=512)
WAIT, GRACE = 3.0, 5.0


@dataclass
class SimulatedJob:
    """A job whose executors each run for ``lasts`` ticks unless they are preempted."""

    queue: str
    owner: str
    wants: int
    work: int
    lasts: int
    priority: int = 0
    size: SlotProfile = SMALL
    held: dict[str, float] = field(default_factory=dict)
    """When each executor ends, by allocation."""


@dataclass
class Cluster:
    """TaskManagers ``tm-0``, … with ``slots`` slots each; a tick is one second.

    ``hanging``: executors ignore the request to stop and must be killed.
    """

    config: SchedulingConfig
    taskmanagers: int
    slots: int
    jobs: dict[str, SimulatedJob] = field(default_factory=dict)
    hanging: bool = False
    now: float = 0.0
    lost: Counter[str] = field(default_factory=Counter)
    history: list[tuple[float, Preemption]] = field(default_factory=list)

    def __post_init__(self) -> None:
        numbers = itertools.count(1)
        self.manager = SlotManager(lambda: f"alloc-{next(numbers)}", scheduling=self.config)
        self.where: dict[str, tuple[str, int, str, SlotProfile]] = {}
        for i in range(self.taskmanagers):
            self.manager.register(f"tm-{i}", "h", self.slots, SMALL)

    def tick(self) -> None:
        self.now += 1
        for name, job in self.jobs.items():
            for allocation_id in [each for each, until in job.held.items() if until <= self.now]:
                del job.held[allocation_id]
                self._free(self.manager.release(allocation_id))
            wanted = min(job.wants, len(job.held) + job.work)
            self.manager.require(
                SlotRequirement(
                    name,
                    (SlotCount(job.size, wanted),),
                    f"jobmaster/{name}",
                    b"",
                    job.owner,
                    queue=job.queue,
                    priority=job.priority,
                )
            )
        self._decide()
        preemptions, overdue = self.manager.preempt(self.now)
        for each in preemptions:
            self.history.append((self.now, each))
            for victim in each.victims:
                self.lost[victim.job_id] += 1
                job = self.jobs[victim.job_id]
                job.work += 1  # another executor has to do it
                ends = self.now + (1000 if self.hanging else 1 + len(self.history) % int(GRACE))
                job.held[victim.allocation_id] = min(ends, job.held[victim.allocation_id] if not self.hanging else ends)
        for release in overdue:
            for job in self.jobs.values():
                job.held.pop(release.allocation_id, None)
        self._free(overdue)
        self._decide()

    def _decide(self) -> None:
        for reserve in self.manager.decide():
            request = reserve.request
            assert request.profile is not None
            self.where[request.allocation_id] = (reserve.taskmanager, request.slot, request.job_id, request.profile)
            self.manager.acknowledged(request.allocation_id)
            job = self.jobs[request.job_id]
            job.work -= 1
            job.held[request.allocation_id] = self.now + job.lasts
        self._report()

    def _free(self, releases: list[Release]) -> None:
        for each in releases:
            del self.where[each.allocation_id]
            self.manager.freed(each.allocation_id)

    def _report(self) -> None:
        for i in range(self.taskmanagers):
            statuses = tuple(
                SlotStatus(slot=slot, state=SlotState.ACTIVE, allocation_id=key, job_id=job_id, profile=size)
                for key, (name, slot, job_id, size) in self.where.items()
                if name == f"tm-{i}"
            )
            taken = {each.slot for each in statuses}
            free = tuple(SlotStatus(slot=n, state=SlotState.FREE) for n in range(self.slots) if n not in taken)
            assert self.manager.report(f"tm-{i}", SlotReport(slots=statuses + free)) == []

    @property
    def total(self) -> int:
        return self.taskmanagers * self.slots

    @property
    def free(self) -> int:
        return self.total - len(self.where)

    def held(self, queue: str) -> int:
        return sum(len(job.held) for job in self.jobs.values() if job.queue == queue)


def queues(*each: QueueConfig) -> SchedulingConfig:
    return SchedulingConfig(queues=each, preemption_wait=WAIT, preemption_grace=GRACE)


FOR_EVER = 10**6
SETTLED = int(WAIT + GRACE) + 8
"""Ticks after which everybody has what is guaranteed: wait, grace, and rounds of 64 slots each."""


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 8), min_size=2, max_size=5), st.permutations(range(5)), st.integers(1, 3))
def test_shares_are_within_five_percent_of_the_weights_although_no_executor_ever_ends(
    weights: list[int], order: list[int], apart: int
) -> None:
    """Each queue is guaranteed its share, and the first queue to come takes the whole cluster."""
    total = sum(weights)
    config = queues(
        *(
            QueueConfig(name=f"q{i}", weight=w, guaranteed=math.floor(100 * w / total) / 100)
            for i, w in enumerate(weights)
        )
    )
    cluster = Cluster(config, 4, 25)
    for i in (each for each in order if each < len(weights)):
        cluster.jobs[f"job-{i}"] = SimulatedJob(f"q{i}", f"user-{i}", 200, FOR_EVER, FOR_EVER)
        for _ in range(apart):
            cluster.tick()
    for _ in range(3 * SETTLED):
        cluster.tick()
    for i, weight in enumerate(weights):
        assert abs(cluster.held(f"q{i}") / 100 - weight / total) < 0.05
    quiet = len(cluster.history)
    for _ in range(3 * SETTLED):
        cluster.tick()
    assert len(cluster.history) == quiet, "all have what is guaranteed, and nobody loses more"
    assert not cluster.free


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.data())
def test_a_guarantee_is_reached_in_time_with_the_fewest_losses(data: st.DataObject) -> None:
    guaranteed = data.draw(st.integers(1, 20), label="guaranteed slots of 20")
    wants = data.draw(st.integers(1, 25), label="wanted slots")
    taskmanagers = data.draw(st.sampled_from([1, 2, 5]), label="TaskManagers")
    cluster = Cluster(
        queues(QueueConfig(name="sure", guaranteed=guaranteed / 20), QueueConfig(name="spare", weight=5)),
        taskmanagers,
        20 // taskmanagers,
        hanging=data.draw(st.booleans(), label="executors hang"),
    )
    for i in range(data.draw(st.integers(1, 6), label="jobs that came first")):
        cluster.jobs[f"early-{i}"] = SimulatedJob("spare", f"user-{i % 2}", 20, FOR_EVER, FOR_EVER)
    cluster.tick()
    assert not cluster.free
    cluster.jobs["late"] = SimulatedJob("sure", "ann", wants, FOR_EVER, FOR_EVER)
    limit = SETTLED + (KILL_SECONDS if cluster.hanging else 0)
    for _ in range(int(limit)):
        cluster.tick()
    assert cluster.held("sure") == min(guaranteed, wants)
    assert cluster.lost.total() == min(guaranteed, wants)
    assert not cluster.free
    first = min(at for at, _ in cluster.history)
    assert first >= 1 + WAIT, "it had to wait first"


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_no_job_starves_no_slot_idles_and_no_slot_is_preempted_twice(data: st.DataObject) -> None:
    names = [f"q{i}" for i in range(data.draw(st.integers(1, 4), label="queues"))]
    guarantee = data.draw(st.sampled_from([0.0, 0.1, 0.25]))
    config = queues(
        *(
            QueueConfig(
                name=name,
                weight=data.draw(st.sampled_from([0.1, 1, 5])),
                guaranteed=guarantee,
                maximum=data.draw(st.sampled_from([0.5, 1.0])),
                max_slots_per_user=data.draw(st.sampled_from([0, 2])),
                max_priority=2,
            )
            for name in names
        )
    )
    config = msgspec.structs.replace(config, max_slots_per_group={"g": 4})
    cluster = Cluster(config, 2, 6)
    for i in range(data.draw(st.integers(1, 10), label="jobs")):
        cluster.jobs[f"job-{i}"] = SimulatedJob(
            data.draw(st.sampled_from([*names, "gone"])),
            data.draw(st.sampled_from(["ann", "bob", "eve"])),
            data.draw(st.integers(1, 12)),
            data.draw(st.integers(1, 30)),
            data.draw(st.integers(1, 20)),
            data.draw(st.integers(0, 2)),
        )
    work = sum(job.work * job.lasts for job in cluster.jobs.values())
    taken: set[str] = set()
    while any(job.work or job.held for job in cluster.jobs.values()):
        cluster.tick()
        # What is lost is done again: preemptions are bounded by work that was there for them, so everybody ends.
        assert cluster.now <= 20 * (work + 100), "somebody waits for ever"
        if cluster.free:
            assert cluster.manager.shares().next() is None, "a slot is free and somebody could have it"
        for queue in config.queues:
            assert cluster.held(queue.name) <= max(1, queue.maximum * cluster.total) + _leaving(cluster, queue.name)
    for _, each in cluster.history:
        for victim in each.victims:
            assert victim.allocation_id not in taken, "a slot is taken once"
            taken.add(victim.allocation_id)
            loser, winner = cluster.jobs[victim.job_id], cluster.jobs[each.beneficiary]
            if loser.queue == winner.queue:
                assert loser.priority < winner.priority
            else:
                assert guarantee
                assert winner.queue in names


def _leaving(cluster: Cluster, queue: str) -> int:
    """Count preempted slots that jobs of a queue still hold; those jobs already have replacements."""
    leaving = {
        victim.allocation_id
        for _, each in cluster.history
        for victim in each.victims
        if victim.allocation_id in cluster.where
    }
    return sum(
        cluster.jobs[job_id].queue == queue for key, (_, _, job_id, _) in cluster.where.items() if key in leaving
    )


def test_a_preempted_slot_goes_to_the_job_it_was_taken_for() -> None:
    """A queue with an equal guarantee that comes meanwhile does not get it; other free slots go by turns."""
    config = queues(
        QueueConfig(name="a", guaranteed=0.25), QueueConfig(name="b", guaranteed=0.25), QueueConfig(name="spare")
    )
    cluster = Cluster(config, 1, 4)
    cluster.jobs["early"] = SimulatedJob("spare", "eve", 4, FOR_EVER, FOR_EVER)
    cluster.tick()
    cluster.jobs["b"] = SimulatedJob("b", "bob", 1, FOR_EVER, FOR_EVER)
    while not cluster.history:
        cluster.tick()
    assert (
        cluster.manager.reasons().pending("b")
        == "0 of 1 slots: executors of other jobs are making room for 1 of its slots"
    )
    assert cluster.manager.reasons().expected_by("b") == cluster.now + GRACE
    cluster.jobs["a"] = SimulatedJob("a", "ann", 1, FOR_EVER, FOR_EVER)  # before b in every turn
    while not cluster.held("b"):
        cluster.tick()
        assert not cluster.held("a")
    for _ in range(SETTLED):
        cluster.tick()
    assert [cluster.held(each) for each in ("a", "b", "spare")] == [1, 1, 2]
    assert len(cluster.history) == 2


def test_a_large_slot_is_made_of_several_and_no_other_job_takes_the_pieces() -> None:
    large = SlotProfile(cores=3, memory_mb=1536)
    config = queues(QueueConfig(name="a", guaranteed=0.5), QueueConfig(name="spare"))
    cluster = Cluster(config, 1, 6)
    cluster.jobs["early"] = SimulatedJob("spare", "eve", 6, FOR_EVER, FOR_EVER)
    cluster.tick()
    cluster.jobs["a"] = SimulatedJob("a", "ann", 1, FOR_EVER, FOR_EVER, size=large)
    for _ in range(SETTLED):
        cluster.tick()
    assert cluster.held("a") == 1
    assert cluster.held("spare") == 3
    assert cluster.lost == {"early": 3}


def test_a_preempted_slot_that_is_no_longer_wanted_is_shared_by_turns_again() -> None:
    config = queues(QueueConfig(name="a", guaranteed=0.5), QueueConfig(name="spare"))
    cluster = Cluster(config, 1, 2)
    cluster.jobs["early"] = SimulatedJob("spare", "eve", 2, FOR_EVER, FOR_EVER)
    cluster.tick()
    cluster.jobs["a"] = SimulatedJob("a", "ann", 1, FOR_EVER, FOR_EVER)
    while not cluster.history:
        cluster.tick()
    cluster.jobs["a"].wants = 0
    for _ in range(SETTLED):
        cluster.tick()
    assert cluster.held("spare") == 2
    assert len(cluster.history) == 1


def test_an_executor_that_does_not_make_room_in_time_is_killed() -> None:
    config = queues(QueueConfig(name="a", guaranteed=0.5), QueueConfig(name="spare"))
    cluster = Cluster(config, 1, 2, hanging=True)
    cluster.jobs["early"] = SimulatedJob("spare", "eve", 2, FOR_EVER, FOR_EVER)
    cluster.tick()
    cluster.jobs["a"] = SimulatedJob("a", "ann", 1, FOR_EVER, FOR_EVER)
    while not cluster.history:
        cluster.tick()
    told = cluster.now
    while not cluster.held("a"):
        cluster.tick()
        assert cluster.now <= told + GRACE + KILL_SECONDS + 1
    assert cluster.now >= told + GRACE + KILL_SECONDS


def test_an_ended_job_also_releases_the_slots_being_preempted_from_it() -> None:
    config = queues(QueueConfig(name="a", guaranteed=0.5), QueueConfig(name="spare"))
    cluster = Cluster(config, 1, 2, hanging=True)
    cluster.jobs["early"] = SimulatedJob("spare", "eve", 2, FOR_EVER, FOR_EVER)
    cluster.tick()
    cluster.jobs["a"] = SimulatedJob("a", "ann", 1, FOR_EVER, FOR_EVER)
    while not cluster.history:
        cluster.tick()
    del cluster.jobs["early"]
    releases = cluster.manager.release_job("early")
    assert len(releases) == 2
    cluster._free(releases)
    cluster.tick()
    assert cluster.held("a") == 1


def test_a_lost_or_drained_taskmanager_reserves_no_preempted_slot() -> None:
    for end in ("lost", "drain"):
        config = queues(QueueConfig(name="a", guaranteed=0.5), QueueConfig(name="spare"))
        cluster = Cluster(config, 2, 2)
        cluster.jobs["early"] = SimulatedJob("spare", "eve", 4, FOR_EVER, FOR_EVER)
        cluster.tick()
        cluster.jobs["a"] = SimulatedJob("a", "ann", 1, FOR_EVER, FOR_EVER)
        while not cluster.history:
            cluster.tick()
        getattr(cluster.manager, end)(cluster.history[0][1].taskmanager)
        assert "making room" not in cluster.manager.reasons().pending("a")


def test_jobs_wait_if_preemption_is_disabled() -> None:
    config = msgspec.structs.replace(
        queues(QueueConfig(name="a", guaranteed=0.5), QueueConfig(name="spare")), preemption=False
    )
    cluster = Cluster(config, 1, 2)
    cluster.jobs["early"] = SimulatedJob("spare", "eve", 2, FOR_EVER, FOR_EVER)
    cluster.tick()
    cluster.jobs["a"] = SimulatedJob("a", "ann", 1, FOR_EVER, FOR_EVER)
    for _ in range(3 * SETTLED):
        cluster.tick()
    assert cluster.held("a") == 0
    assert cluster.manager.reasons().expected_by("a") is None
