"""What each job requires of slots, holds, and lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import TypeAlias

from sluice.runtime.jobmanager.gateways import SlotRequirement
from sluice.runtime.jobmanager.slots.fair_shares import JobClaim
from sluice.runtime.jobmanager.slots.slot_ledger import Holdings, Slot
from sluice.runtime.messages import SlotProfile

_NOTHING = Holdings()

Missing: TypeAlias = list[tuple[SlotProfile, int]]
"""How many slots of which size a job lacks."""
Coming: TypeAlias = Mapping[str, Counter[SlotProfile]]
"""Slots that are being taken from other jobs, by the job that gets them."""


class JobSlots:
    """Requirements are level-triggered: a job states how many slots of which sizes it wants in total.

    Args:
        max_slots_per_user: how many slots the jobs of one user may hold together; 0: any number.
    """

    def __init__(self, max_slots_per_user: int = 0) -> None:
        self.max_slots_per_user = max_slots_per_user
        self._known: dict[str, SlotRequirement] = {}
        """The latest requirement of each job, also of those that want nothing: it says who owns their slots."""
        self._wanting: dict[str, SlotRequirement] = {}
        self._held: dict[str, Holdings] = {}

    def __iter__(self) -> Iterator[SlotRequirement]:
        """The requirements of jobs that want any, the earliest first."""
        return iter(self._wanting.values())

    def __contains__(self, job_id: str) -> bool:
        """Whether the job has stated a requirement and is not over."""
        return job_id in self._known

    def require(self, requirement: SlotRequirement) -> None:
        """State how many slots a job wants in total; none means none any more."""
        self._known[requirement.job_id] = requirement
        if requirement.count > 0:
            self._wanting[requirement.job_id] = requirement
        else:
            self._wanting.pop(requirement.job_id, None)

    def wanted(self, job_id: str) -> SlotRequirement | None:
        """What a job wants; None: nothing."""
        return self._wanting.get(job_id)

    def end(self, job_id: str) -> None:
        """End a job: it wants nothing. It keeps what it holds until it gives that back."""
        self._wanting.pop(job_id, None)
        self._known.pop(job_id, None)

    # --- what they hold -----------------------------------------------------------------------------------

    def held(self, job_id: str) -> Holdings:
        """What a job holds."""
        return self._held.get(job_id, _NOTHING)

    def holds(self, job_id: str) -> int:
        """How many slots a job has."""
        return len(self.held(job_id).allocations)

    def take(self, slot: Slot, taskmanager: str) -> None:
        """Count the slot as its job's."""
        self._held.setdefault(slot.job_id, Holdings()).add(slot, taskmanager)

    def give_back(self, slot: Slot, taskmanager: str) -> None:
        """Count the slot as its job's no longer."""
        self.held(slot.job_id).discard(slot, taskmanager)

    def drop(self, job_id: str) -> None:
        """Forget what a job that is over has held."""
        self._held.pop(job_id, None)

    # --- what they lack -----------------------------------------------------------------------------------

    def missing(self, job_id: str) -> Missing:
        """What a job lacks, the largest slots first."""
        requirement = self._wanting.get(job_id)
        if requirement is None:
            return []
        held = self.held(job_id).by_profile
        lacking = [(each.profile, each.count - held[each.profile]) for each in requirement.wanted]
        # A slot without cores or memory cannot be made, whoever asks for one.
        lacking = [(size, count) for size, count in lacking if count > 0 and min(size.cores, size.memory_mb) > 0]
        return sorted(lacking, key=lambda each: (each[0].memory_mb, each[0].cores), reverse=True)

    def lacks(self, job_id: str) -> int:
        """How many slots a job wants besides those it has."""
        return sum(count for _, count in self.missing(job_id))

    def allowances(self) -> Counter[str] | None:
        """The number of slots that each user may still get; None: any number."""
        if self.max_slots_per_user <= 0:
            return None
        allowed = Counter({each.owner: self.max_slots_per_user for each in self})
        for job_id, held in self._held.items():
            if (requirement := self._wanting.get(job_id)) is not None:
                allowed[requirement.owner] -= len(held.allocations)
        return Counter({owner: max(0, count) for owner, count in allowed.items()})

    def claims(self, coming: Coming, wanting: Collection[str] | None = None) -> list[JobClaim]:
        """What each job holds and lacks, in the order in which they came; with ``wanting`` only these lack anything.

        A slot that was taken for a job counts as held by it, not as lacking.
        """
        jobs = [*self._wanting, *(job_id for job_id in self._known if job_id not in self._wanting)]
        return [self.claim(job_id, coming, lacks=wanting is None or job_id in wanting) for job_id in jobs]

    def claim(self, job_id: str, coming: Coming, *, lacks: bool = True) -> JobClaim:
        """The claim of one job."""
        requirement, on_the_way = self._known[job_id], coming.get(job_id, Counter())
        return JobClaim(
            job_id,
            requirement.owner,
            requirement.groups,
            requirement.queue,
            requirement.priority,
            [(profile, count - on_the_way[profile]) for profile, count in (self.missing(job_id) if lacks else ())],
            self.held(job_id).by_profile + on_the_way,
        )

    def unmet(self) -> list[tuple[str, SlotProfile, int]]:
        """The slots by size that each job lacks and may have."""
        allowed, unmet = self.allowances(), []
        for requirement in self:
            for profile, missing in self.missing(requirement.job_id):
                count = missing
                if allowed is not None:
                    count = min(missing, allowed[requirement.owner])
                    allowed[requirement.owner] -= count
                unmet.append((requirement.job_id, profile, count))
        return unmet
