"""Preemption: which executors lose their slots, and for which job (ADR 132). Decisions only; no I/O, no clock.

Slots are taken for two reasons: a queue waits below what it is guaranteed, or a job waits while jobs of lower priority
in its own queue hold slots. A queue never loses its guarantee to another one, and no job loses a slot to one of the
same priority in its queue: so no slot goes back and forth.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sluice.runtime.jobmanager.slots.fair_shares import Ask, FairShares
from sluice.runtime.messages import SlotProfile

MAX_SLOTS_PER_ROUND = 64
"""Most slots that one round makes for waiting jobs."""
MAX_VAIN_SEARCHES_PER_USER = 4
"""Most sizes or priorities for which a round searches in vain for victims, for each user and queue.

So nobody keeps others from their turn by asking for slots that cannot be had.
"""
MAX_VICTIMS_PER_SLOT = 64
"""Most slots that are taken to make room for one."""
BELOW_GUARANTEE = "another queue waits below what it is guaranteed"
HIGHER_PRIORITY = "a job of higher priority in its queue waits"


@dataclass(frozen=True, slots=True)
class HeldSlot:
    """A slot that could be taken from the job that holds it."""

    allocation_id: str
    job_id: str
    taskmanager: str
    profile: SlotProfile


@dataclass(frozen=True, slots=True)
class Preemption:
    """Take the slots of ``victims``, all on one TaskManager, to make one of size ``wanted`` there for a job."""

    taskmanager: str
    beneficiary: str
    wanted: SlotProfile
    victims: tuple[HeldSlot, ...]
    reason: str
    """The reason that the victims get. It names neither queue nor job: these may belong to somebody else."""


def choose_victims(
    shares: FairShares,
    free: Mapping[str, SlotProfile],
    held: Sequence[HeldSlot],
    avoids: Callable[[str, str], bool] = lambda _job, _taskmanager: False,
) -> list[Preemption]:
    """Choose which slots are taken and for which job, in the order of turns; ``shares`` counts them as taken already.

    Args:
        shares: after all free slots were given.
        free: what each TaskManager in service has left.
        held: the slots there that jobs use, the earliest first.
        avoids: whether a job must get no slot of a TaskManager now.
    """
    round_ = _Round(shares, dict(free), held, avoids)
    found: list[Preemption] = []
    vain: set[tuple[str, SlotProfile, int]] = set()
    searches: Counter[tuple[str, str]] = Counter()
    while len(found) < MAX_SLOTS_PER_ROUND and (ask := shares.next()) is not None:
        user = shares.user(ask.job_id)
        same = (user[0], ask.profile, shares.priority(ask.job_id))
        hopeless = same in vain or searches[user] >= MAX_VAIN_SEARCHES_PER_USER
        preemption = None if hopeless else round_.preemption_for(ask)
        if preemption is not None:
            found.append(preemption)
            continue
        if not hopeless:
            searches[user] += 1
            if not any(avoids(ask.job_id, name) for name in free):
                vain.add(same)
        shares.passed_over(ask)
    return found


class _Round:
    def __init__(
        self,
        shares: FairShares,
        free: dict[str, SlotProfile],
        held: Sequence[HeldSlot],
        avoids: Callable[[str, str], bool],
    ) -> None:
        self._shares = shares
        self._free = free
        self._avoids = avoids
        self._by_job: dict[str, list[HeldSlot]] = {}
        for each in reversed(held):  # the latest first: it has done the least work
            self._by_job.setdefault(each.job_id, []).append(each)

    def preemption_for(self, ask: Ask) -> Preemption | None:
        """The slots to take for this request, counted as taken; None when there are none."""
        shares = self._shares
        if any(room.fits(ask.profile) and not self._avoids(ask.job_id, name) for name, room in self._free.items()):
            return None  # it is about to get that slot
        entitled, priority = shares.entitled(ask), shares.priority(ask.job_id)

        def loses(job_id: str) -> bool:
            if shares.same_queue(job_id, ask.job_id):
                return shares.priority(job_id) < priority
            return entitled

        losers = sorted((each for each in self._by_job if loses(each)), key=shares.cost)
        victims = self._one_victim(ask, losers) or self._victims(ask, losers)
        if not victims:
            return None
        taskmanager = victims[0].taskmanager
        self._take(victims)
        self._free[taskmanager] = self._free[taskmanager].less(ask.profile)
        shares.granted(ask)
        others = any(not shares.same_queue(each.job_id, ask.job_id) for each in victims)
        reason = BELOW_GUARANTEE if others else HIGHER_PRIORITY
        return Preemption(taskmanager, ask.job_id, ask.profile, tuple(victims), reason)

    def _one_victim(self, ask: Ask, losers: Iterable[str]) -> list[HeldSlot]:
        """The one slot that makes room, from the job that is first to lose one."""
        for job_id in losers:
            for each in self._by_job[job_id]:
                room = self._free.get(each.taskmanager)
                if room is None or self._avoids(ask.job_id, each.taskmanager):
                    continue
                if room.plus(each.profile).fits(ask.profile) and self._spare(ask, each):
                    return [each]
        return []

    def _victims(self, ask: Ask, losers: Sequence[str]) -> list[HeldSlot]:
        """The fewest slots on one TaskManager that make room together."""
        on: dict[str, list[HeldSlot]] = {}
        for job_id in losers:
            for each in self._by_job[job_id]:
                if each.taskmanager in self._free and not self._avoids(ask.job_id, each.taskmanager):
                    on.setdefault(each.taskmanager, []).append(each)
        best: list[HeldSlot] = []
        for taskmanager, candidates in on.items():
            found = self._enough(ask, self._free[taskmanager], candidates)
            if found and (not best or len(found) < len(best)):
                best = found
        return best

    def _enough(self, ask: Ask, room: SlotProfile, candidates: Iterable[HeldSlot]) -> list[HeldSlot]:
        chosen: list[HeldSlot] = []
        have = room
        for each in candidates:
            if len(chosen) >= MAX_VICTIMS_PER_SLOT or not self._spare(ask, each, *chosen):
                continue
            chosen.append(each)
            have = have.plus(each.profile)
            if have.fits(ask.profile):
                break
        if not have.fits(ask.profile):
            return []
        for each in list(chosen):  # leave out those that are not needed
            without = have.less(each.profile)
            if without.fits(ask.profile):
                chosen.remove(each)
                have = without
        return chosen

    def _spare(self, ask: Ask, victim: HeldSlot, *others: HeldSlot) -> bool:
        """Whether the victim's queue keeps its guarantee; within one queue that does not matter."""
        shares = self._shares
        if shares.same_queue(victim.job_id, ask.job_id):
            return True
        together = victim.profile
        for each in others:
            if shares.same_queue(each.job_id, victim.job_id):
                together = together.plus(each.profile)
        return shares.spare(victim.job_id, together)

    def _take(self, victims: Iterable[HeldSlot]) -> None:
        for each in victims:
            self._shares.taken(each.job_id, each.profile)
            self._free[each.taskmanager] = self._free[each.taskmanager].plus(each.profile)
            self._by_job[each.job_id].remove(each)
            if not self._by_job[each.job_id]:
                del self._by_job[each.job_id]
