"""Queues: how jobs share the executor slots, and what they wait for."""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.runtime.jobmanager import QueueNotFound, QueueView
from sluice.runtime.messages import Message
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.job_access import visible_job_ids
from sluice.runtime.rest.job_visibility import visible_queues
from sluice.runtime.rest.protocol import Call, NoQuery, Route, asserted

MAX_JOBS_SHOWN = 500
"""Maximum number of jobs of one queue in a response, waiting jobs first. The numbers count all jobs."""


class QueueList(Message, frozen=True):
    """The queues that the caller may use, or all queues; empty if none are configured."""

    queues: tuple[QueueView, ...]
    preemption: bool
    """Whether executors are preempted for queues below their guarantee and for higher priorities."""


async def list_queues(cluster: Cluster, call: Call[NoQuery]) -> QueueList:
    """List queues with the slots that their jobs hold and wait for.

    The numbers count all jobs; `jobs` contains only jobs that the caller may see. Users who may not see all jobs see
    the queues that they may use and those in which they have jobs. Jobs that wait for a driver slot, or for
    `limits.max_running_jobs`, are not in a queue yet.
    """
    return QueueList(queues=await queues_seen(cluster, call), preemption=cluster.config.scheduling.preempts)


async def get_queue(cluster: Cluster, call: Call[NoQuery]) -> QueueView:
    """Get a queue with the slots that its jobs hold and wait for."""
    name = call.path["queue"]
    found = next((each for each in await queues_seen(cluster, call) if each.name == name), None)
    if found is None:
        raise QueueNotFound(f"there is no queue {name[:64]!r}", "see the list of them")
    return found


async def queues_seen(cluster: Cluster, call: Call[Any]) -> tuple[QueueView, ...]:
    """The queues and jobs that the caller may see."""
    who = asserted(call.request).principal
    usable = {each.name for each in cluster.config.scheduling.queues if each.admits(who.name, who.groups)}
    seen = visible_queues(await cluster.resource_manager.queues(), await visible_job_ids(cluster, call), usable)
    return tuple(msgspec.structs.replace(each, jobs=each.jobs[:MAX_JOBS_SHOWN]) for each in seen)


ROUTES = (
    Route("GET", "/v1/queues", "queues.read", list_queues),
    Route("GET", "/v1/queues/{queue}", "queues.read", get_queue, errors=(QueueNotFound,)),
)
