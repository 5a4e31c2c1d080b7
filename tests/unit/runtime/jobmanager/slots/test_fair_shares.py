"""Queues share the cluster: whose turn it is, limits, and simulations of whole clusters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from sluice.runtime.jobmanager.slots.fair_shares import OTHERS, FairShares, JobClaim
from sluice.runtime.messages import SlotProfile
from sluice.runtime.scheduling_config import QueueConfig, SchedulingConfig

SMALL = SlotProfile(cores=1, memory_mb=512)
LARGE = SlotProfile(cores=4, memory_mb=1024)


def config(*queues: QueueConfig, **others: object) -> SchedulingConfig:
    return msgspec.convert({"queues": queues, **others}, SchedulingConfig)


def claim(
    job_id: str,
    queue: str,
    lacking: int,
    held: int = 0,
    *,
    owner: str = "",
    groups: tuple[str, ...] = (),
    priority: int = 0,
) -> JobClaim:
    return JobClaim(job_id, owner or job_id, groups, queue, priority, ((SMALL, lacking),), {SMALL: held})


def granted(
    settings: SchedulingConfig, claims: list[JobClaim], free: int, *, cluster: int = 0, per_user: int = 0
) -> dict[str, int]:
    """Return how many of a cluster's free slots each job is granted."""
    capacity = SMALL.multiplied(cluster or free + sum(sum(each.held.values()) for each in claims))
    shares, given = FairShares(settings, capacity, claims, per_user), Counter[str]()
    while given.total() < free and (ask := shares.next()) is not None:
        given[ask.job_id] += 1
        shares.granted(ask)
    return dict(given)


THREE_TO_ONE = config(QueueConfig(name="a", weight=3), QueueConfig(name="b"))


def test_slots_are_shared_by_weights_whichever_queue_came_first() -> None:
    claims = [claim("b", "b", 100), claim("a", "a", 100)]
    assert granted(THREE_TO_ONE, claims, 40) == {"a": 30, "b": 10}


def test_a_queue_that_wants_less_leaves_the_rest_to_others() -> None:
    assert granted(THREE_TO_ONE, [claim("b", "b", 100), claim("a", "a", 2)], 40) == {"a": 2, "b": 38}


def test_slots_that_a_queue_already_holds_count_towards_its_share() -> None:
    assert granted(THREE_TO_ONE, [claim("b", "b", 100), claim("a", "a", 100, held=30)], 10) == {"b": 10}


def test_guaranteed_shares_come_before_weights() -> None:
    queues = config(QueueConfig(name="a", weight=9), QueueConfig(name="b", guaranteed=0.5))
    assert granted(queues, [claim("a", "a", 100), claim("b", "b", 100)], 10) == {"a": 5, "b": 5}


def test_a_maximum_holds_even_if_slots_stay_free_but_one_slot_is_always_possible() -> None:
    queues = config(QueueConfig(name="a", maximum=0.5), QueueConfig(name="b", maximum=0.01))
    assert granted(queues, [claim("a", "a", 100), claim("b", "b", 100)], 10) == {"a": 5, "b": 1}


def test_shares_are_computed_from_the_dominant_resource() -> None:
    """The example of the paper on dominant resource fairness (Ghodsi et al., NSDI 2011, section 4.1), ten times."""
    queues = config(QueueConfig(name="cores"), QueueConfig(name="memory"))
    cores, memory = SlotProfile(cores=3, memory_mb=1), SlotProfile(cores=1, memory_mb=4)
    claims = [
        JobClaim("one", "x", queue="cores", lacking=((cores, 99),)),
        JobClaim("two", "y", queue="memory", lacking=((memory, 99),)),
    ]
    capacity = SlotProfile(cores=90, memory_mb=180)
    shares, given, left = FairShares(queues, capacity, claims), Counter[str](), capacity
    while (ask := shares.next()) is not None:
        if left.fits(ask.profile):
            left = left.less(ask.profile)
            given[ask.job_id] += 1
            shares.granted(ask)
        else:
            shares.passed_over(ask)
    assert given == {"one": 20, "two": 30}


def test_within_a_queue_priority_decides_then_users_take_turns_then_earlier_jobs_come_first() -> None:
    queues = config(QueueConfig(name="a", max_priority=5))
    jobs = [
        claim("flood-1", "a", 9, owner="eve"),
        claim("flood-2", "a", 9, owner="eve"),
        claim("modest", "a", 3, owner="bob"),
        claim("urgent", "a", 2, owner="ann", priority=5),
    ]
    assert granted(queues, jobs, 8) == {"urgent": 2, "flood-1": 3, "modest": 3}


def test_a_priority_above_the_maximum_of_the_queue_is_capped() -> None:
    queues = config(QueueConfig(name="a"))
    jobs = [claim("first", "a", 3, owner="ann"), claim("second", "a", 3, owner="ann", priority=100)]
    assert granted(queues, jobs, 3) == {"first": 3}


def test_jobs_of_removed_queues_share_one_queue() -> None:
    jobs = [claim("one", "gone", 100), claim("two", "", 100), claim("three", "b", 100)]
    assert granted(config(QueueConfig(name="b")), jobs, 8) == {"one": 2, "two": 2, "three": 4}
    assert OTHERS.max_priority == 0


@pytest.mark.parametrize(
    ("queue", "limits", "per_user", "expected"),
    [
        (QueueConfig(name="a", max_slots=3), {}, 0, {"one": 2, "two": 1}),
        (QueueConfig(name="a", max_slots_per_user=1), {}, 0, {"one": 1, "two": 1}),
        (QueueConfig(name="a"), {"interns": 2}, 0, {"one": 1, "two": 1}),
        (QueueConfig(name="a"), {"others": 2}, 0, {"one": 5, "two": 5}),
        (QueueConfig(name="a"), {}, 2, {"one": 2, "two": 2}),
    ],
)
def test_limits_of_queues_users_and_groups_bound_grants_and_demand(
    queue: QueueConfig, limits: dict[str, int], per_user: int, expected: dict[str, int]
) -> None:
    claims = [claim(each, "a", 9, groups=("interns",)) for each in ("one", "two")]
    both = config(queue, max_slots_per_group=limits)
    assert granted(both, claims, 10, per_user=per_user) == expected
    if expected != {"one": 5, "two": 5}:
        demand = FairShares(both, SMALL, claims, per_user).demand()
        assert sum(count for _, _, count in demand) == sum(expected.values())


def test_demand_is_not_bounded_by_the_size_that_the_cluster_has_now() -> None:
    queues = config(QueueConfig(name="a", maximum=0.5))
    assert FairShares(queues, SMALL, [claim("one", "a", 7, held=1)]).demand() == [("one", SMALL, 7)]


def test_an_obstacle_names_the_limit() -> None:
    queues = config(QueueConfig(name="a", maximum=0.5))
    one = claim("one", "a", 5, held=5)
    why = FairShares(queues, SMALL.multiplied(10), [one]).obstacle(one, SMALL)
    assert why == "its jobs hold 50% of the cluster, and may have 50%"


def test_a_slot_that_fits_nowhere_does_not_block_smaller_slots_of_the_same_job() -> None:
    job = JobClaim("one", "x", queue="a", lacking=((LARGE, 1), (SMALL, 1)))
    shares = FairShares(config(QueueConfig(name="a")), LARGE, [job])
    ask = shares.next()
    assert ask is not None
    assert ask.profile == LARGE
    shares.passed_over(ask)
    ask = shares.next()
    assert ask is not None
    assert ask.profile == SMALL
    shares.granted(ask)
    assert shares.next() is None


# --- a simulation ----------------------------------------------------------------------------------------------


@dataclass
class SimulatedJob:
    queue: str
    owner: str
    groups: tuple[str, ...]
    tasks: int
    lasts: int
    """Ticks for which it needs each slot."""
    running: list[int] = field(default_factory=list)
    """When each slot that it holds becomes free."""


@dataclass
class Cluster:
    """A simulated cluster that grants and frees slots. A job holds a slot until its task ends."""

    config: SchedulingConfig
    slots: int
    jobs: dict[str, SimulatedJob]
    now: int = 0

    def shares(self) -> FairShares:
        claims = [
            JobClaim(name, job.owner, job.groups, job.queue, 0, ((SMALL, job.tasks),), {SMALL: len(job.running)})
            for name, job in self.jobs.items()
        ]
        return FairShares(self.config, SMALL.multiplied(self.slots), claims)

    @property
    def free(self) -> int:
        return self.slots - sum(len(job.running) for job in self.jobs.values())

    def tick(self) -> None:
        self.now += 1
        for job in self.jobs.values():
            job.running = [until for until in job.running if until > self.now]
        shares = self.shares()
        while self.free and (ask := shares.next()) is not None:
            job = self.jobs[ask.job_id]
            job.tasks -= 1
            job.running.append(self.now + job.lasts)
            shares.granted(ask)

    def held(self, queue: str) -> int:
        return sum(len(job.running) for job in self.jobs.values() if job.queue == queue)


WEIGHTS = st.lists(st.integers(1, 8), min_size=2, max_size=5)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(WEIGHTS, st.integers(1, 9), st.data())
def test_saturated_queues_have_shares_within_five_percent_of_their_weights(
    weights: list[int], lasts: int, data: st.DataObject
) -> None:
    """Shares depend only on the weights, not on the task lengths or on the numbers of users and jobs."""
    queues = config(*(QueueConfig(name=f"q{i}", weight=weight) for i, weight in enumerate(weights)))
    jobs = {}
    for i in range(len(weights)):
        for number in range(data.draw(st.integers(1, 4), label=f"jobs of q{i}")):
            length = lasts if number % 2 else data.draw(st.integers(1, 9), label="task")
            jobs[f"{i}-{number}"] = SimulatedJob(f"q{i}", f"user-{number % 2}", (), 10**6, length)
    cluster, held, ticks = Cluster(queues, 100, jobs), Counter[str](), 60
    for _ in range(ticks):
        cluster.tick()
        assert not cluster.free
        if cluster.now > ticks // 3:  # the first tasks have ended by then
            held.update({each.name: cluster.held(each.name) for each in queues.queues})
    for each in queues.queues:
        assert abs(held[each.name] / held.total() - each.weight / sum(weights)) < 0.05


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_no_job_starves_and_no_slot_is_idle_while_an_eligible_job_waits(data: st.DataObject) -> None:
    names = [f"q{i}" for i in range(data.draw(st.integers(1, 4), label="queues"))]
    guarantees = data.draw(st.sampled_from([0.0, 0.1, 0.25]))
    queues = config(
        *(
            QueueConfig(
                name=name,
                weight=data.draw(st.sampled_from([0.1, 1, 5])),
                guaranteed=guarantees,
                maximum=data.draw(st.sampled_from([0.25, 0.5, 1.0])),
                max_slots=data.draw(st.sampled_from([0, 3])),
                max_slots_per_user=data.draw(st.sampled_from([0, 2])),
            )
            for name in names
        ),
        max_slots_per_group=data.draw(st.sampled_from([{}, {"g": 4}])),
    )
    jobs = {
        f"job-{i}": SimulatedJob(
            data.draw(st.sampled_from([*names, "gone"])),
            data.draw(st.sampled_from(["ann", "bob", "eve"])),
            data.draw(st.sampled_from([(), ("g",)])),
            data.draw(st.integers(1, 30)),
            data.draw(st.integers(1, 5)),
        )
        for i in range(data.draw(st.integers(1, 12), label="jobs"))
    }
    cluster = Cluster(queues, 12, jobs)
    work = sum(job.tasks * job.lasts for job in jobs.values())
    while any(job.tasks or job.running for job in jobs.values()):
        cluster.tick()
        assert cluster.now <= work + 5, "somebody waits for ever"
        if cluster.free:
            assert cluster.shares().next() is None
        for each in queues.queues:
            assert cluster.held(each.name) <= max(1, each.maximum * cluster.slots)
            assert not each.max_slots or cluster.held(each.name) <= each.max_slots
