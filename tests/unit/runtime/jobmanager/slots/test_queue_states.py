"""What users see of queues: numbers, positions, what jobs wait for, and until when."""

from __future__ import annotations

import itertools

import pytest

from sluice.runtime.jobmanager.gateways import SlotRequirement
from sluice.runtime.jobmanager.slots.queue_states import queue_views
from sluice.runtime.jobmanager.slots.slot_manager import SlotManager
from sluice.runtime.jobmanager.views import QueueView
from sluice.runtime.messages import SlotCount, SlotProfile, SlotReport, SlotState, SlotStatus
from sluice.runtime.scheduling_config import QueueConfig, SchedulingConfig

SMALL = SlotProfile(cores=1, memory_mb=512)
QUEUES = SchedulingConfig(
    queues=(
        QueueConfig(name="sure", guaranteed=0.5, max_slots_per_user=3),
        QueueConfig(name="spare", weight=2, max_priority=5, max_slots=20),
    ),
    preemption_wait=10,
    preemption_grace=30,
)


@pytest.fixture
def slots() -> SlotManager:
    """Return a slot manager with four slots on one TaskManager."""
    numbers = itertools.count(1)
    manager = SlotManager(lambda: f"alloc-{next(numbers)}", scheduling=QUEUES)
    manager.register("tm-1", "h", 4, SMALL)
    return manager


def require(
    slots: SlotManager,
    job_id: str,
    queue: str,
    count: int,
    *,
    owner: str = "",
    priority: int = 0,
    ready: bool = True,
) -> None:
    """Require slots for a job; slots that are granted become active."""
    wanted = (SlotCount(SMALL, count),)
    slots.require(
        SlotRequirement(job_id, wanted, "jobmaster", b"", owner or job_id, queue=queue, priority=priority, ready=ready)
    )
    for each in slots.decide():
        slots.acknowledged(each.request.allocation_id)
    (taskmanager,) = slots.taskmanagers
    statuses = (
        SlotStatus(
            slot=each.index,
            state=SlotState.ACTIVE if each.allocation_id else SlotState.FREE,
            allocation_id=each.allocation_id,
            job_id=each.job_id,
        )
        for each in taskmanager.slots.values()
    )
    assert slots.report("tm-1", SlotReport(slots=tuple(statuses))) == []


def seen(slots: SlotManager) -> dict[str, QueueView]:
    """Return the views of the queues by name, with times in milliseconds."""
    return {each.name: each for each in queue_views(slots, {"spare": 7}, lambda at: int(at * 1000))}


def test_without_jobs_queues_are_empty(slots: SlotManager) -> None:
    views = queue_views(slots, {}, int)
    assert [(each.name, each.share, each.slots, each.jobs) for each in views] == [
        ("sure", 0, 0, ()),
        ("spare", 0, 0, ()),
    ]


def test_a_queue_view_has_its_numbers_and_the_positions_of_its_jobs(slots: SlotManager) -> None:
    require(slots, "early", "spare", 3)
    require(slots, "old", "gone", 2)
    require(slots, "late", "spare", 2)
    require(slots, "urgent", "spare", 1, priority=9)
    view = seen(slots)["spare"]
    assert (view.weight, view.max_slots, view.max_priority, view.share) == (2, 20, 5, 0.75)
    assert (view.slots, view.lacking, view.jobs_waiting, view.jobs_served, view.preempted) == (3, 3, 2, 1, 7)
    assert [(job.id, job.position, job.priority, job.slots, job.lacking) for job in view.jobs] == [
        ("urgent", 1, 5, 0, 1),
        ("late", 2, 0, 0, 2),
        ("early", 0, 0, 3, 0),
    ]
    assert view.jobs[-1].waits_for == ""
    assert view.jobs[0].waits_for == "all fitting slots are in use; queue spare has 75% of the cluster"
    assert view.jobs[0].expected_by is None
    others = seen(slots)["others"]
    assert (others.guaranteed, others.slots, others.lacking) == (0, 1, 1)


def test_a_job_that_a_limit_holds_has_no_position(slots: SlotManager) -> None:
    require(slots, "flood", "sure", 9)
    (job,) = seen(slots)["sure"].jobs
    assert (job.slots, job.lacking, job.position) == (3, 6, 0)
    assert "3 slots that one user may have" in job.waits_for


def test_the_next_slot_is_expected_when_executors_make_room_and_not_before(slots: SlotManager) -> None:
    require(slots, "early", "spare", 4)
    require(slots, "a", "sure", 3)
    assert seen(slots)["sure"].jobs[0].expected_by is None
    assert [each.below_guarantee for each in seen(slots).values()] == [True, False]
    assert slots.preempt(100.0) == ([], [])
    (job,) = seen(slots)["sure"].jobs
    assert job.expected_by == 140_000
    assert job.waits_for.endswith("; slots are taken from other jobs if it waits for 10 s")
    taken, _ = slots.preempt(110.0)
    assert len(taken) == 2
    (job,) = seen(slots)["sure"].jobs
    assert (job.slots, job.lacking, job.expected_by) == (0, 3, 140_000)
    assert job.waits_for == "executors of other jobs are making room for 2 of its slots"
    assert not seen(slots)["sure"].below_guarantee, "what is on its way counts"
    (loser,) = seen(slots)["spare"].jobs
    assert (loser.slots, loser.lacking, loser.expected_by) == (2, 2, None)


def test_no_slot_is_preempted_for_a_job_that_is_not_ready(slots: SlotManager) -> None:
    require(slots, "early", "spare", 4)
    require(slots, "a", "sure", 1, ready=False)
    for now in (100.0, 200.0):
        assert slots.preempt(now) == ([], [])
    assert seen(slots)["sure"].jobs[0].expected_by is None
    require(slots, "a", "sure", 1)
    assert slots.preempt(300.0) == ([], []), "it waits from now on"
    assert len(slots.preempt(310.0)[0]) == 1
