"""TaskManagers: slots, logs, metrics, and draining."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from aiohttp import web

from sluice.core import CONTENT_TYPE
from sluice.runtime.jobmanager import TaskManagerLeaves, TaskManagerNotFound, TaskManagerView
from sluice.runtime.messages import LogChunk, Message
from sluice.runtime.node import MAX_CHUNK_BYTES
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.job_access import visible_job_ids
from sluice.runtime.rest.job_visibility import visible_taskmanagers
from sluice.runtime.rest.protocol import PLAIN_TEXT, Call, NoQuery, Nothing, PageQuery, Query, Route, paginate
from sluice.runtime.rest.resources.logs import DEFAULT_LOG_BYTES, MAX_OFFSET


class TaskManagerList(Message, frozen=True):
    """A page of TaskManagers, by name."""

    taskmanagers: tuple[TaskManagerView, ...]
    next: str | None


class ProcessLogQuery(Query, frozen=True):
    """The piece of the log, in bytes since the start of the process. Parts that are no longer kept are skipped."""

    offset: Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHUNK_BYTES)] = DEFAULT_LOG_BYTES


async def list_taskmanagers(cluster: Cluster, call: Call[PageQuery]) -> TaskManagerList:
    """List TaskManagers with their slots. A slot names its job if the caller may see that job."""
    page, following = paginate(await taskmanagers_seen(cluster, call), call.query, lambda each: (0, each.id))
    return TaskManagerList(taskmanagers=page, next=following)


async def get_taskmanager(cluster: Cluster, call: Call[NoQuery]) -> TaskManagerView:
    """Get a TaskManager with its slots. A slot names its job if the caller may see that job."""
    name = call.path["taskmanager_id"]
    for each in await taskmanagers_seen(cluster, call):
        if each.id == name:
            return each
    raise TaskManagerNotFound(f"there is no TaskManager {name[:64]!r}", "see the list of them")


async def taskmanagers_seen(cluster: Cluster, call: Call[Any]) -> tuple[TaskManagerView, ...]:
    """All TaskManagers, without the ids of jobs that the caller may not see."""
    return visible_taskmanagers(await cluster.resource_manager.taskmanagers(), await visible_job_ids(cluster, call))


async def get_taskmanager_log(cluster: Cluster, call: Call[ProcessLogQuery]) -> LogChunk:
    """Get the last mebibyte of the log of the TaskManager process itself, in whole lines."""
    return await cluster.diagnostics.taskmanager_log(call.path["taskmanager_id"], call.query.offset, call.query.limit)


async def get_taskmanager_metrics(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """Get the metrics of a TaskManager in the Prometheus text format."""
    text = await cluster.diagnostics.taskmanager_metrics(call.path["taskmanager_id"])
    return web.Response(body=text.encode(), headers={"content-type": CONTENT_TYPE})


async def drain_taskmanager(cluster: Cluster, call: Call[NoQuery]) -> Nothing:
    """Drain a TaskManager: stop assigning its slots, move its executors to others, then end it."""
    await cluster.resource_manager.drain_taskmanager(call.path["taskmanager_id"], draining=True)
    return Nothing()


async def undrain_taskmanager(cluster: Cluster, call: Call[NoQuery]) -> Nothing:
    """Undrain a TaskManager; 409 if it is leaving already."""
    await cluster.resource_manager.drain_taskmanager(call.path["taskmanager_id"], draining=False)
    return Nothing()


_UNKNOWN = (TaskManagerNotFound,)
ROUTES = (
    Route("GET", "/v1/taskmanagers", "taskmanagers.read", list_taskmanagers),
    Route("GET", "/v1/taskmanagers/{taskmanager_id}", "taskmanagers.read", get_taskmanager, errors=_UNKNOWN),
    Route("GET", "/v1/taskmanagers/{taskmanager_id}/logs", "taskmanagers.logs", get_taskmanager_log, errors=_UNKNOWN),
    Route(
        "GET",
        "/v1/taskmanagers/{taskmanager_id}/metrics",
        "metrics.read",
        get_taskmanager_metrics,
        media=PLAIN_TEXT,
        errors=_UNKNOWN,
    ),
    Route(
        "POST",
        "/v1/taskmanagers/{taskmanager_id}/drain",
        "taskmanagers.drain",
        drain_taskmanager,
        status=202,
        errors=(TaskManagerNotFound,),
    ),
    Route(
        "POST",
        "/v1/taskmanagers/{taskmanager_id}/undrain",
        "taskmanagers.drain",
        undrain_taskmanager,
        errors=(TaskManagerNotFound, TaskManagerLeaves),
    ),
)
