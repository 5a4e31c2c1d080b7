"""TaskManagers and their slots."""

from __future__ import annotations

from runtime.jobmanager.views import TaskManagerView
from runtime.messages import Message
from runtime.rest.cluster import Cluster
from runtime.rest.paging import PageQuery, paginate
from runtime.rest.route import Call, Route


class TaskManagerList(Message, frozen=True):
    """One page of TaskManagers, by name."""

    taskmanagers: tuple[TaskManagerView, ...]
    next: str | None


async def list_taskmanagers(cluster: Cluster, call: Call[PageQuery]) -> TaskManagerList:
    """All TaskManagers and their slots."""
    all_of_them = await cluster.resource_manager.taskmanagers()
    page, following = paginate(all_of_them, call.query, lambda each: (0, each.id))
    return TaskManagerList(taskmanagers=page, next=following)


ROUTES = (Route("GET", "/v1/taskmanagers", "taskmanagers.read", list_taskmanagers),)
