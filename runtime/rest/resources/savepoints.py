"""Request, list and dispose of savepoints."""

from __future__ import annotations

from sluice.runtime.checkpoint import NotStreaming, Savepoint, SavepointFailed, SavepointNotFound
from sluice.runtime.jobmanager import SavepointRequest
from sluice.runtime.messages import Message
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.job_access import JOB_ERRORS, require_owner, require_visible
from sluice.runtime.rest.protocol import Call, NoQuery, Nothing, NotYours, Route, may_act_on


class SavepointOrder(Message, frozen=True):
    """The request for a savepoint; with ``stop`` the job ends with it."""

    stop: bool = False


class SavepointTriggered(Message, frozen=True):
    """A savepoint that is being taken; its result appears in the list of the job's savepoints."""

    savepoint_id: str


class SavepointRequestList(Message, frozen=True):
    """The latest savepoints that were requested for a job, earliest first."""

    savepoints: tuple[SavepointRequest, ...]


class SavepointList(Message, frozen=True):
    """Complete savepoints, latest first."""

    savepoints: tuple[Savepoint, ...]


async def list_job_savepoints(cluster: Cluster, call: Call[NoQuery]) -> SavepointRequestList:
    """List the savepoints that were requested for a job, with their results."""
    record = await cluster.dispatcher.job_record(await require_visible(cluster, call))
    return SavepointRequestList(savepoints=record.savepoints)


async def trigger_savepoint(cluster: Cluster, call: Call[NoQuery], body: SavepointOrder) -> SavepointTriggered:
    """Take a savepoint of a streaming job. Only its owner and administrators may."""
    job_id = await require_owner(cluster, call)
    return SavepointTriggered(savepoint_id=await cluster.dispatcher.trigger_savepoint(job_id, body.stop))


async def list_savepoints(cluster: Cluster, call: Call[NoQuery]) -> SavepointList:
    """List complete savepoints of the jobs that the caller may see, ended ones included."""
    found = await cluster.dispatcher.savepoints()
    return SavepointList(savepoints=tuple(each for each in found if may_act_on(call.request, each.owner)))


async def dispose_savepoint(cluster: Cluster, call: Call[NoQuery]) -> Nothing:
    """Dispose of a savepoint. Only its owner and administrators may."""
    savepoint = await owned_savepoint(cluster, call, call.path["savepoint_id"])
    await cluster.dispatcher.dispose_savepoint(savepoint.id)
    return Nothing()


async def owned_savepoint(cluster: Cluster, call: Call[NoQuery], name: str) -> Savepoint:
    """The savepoint with this id or path; raises :class:`NotYours` if it belongs to another user."""
    savepoint = await cluster.dispatcher.savepoint(name)
    if not may_act_on(call.request, savepoint.owner):
        raise NotYours(
            f"{savepoint.id} belongs to {savepoint.owner}, not to {call.who.name}", "its owner or an admin may"
        )
    return savepoint


ROUTES = (
    Route("GET", "/v1/jobs/{job_id}/savepoints", "jobs.checkpoints", list_job_savepoints, errors=JOB_ERRORS),
    Route(
        "POST",
        "/v1/jobs/{job_id}/savepoints",
        "jobs.savepoint",
        trigger_savepoint,
        status=202,
        errors=(*JOB_ERRORS, NotStreaming, SavepointFailed),
    ),
    Route("GET", "/v1/savepoints", "savepoints.read", list_savepoints),
    Route(
        "DELETE",
        "/v1/savepoints/{savepoint_id}",
        "savepoints.dispose",
        dispose_savepoint,
        errors=(NotYours, SavepointNotFound, SavepointFailed),
    ),
)
