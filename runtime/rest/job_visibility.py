"""Removes entries of jobs that the caller may not see from cluster-wide lists. Decisions only; no I/O.

``seen`` contains the ids of the jobs that the caller may see; None means all jobs, including past ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set as AbstractSet

import msgspec

from sluice.runtime.jobmanager import QueueView, TaskManagerView
from sluice.runtime.messages import ConnectionEvidence

_OF_JOB = re.compile(r"spiffe://[^/]+/job/([^/]+)/")


def visible_taskmanagers(
    taskmanagers: Iterable[TaskManagerView], seen: AbstractSet[str] | None
) -> tuple[TaskManagerView, ...]:
    """All TaskManagers. Slots of jobs that are not ``seen`` are shown as held, without the job's id."""
    if seen is None:
        return tuple(taskmanagers)
    return tuple(
        msgspec.structs.replace(
            each,
            slots=tuple(
                slot if slot.job_id in seen else msgspec.structs.replace(slot, job_id="") for slot in each.slots
            ),
            drivers=tuple(job_id if job_id in seen else "" for job_id in each.drivers),
        )
        for each in taskmanagers
    )


def visible_connections(
    connections: Iterable[ConnectionEvidence], seen: AbstractSet[str] | None
) -> tuple[ConnectionEvidence, ...]:
    """The connections between the cluster's own processes, and those of ``seen`` jobs."""
    if seen is None:
        return tuple(connections)
    return tuple(each for each in connections if _jobs_of(each) <= seen)


def _jobs_of(connection: ConnectionEvidence) -> set[str]:
    return {found[1] for end in (connection.local, connection.peer) if (found := _OF_JOB.match(end))}


def visible_queues(
    queues: Iterable[QueueView], seen: AbstractSet[str] | None, usable: AbstractSet[str]
) -> tuple[QueueView, ...]:
    """The ``usable`` queues and those with a ``seen`` job, reduced to the ``seen`` jobs."""
    if seen is None:
        return tuple(queues)
    own = (msgspec.structs.replace(each, jobs=tuple(job for job in each.jobs if job.id in seen)) for each in queues)
    return tuple(each for each in own if each.jobs or each.name in usable)
