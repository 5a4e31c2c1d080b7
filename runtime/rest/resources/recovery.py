"""Checkpoints and exceptions of a job."""

from __future__ import annotations

from sluice.runtime.checkpoint import CheckpointsView
from sluice.runtime.jobmanager import ExceptionEntry
from sluice.runtime.messages import Message
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.job_access import JOB_ERRORS, require_visible
from sluice.runtime.rest.protocol import Call, NoQuery, Route


class ExceptionList(Message, frozen=True):
    """The exceptions of a job, earliest first."""

    exceptions: tuple[ExceptionEntry, ...]


async def list_job_exceptions(cluster: Cluster, call: Call[NoQuery]) -> ExceptionList:
    """List the exceptions of a running or ended job."""
    record = await cluster.dispatcher.job_record(await require_visible(cluster, call))
    return ExceptionList(exceptions=record.exceptions)


async def get_job_checkpoints(cluster: Cluster, call: Call[NoQuery]) -> CheckpointsView:
    """List completed checkpoints of a running or ended streaming job."""
    return (await cluster.dispatcher.job_record(await require_visible(cluster, call))).checkpoints


ROUTES = (
    Route("GET", "/v1/jobs/{job_id}/exceptions", "jobs.exceptions", list_job_exceptions, errors=JOB_ERRORS),
    Route("GET", "/v1/jobs/{job_id}/checkpoints", "jobs.checkpoints", get_job_checkpoints, errors=JOB_ERRORS),
)
