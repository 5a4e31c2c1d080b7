"""Views of the queues: what their jobs hold and lack, and what each job waits for. Decisions only."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sluice.runtime.jobmanager.slots.fair_shares import FairShares, JobClaim
from sluice.runtime.jobmanager.slots.slot_manager import SlotManager
from sluice.runtime.jobmanager.views import QueueJobView, QueueView
from sluice.runtime.scheduling_config import QueueConfig


def queue_views(
    slots: SlotManager, preempted: Mapping[str, int], epoch_ms: Callable[[float], int]
) -> tuple[QueueView, ...]:
    """The views of all queues, in the order of the configuration; empty without queues.

    Args:
        slots: for executors.
        preempted: how many slots were taken from the jobs of each queue.
        epoch_ms: converts a time of :meth:`SlotManager.preempt` to epoch milliseconds.
    """
    shares = slots.shares()
    jobs: dict[str, list[QueueJobView]] = {each.name: [] for each in shares.queues}
    for claim in slots.claims():
        if slots.jobs.lacks(claim.job_id) or claim.held:
            jobs[shares.queue_of(claim.job_id).name].append(_job(slots, shares, claim, epoch_ms))
    return tuple(_queue(each, shares, jobs[each.name], preempted.get(each.name, 0)) for each in shares.queues)


def _job(slots: SlotManager, shares: FairShares, claim: JobClaim, epoch_ms: Callable[[float], int]) -> QueueJobView:
    reasons = slots.reasons(shares)
    expected = reasons.expected_by(claim.job_id)
    return QueueJobView(
        id=claim.job_id,
        owner=claim.owner,
        priority=shares.priority(claim.job_id),
        slots=slots.jobs.holds(claim.job_id),
        lacking=slots.jobs.lacks(claim.job_id),
        position=shares.position(claim.job_id),
        waits_for=reasons.why(claim.job_id),
        expected_by=None if expected is None else epoch_ms(expected),
    )


def _queue(config: QueueConfig, shares: FairShares, jobs: list[QueueJobView], preempted: int) -> QueueView:
    waiting = sorted((each for each in jobs if each.lacking), key=lambda each: (not each.position, each.position))
    served = [each for each in jobs if not each.lacking]
    return QueueView(
        name=config.name,
        weight=config.weight,
        guaranteed=config.guaranteed,
        maximum=config.maximum,
        max_slots=config.max_slots,
        max_slots_per_user=config.max_slots_per_user,
        max_priority=config.max_priority,
        share=shares.held(config.name)[1],
        below_guarantee=shares.below_guarantee(config.name),
        slots=sum(each.slots for each in jobs),
        lacking=sum(each.lacking for each in jobs),
        jobs_waiting=len(waiting),
        jobs_served=len(served),
        preempted=preempted,
        jobs=(*waiting, *served),
    )
