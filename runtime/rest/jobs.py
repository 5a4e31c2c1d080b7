"""What every resource below ``/v1/jobs/{job_id}`` needs: which job is meant, and whether it may be changed."""

from __future__ import annotations

import re
from typing import Any

from runtime.jobmanager.errors import JobNotFound
from runtime.rest.assertion import may_change, may_see
from runtime.rest.cluster import Cluster
from runtime.rest.problems import NotYours
from runtime.rest.route import Call

_JOB_ID = re.compile("[!-~]{32}")


def job_id_of(call: Call[Any]) -> str:
    """The job that the path names; raises :class:`JobNotFound` for what can be none."""
    job_id = call.path["job_id"]
    if not _JOB_ID.fullmatch(job_id):
        raise JobNotFound(f"there is no job {job_id[:64]!r}")
    return job_id


async def require_seen(cluster: Cluster, call: Call[Any]) -> str:
    """The same, for whoever wants to see it; raises :class:`NotYours`."""
    job_id = job_id_of(call)
    job = await cluster.dispatcher.job(job_id)
    if not may_see(call.request, job.owner):
        raise NotYours(f"job {job_id} belongs to {job.owner}, not to {call.who.principal}", "its owner may see it")
    return job_id


async def require_owner(cluster: Cluster, call: Call[Any]) -> str:
    """The same, for whoever wants to change it; raises :class:`NotYours`."""
    job_id = job_id_of(call)
    job = await cluster.dispatcher.job(job_id)
    if not may_change(call.request, job.owner):
        raise NotYours(f"job {job_id} belongs to {job.owner}, not to {call.who.principal}", "its owner or an admin may")
    return job_id
