"""TaskManagers and their slots."""

from __future__ import annotations

from runtime.jobmanager.errors import TaskManagerLeaves, TaskManagerNotFound
from runtime.jobmanager.views import TaskManagerView
from runtime.messages import Message
from runtime.rest.cluster import Cluster
from runtime.rest.paging import PageQuery, paginate
from runtime.rest.route import Call, NoQuery, Nothing, Route


class TaskManagerList(Message, frozen=True):
    """One page of TaskManagers, by name."""

    taskmanagers: tuple[TaskManagerView, ...]
    next: str | None


async def list_taskmanagers(cluster: Cluster, call: Call[PageQuery]) -> TaskManagerList:
    """All TaskManagers and their slots."""
    all_of_them = await cluster.resource_manager.taskmanagers()
    page, following = paginate(all_of_them, call.query, lambda each: (0, each.id))
    return TaskManagerList(taskmanagers=page, next=following)


async def drain_taskmanager(cluster: Cluster, call: Call[NoQuery]) -> Nothing:
    """Give no more slots of a TaskManager, move its executors elsewhere, and have it leave."""
    await cluster.resource_manager.drain_taskmanager(call.path["taskmanager_id"], draining=True)
    return Nothing()


async def undrain_taskmanager(cluster: Cluster, call: Call[NoQuery]) -> Nothing:
    """Take a TaskManager that is being drained into service again; 409 when it leaves already."""
    await cluster.resource_manager.drain_taskmanager(call.path["taskmanager_id"], draining=False)
    return Nothing()


ROUTES = (
    Route("GET", "/v1/taskmanagers", "taskmanagers.read", list_taskmanagers),
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
