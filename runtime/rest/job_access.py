"""Finds the job of a request, and decides whether the caller may see or change it."""

from __future__ import annotations

import re
from typing import Any

from sluice.runtime.jobmanager import JobNotFound, JobSummary
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.protocol import Call, NotYours, may_act_on

JOB_ERRORS = (NotYours, JobNotFound)
"""The errors of every route about one job."""

_JOB_ID = re.compile("[!-~]{32}")


def job_id_of(call: Call[Any]) -> str:
    """The job id in the path; raises :class:`JobNotFound` if it is malformed."""
    job_id = call.path["job_id"]
    if not _JOB_ID.fullmatch(job_id):
        raise JobNotFound(f"there is no job {job_id[:64]!r}")
    return job_id


async def visible_jobs(cluster: Cluster, call: Call[Any]) -> tuple[JobSummary, ...]:
    """All jobs that the caller may see, latest first."""
    return tuple(job for job in await cluster.dispatcher.jobs() if may_act_on(call.request, job.owner))


async def visible_job_ids(cluster: Cluster, call: Call[Any]) -> frozenset[str] | None:
    """The ids of the jobs that the caller may see, for :mod:`sluice.runtime.rest.job_visibility`; None means all."""
    if call.who.any_owner:
        return None
    return frozenset(job.id for job in await visible_jobs(cluster, call))


async def require_visible(cluster: Cluster, call: Call[Any]) -> str:
    """The id of the job in the path if the caller may see the job; else raises :data:`JOB_ERRORS`."""
    return await _require(cluster, call, "its owner may see it")


async def require_owner(cluster: Cluster, call: Call[Any]) -> str:
    """The id of the job in the path if the caller may change the job; else raises :data:`JOB_ERRORS`."""
    return await _require(cluster, call, "its owner or an admin may")


async def _require(cluster: Cluster, call: Call[Any], remedy: str) -> str:
    job_id = job_id_of(call)
    job = await cluster.dispatcher.job(job_id)
    if not may_act_on(call.request, job.owner):
        raise NotYours(f"job {job_id} belongs to {job.owner}, not to {call.who.name}", remedy)
    return job_id
