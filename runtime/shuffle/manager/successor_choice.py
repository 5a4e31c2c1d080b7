"""Chooses the worker that takes over the data of a drained one. Decisions only, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sluice.runtime.shuffle.manager.jobs import Job, Shuffle
from sluice.runtime.shuffle.manager.placement import Candidate, choose


@dataclass(frozen=True, slots=True)
class KeptShuffle:
    """A shuffle that a worker has data of."""

    job: Job
    number: int
    shuffle: Shuffle


def shuffles_on(name: str, jobs: Iterable[Job]) -> list[KeptShuffle]:
    """Return all shuffles that ``name`` was assigned or has taken over."""
    return [
        KeptShuffle(job, number, shuffle)
        for job in jobs
        for number, shuffle in job.shuffles.items()
        if name in shuffle.workers or name in shuffle.successors.values()
    ]


def successor(name: str, shuffle: Shuffle, candidates: Collection[Candidate], assigned: Mapping[str, int]) -> str:
    """Return the worker that takes over what ``name`` keeps of a shuffle; empty if there is no candidate.

    This is the worker that was chosen before, if it is still a candidate. Otherwise it is the least loaded worker, if
    possible one that does not keep the shuffle already, so that replicas stay on different workers.
    """
    others = [each for each in candidates if each.name != name]
    before = shuffle.successors.get(name, "")
    if any(each.name == before for each in others):
        return before
    keepers = {shuffle.keeper(worker) for worker in shuffle.workers}
    for group in ([each for each in others if each.name not in keepers], others):
        if chosen := choose(group, assigned, partitions=1, replicas=1, limit=1):
            return chosen[0]
    return ""
