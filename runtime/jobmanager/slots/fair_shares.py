"""Whose turn it is to get the next slot, when queues share the cluster (ADR 131). Decisions only; no I/O, no clock.

A queue's *share* is the larger of the parts of all cores and all memory that its jobs hold (dominant resource
fairness). Queues below what they are guaranteed come first, then the one with the least share for its weight. In a
queue, jobs of higher priority come first, then those of the user who holds least in it, then earlier ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sluice.runtime.messages import NO_RESOURCES, SlotProfile
from sluice.runtime.scheduling_config import MAX_PRIORITY, OTHERS_NAME, QueueConfig, SchedulingConfig

OTHERS = QueueConfig(name=OTHERS_NAME)
"""The queue of jobs whose own queue is not, or no longer, configured."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class JobClaim:
    """What one job holds and lacks, in the order of arrival.

    Attributes:
        lacking: slots by size, in the order in which it gets them.
        held: slots by size.
    """

    job_id: str
    owner: str = ""
    groups: tuple[str, ...] = ()
    queue: str = ""
    priority: int = 0
    lacking: Sequence[tuple[SlotProfile, int]] = ()
    held: Mapping[SlotProfile, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ask:
    """One slot that a job is to get next."""

    job_id: str
    profile: SlotProfile


@dataclass(slots=True)
class _Job:
    claim: JobClaim
    priority: int
    arrival: int
    lacking: list[tuple[SlotProfile, int]]
    slots: int

    @property
    def order(self) -> tuple[int, int]:
        return (-self.priority, self.arrival)


@dataclass(slots=True)
class _Queue:
    config: QueueConfig
    position: int
    used: SlotProfile = NO_RESOURCES
    slots: int = 0
    by_user: Counter[str] = field(default_factory=Counter)
    waiting: dict[str, list[_Job]] = field(default_factory=dict)
    """By user; the job whose turn it is stands last."""
    positions: dict[str, int] | None = None
    """Positions of waiting jobs, computed on the first request."""


class FairShares:
    """One round of decisions: :meth:`next` says whose turn it is, and the caller reports whether that job got its slot.

    Args:
        config: the queues.
        capacity: what all TaskManagers have.
        claims: all jobs that hold or lack slots, in the order of arrival.
        max_slots_per_user: in all queues together; 0: any number.
    """

    def __init__(
        self, config: SchedulingConfig, capacity: SlotProfile, claims: Iterable[JobClaim], max_slots_per_user: int = 0
    ) -> None:
        self._capacity = capacity
        self._max_per_user = max_slots_per_user
        self._max_per_group = config.max_slots_per_group
        self._queues = {each.name: _Queue(each, position) for position, each in enumerate(config.queues)}
        self._queue_of: dict[str, _Queue] = {}
        self._jobs: dict[str, _Job] = {}
        self._by_user: Counter[str] = Counter()
        self._by_group: Counter[str] = Counter()
        for arrival, claim in enumerate(claims):
            self._enter(claim, arrival)
        for queue in self._queues.values():
            for jobs in queue.waiting.values():
                jobs.sort(key=lambda each: each.order, reverse=True)

    def _enter(self, claim: JobClaim, arrival: int) -> None:
        queue = self._queues.get(claim.queue)
        if queue is None:
            queue = self._queues.setdefault(OTHERS.name, _Queue(OTHERS, len(self._queues)))
        self._queue_of[claim.job_id] = queue
        for profile, count in claim.held.items():
            self._count(queue, claim, profile, count)
        lacking = [each for each in claim.lacking if each[1] > 0]
        job = _Job(claim, min(claim.priority, queue.config.max_priority), arrival, lacking, sum(claim.held.values()))
        self._jobs[claim.job_id] = job
        if lacking:
            queue.waiting.setdefault(claim.owner, []).append(job)

    def _count(self, queue: _Queue, claim: JobClaim, profile: SlotProfile, count: int) -> None:
        change = profile.multiplied(abs(count))
        queue.used = queue.used.plus(change) if count > 0 else queue.used.less(change)
        queue.slots += count
        queue.by_user[claim.owner] += count
        self._by_user[claim.owner] += count
        for group in set(claim.groups):
            if group in self._max_per_group:
                self._by_group[group] += count

    # --- turns ----------------------------------------------------------------------------------------------

    def next(self) -> Ask | None:
        """The slot to look for next; None when no job lacks a slot that the limits allow."""
        while True:
            job = min(
                (job for queue in self._queues.values() for job in self._heads(queue)), key=self._turn, default=None
            )
            if job is None:
                return None
            profile = job.lacking[0][0]
            if not self.obstacle(job.claim, profile):
                return Ask(job.claim.job_id, profile)
            self._skip(job)

    def granted(self, ask: Ask) -> None:
        """The job got that slot."""
        job = self._waiting(ask)
        profile, count = job.lacking[0]
        self._count(self._queue_of[ask.job_id], job.claim, profile, 1)
        job.slots += 1
        job.lacking[0] = (profile, count - 1)
        if count == 1:
            self._skip(job)

    def passed_over(self, ask: Ask) -> None:
        """There is no slot of that size for the job now."""
        self._skip(self._waiting(ask))

    def _heads(self, queue: _Queue) -> Iterable[_Job]:
        """The next job of each user."""
        return (jobs[-1] for jobs in queue.waiting.values())

    def _turn(self, job: _Job) -> tuple[bool, float, int, int, int, int]:
        queue = self._queue_of[job.claim.job_id]
        share, config = self.share_of(queue.used), queue.config
        guaranteed = share < config.guaranteed - _ROUNDING
        relative = share / config.guaranteed if guaranteed else share / config.weight
        return (not guaranteed, relative, queue.position, -job.priority, queue.by_user[job.claim.owner], job.arrival)

    def _waiting(self, ask: Ask) -> _Job:
        heads = self._heads(self._queue_of[ask.job_id])
        return next(job for job in heads if job.claim.job_id == ask.job_id)

    def _skip(self, job: _Job) -> None:
        """Give the job no more slots of the size that it asks for: it asks for the next size."""
        queue = self._queue_of[job.claim.job_id]
        del job.lacking[0]
        if not job.lacking:
            jobs = queue.waiting[job.claim.owner]
            jobs.pop()
            if not jobs:
                del queue.waiting[job.claim.owner]

    # --- taking slots away ------------------------------------------------------------------------------------

    def claimants(self) -> set[str]:
        """The waiting jobs for which slots could be taken from others."""
        lowest: dict[int, int] = {}
        for job_id, job in self._jobs.items():
            if job.slots > 0:
                position = self._queue_of[job_id].position
                lowest[position] = min(lowest.get(position, job.priority), job.priority)
        found: set[str] = set()
        for queue in self._queues.values():
            guaranteed = self.share_of(queue.used) < queue.config.guaranteed - _ROUNDING
            above = lowest.get(queue.position, MAX_PRIORITY)
            for job in (job for jobs in queue.waiting.values() for job in jobs):
                if guaranteed or job.priority > above:
                    found.add(job.claim.job_id)
        return found

    def user(self, job_id: str) -> tuple[str, str]:
        """The queue and the owner of a job."""
        return self._queue_of[job_id].config.name, self._jobs[job_id].claim.owner

    def entitled(self, ask: Ask) -> bool:
        """Whether this slot is within the guarantee of the job's queue; the first one is if there is a guarantee."""
        queue = self._queue_of[ask.job_id]
        if self.share_of(queue.used) >= queue.config.guaranteed - _ROUNDING:
            return False
        return not queue.slots or self.share_of(queue.used.plus(ask.profile)) <= queue.config.guaranteed + _ROUNDING

    def below_guarantee(self, queue: str) -> bool:
        """Whether a job waits for a slot that its queue is guaranteed, and that limits allow."""
        return any(
            self.entitled(Ask(job.claim.job_id, profile)) and not self.obstacle(job.claim, profile)
            for jobs in self._queues[queue].waiting.values()
            for job in jobs
            for profile, _ in job.lacking
        )

    def same_queue(self, job_id: str, other: str) -> bool:
        """Whether both jobs are in one queue."""
        return self._queue_of[job_id] is self._queue_of[other]

    def priority(self, job_id: str) -> int:
        """The priority of a job, at most the highest that its queue allows."""
        return self._jobs[job_id].priority

    def spare(self, job_id: str, profile: SlotProfile) -> bool:
        """Whether the job's queue still has its guarantee after losing such a slot."""
        queue = self._queue_of[job_id]
        return self.share_of(queue.used.less(profile)) >= queue.config.guaranteed - _ROUNDING

    def cost(self, job_id: str) -> tuple[bool, float, int, int, int]:
        """The sort key for jobs that lose slots: the least first.

        Jobs that would be left without a slot come last. Else the queue with the largest share for its weight comes
        first; in it the lowest priority, then the user who holds most, then the latest job.
        """
        job, queue = self._jobs[job_id], self._queue_of[job_id]
        relative = self.share_of(queue.used) / queue.config.weight
        return (job.slots <= 1, -relative, job.priority, -queue.by_user[job.claim.owner], -job.arrival)

    def taken(self, job_id: str, profile: SlotProfile) -> None:
        """Note that the job loses a slot."""
        job = self._jobs[job_id]
        self._count(self._queue_of[job_id], job.claim, profile, -1)
        job.slots -= 1

    # --- state of queues -------------------------------------------------------------------------------------

    def share_of(self, used: SlotProfile) -> float:
        """These slots' part of all cores or of all memory, whichever is larger."""
        return max(used.cores / max(1, self._capacity.cores), used.memory_mb / max(1, self._capacity.memory_mb))

    def queue_of(self, job_id: str) -> QueueConfig:
        """The queue of a job that has a claim."""
        return self._queue_of[job_id].config

    def held(self, queue: str) -> tuple[int, float]:
        """The slots of all jobs of a queue, and their share."""
        found = self._queues.get(queue)
        return (0, 0.0) if found is None else (found.slots, self.share_of(found.used))

    @property
    def queues(self) -> tuple[QueueConfig, ...]:
        """All queues, and one more if there are jobs whose queue is not configured."""
        return tuple(each.config for each in self._queues.values())

    def position(self, job_id: str) -> int:
        """The position, from 1, of a job among those of its queue that wait and may have a slot; 0: none."""
        queue = self._queue_of[job_id]
        if queue.positions is None:
            waiting = [
                job
                for jobs in queue.waiting.values()
                for job in jobs
                if not all(self.obstacle(job.claim, profile) for profile, _ in job.lacking)
            ]
            waiting.sort(key=lambda job: (-job.priority, queue.by_user[job.claim.owner], job.arrival))
            queue.positions = {job.claim.job_id: number for number, job in enumerate(waiting, start=1)}
        return queue.positions.get(job_id, 0)

    def obstacle(self, claim: JobClaim, profile: SlotProfile) -> str:
        """The limit that keeps the job from another slot of that size; empty when there is none."""
        queue = self._queue_of[claim.job_id]
        config, owner = queue.config, claim.owner
        if 0 < self._max_per_user <= self._by_user[owner]:
            return f"the jobs of {owner} hold the {self._max_per_user} slots that one user may have"
        if 0 < config.max_slots_per_user <= queue.by_user[owner]:
            return f"the jobs of {owner} hold the {config.max_slots_per_user} slots that one user may have in it"
        for group in claim.groups:
            most = self._max_per_group.get(group, 0)
            if 0 < most <= self._by_group[group]:
                return f"the jobs of group {group} hold the {most} slots that it may have"
        if 0 < config.max_slots <= queue.slots:
            return f"its jobs hold the {config.max_slots} slots that it may have"
        if queue.slots and config.maximum < 1 and self.share_of(queue.used.plus(profile)) > config.maximum + _ROUNDING:
            return f"its jobs hold {self.share_of(queue.used):.0%} of the cluster, and may have {config.maximum:.0%}"
        return ""

    def demand(self) -> list[tuple[str, SlotProfile, int]]:
        """The slots by size that each job lacks and may have if the cluster is large enough.

        Afterwards they count as granted.
        """
        demand = []
        for queue in self._queues.values():
            for job in sorted((job for jobs in queue.waiting.values() for job in jobs), key=lambda each: each.order):
                for profile, lacking in job.lacking:
                    count = max(0, int(min(lacking, *self._room(queue, job.claim))))
                    self._count(queue, job.claim, profile, count)
                    demand.append((job.claim.job_id, profile, count))
        return demand

    def _room(self, queue: _Queue, claim: JobClaim) -> Iterable[float]:
        """How many more slots each limit leaves a job."""
        config = queue.config
        limits = [
            (self._max_per_user, self._by_user[claim.owner]),
            (config.max_slots_per_user, queue.by_user[claim.owner]),
            (config.max_slots, queue.slots),
            *((self._max_per_group.get(each, 0), self._by_group[each]) for each in set(claim.groups)),
        ]
        return [most - held if most else float("inf") for most, held in limits]
