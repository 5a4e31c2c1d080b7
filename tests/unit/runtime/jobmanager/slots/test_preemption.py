"""Preemption: from which jobs slots are taken, for which jobs, how many, and what never happens."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sluice.runtime.jobmanager.slots.fair_shares import FairShares, JobClaim
from sluice.runtime.jobmanager.slots.preemption import (
    BELOW_GUARANTEE,
    HIGHER_PRIORITY,
    MAX_SLOTS_PER_ROUND,
    HeldSlot,
    Preemption,
    choose_victims,
)
from sluice.runtime.messages import NO_RESOURCES, SlotProfile
from sluice.runtime.scheduling_config import QueueConfig, SchedulingConfig

SMALL = SlotProfile(cores=1, memory_mb=512)
LARGE = SlotProfile(cores=3, memory_mb=1536)
QUEUES = SchedulingConfig(
    queues=(
        QueueConfig(name="sure", guaranteed=0.5, max_priority=9),
        QueueConfig(name="spare", max_priority=9),
        QueueConfig(name="also-sure", guaranteed=0.25),
    )
)


def job(
    job_id: str,
    queue: str,
    *,
    lacks: int = 0,
    holds: int = 0,
    priority: int = 0,
    owner: str = "",
    size: SlotProfile = SMALL,
) -> JobClaim:
    return JobClaim(job_id, owner or job_id, (), queue, priority, ((size, lacks),), {SMALL: holds})


def choose(
    claims: Iterable[JobClaim],
    *,
    taskmanagers: int = 1,
    free: SlotProfile = NO_RESOURCES,
    avoids: Iterable[tuple[str, str]] = (),
    config: SchedulingConfig = QUEUES,
    size: int = 0,
) -> list[Preemption]:
    """Return the preemptions in a cluster whose slots are dealt to the TaskManagers in turn."""
    claims = list(claims)
    held = [each.job_id for each in claims for _ in range(each.held.get(SMALL, 0))]
    slots = [HeldSlot(f"{job_id}-{i}", job_id, f"tm-{i % taskmanagers}", SMALL) for i, job_id in enumerate(held)]
    shares = FairShares(config, SMALL.multiplied(size or len(held)), claims)
    rooms = {f"tm-{i}": free for i in range(taskmanagers)}
    return choose_victims(shares, rooms, slots, lambda job_id, name: (job_id, name) in set(avoids))


def losses(found: Iterable[Preemption]) -> dict[str, int]:
    lost: dict[str, int] = {}
    for victim in (victim for each in found for victim in each.victims):
        lost[victim.job_id] = lost.get(victim.job_id, 0) + 1
    return lost


def test_preemption_gives_a_queue_its_guarantee_and_no_more() -> None:
    found = choose([job("b", "spare", holds=10), job("a", "sure", lacks=10)])
    assert losses(found) == {"b": 5}
    assert {(each.beneficiary, each.reason) for each in found} == {("a", BELOW_GUARANTEE)}


def test_no_more_slots_are_taken_than_are_lacking() -> None:
    assert losses(choose([job("b", "spare", holds=10), job("a", "sure", lacks=2)])) == {"b": 2}


def test_the_latest_slots_are_taken_first() -> None:
    (only,) = choose([job("b", "spare", holds=4), job("a", "sure", lacks=1)])
    assert [each.allocation_id for each in only.victims] == ["b-3"]


def test_weights_alone_preempt_no_slots() -> None:
    queues = SchedulingConfig(queues=(QueueConfig(name="a", weight=100), QueueConfig(name="b")))
    assert choose([job("b", "b", holds=10), job("a", "a", lacks=10)], config=queues) == []


def test_a_queue_keeps_its_own_guaranteed_slots() -> None:
    claims = [job("b", "also-sure", holds=6), job("c", "spare", holds=2), job("a", "sure", lacks=8)]
    assert losses(choose(claims)) == {"b": 4}  # its share is the largest
    claims = [job("b", "also-sure", holds=2), job("c", "spare", holds=6), job("a", "sure", lacks=8)]
    assert losses(choose(claims)) == {"c": 4}
    claims = [job("b", "also-sure", holds=2), job("a", "sure", holds=6), job("c", "spare", lacks=8)]
    assert choose(claims) == []


def test_a_guarantee_of_less_than_a_slot_counts_as_one_slot() -> None:
    queues = SchedulingConfig(queues=(QueueConfig(name="a", guaranteed=0.1), QueueConfig(name="b")))
    claims = [job("b", "b", holds=4), job("a", "a", lacks=4)]
    assert losses(choose(claims, config=queues)) == {"b": 1}


def test_higher_priority_preempts_lower_priority_in_the_same_queue_only() -> None:
    claims = [
        job("other", "sure", holds=5),
        job("low", "spare", holds=2),
        job("middle", "spare", holds=2, priority=2),
        job("same", "spare", holds=1, priority=5),
        job("high", "spare", lacks=9, priority=5),
    ]
    found = choose(claims)
    assert losses(found) == {"low": 2, "middle": 2}
    assert {each.reason for each in found} == {HIGHER_PRIORITY}


def test_a_priority_above_the_maximum_of_the_queue_preempts_nothing() -> None:
    queues = SchedulingConfig(queues=(QueueConfig(name="a"), QueueConfig(name="b", max_priority=1)))
    claims = [job("low", "a", holds=4), job("high", "a", lacks=4, priority=9)]
    assert choose(claims, config=queues) == []


def test_a_job_loses_its_last_slot_only_when_all_others_have_one() -> None:
    claims = [job("one", "spare", holds=1), job("many", "spare", holds=3), job("a", "sure", lacks=2)]
    assert losses(choose(claims)) == {"many": 2}
    claims = [job(f"b{i}", "spare", holds=1) for i in range(4)]
    assert losses(choose([*claims, job("a", "sure", lacks=9)])) == {"b3": 1, "b2": 1}  # the latest ones


def test_within_a_queue_jobs_of_low_priority_and_users_with_most_slots_lose_first() -> None:
    claims = [
        job("modest", "spare", holds=2, owner="ann"),
        job("flood-1", "spare", holds=3, owner="eve"),
        job("flood-2", "spare", holds=3, owner="eve"),
        job("urgent", "spare", holds=8, owner="bob", priority=3),
        job("a", "sure", lacks=4),
    ]
    assert losses(choose(claims)) == {"flood-2": 2, "flood-1": 2}


def test_a_large_slot_preempts_the_fewest_small_slots_on_one_taskmanager() -> None:
    claims = [job("b", "spare", holds=8), job("a", "sure", lacks=1, size=LARGE)]
    (found,) = choose(claims, taskmanagers=2, size=8)
    assert len(found.victims) == 3
    assert {each.taskmanager for each in found.victims} == {found.taskmanager}
    (found,) = choose(claims, taskmanagers=2, free=SMALL, size=8)
    assert len(found.victims) == 2


def test_a_slot_that_fits_nowhere_preempts_nothing() -> None:
    huge = SlotProfile(cores=99, memory_mb=1)
    assert choose([job("b", "spare", holds=8), job("a", "sure", lacks=1, size=huge)]) == []


def test_a_taskmanager_that_refused_the_job_is_left_alone() -> None:
    claims = [job("b", "spare", holds=4), job("a", "sure", lacks=4)]
    found = choose(claims, taskmanagers=2, avoids=[("a", "tm-0")])
    assert {each.taskmanager for each in found} == {"tm-1"}
    assert choose(claims, avoids=[("a", "tm-0")]) == []


def test_free_slots_are_used_before_any_slot_is_preempted() -> None:
    assert choose([job("b", "spare", holds=4), job("a", "sure", lacks=4)], free=SMALL, size=5) == []


def test_preemption_respects_the_limits_of_the_benefiting_queue() -> None:
    queues = SchedulingConfig(queues=(QueueConfig(name="a", guaranteed=1, max_slots=1), QueueConfig(name="b")))
    assert losses(choose([job("b", "b", holds=4), job("a", "a", lacks=4)], config=queues)) == {"b": 1}


def test_the_number_of_slots_preempted_per_round_is_bounded() -> None:
    queues = SchedulingConfig(queues=(QueueConfig(name="a", guaranteed=1), QueueConfig(name="b")))
    assert losses(choose([job("b", "b", holds=500), job("a", "a", lacks=500)], config=queues)) == {
        "b": MAX_SLOTS_PER_ROUND
    }


def test_requests_that_cannot_be_met_do_not_keep_other_jobs_from_their_turn() -> None:
    odd = tuple((SlotProfile(cores=1, memory_mb=100_000 + i), 1) for i in range(100))
    many = [JobClaim(f"odd-{i}", f"eve-{i % 3}", (), "sure", 9, odd) for i in range(30)]
    found = choose([job("b", "spare", holds=8), *many, job("a", "sure", lacks=2)])
    assert losses(found) == {"b": 2}
    assert {each.beneficiary for each in found} == {"a"}


def test_a_taskmanager_that_refuses_one_job_is_still_used_for_others() -> None:
    claims = [job("b", "spare", holds=4), job("a", "sure", lacks=1), job("a2", "sure", lacks=1)]
    found = choose(claims, avoids=[("a", "tm-0")])
    assert [each.beneficiary for each in found] == ["a2"]


def test_only_jobs_below_their_guarantee_or_of_higher_priority_are_claimants() -> None:
    claims = [
        job("low", "spare", holds=4),
        job("idle", "spare", lacks=4),
        job("high", "spare", lacks=4, priority=1),
        job("a", "sure", lacks=1),
        job("c", "also-sure", holds=2, lacks=1),
        job("old", "gone", lacks=1, priority=9),
    ]
    shares = FairShares(QUEUES, SMALL.multiplied(6), claims)
    assert shares.claimants() == {"high", "a"}


@pytest.mark.parametrize("priority", [0, 9])
def test_jobs_of_removed_queues_have_neither_guarantee_nor_priority(priority: int) -> None:
    claims = [job("old", "gone", holds=4), job("new", "gone", lacks=4, priority=priority)]
    assert choose(claims) == []
    assert losses(choose([*claims, job("a", "sure", lacks=4)])) == {"old": 2}
