"""Submit, list, inspect and cancel jobs."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from typing import Annotated

import msgspec
from aiohttp import web

from sluice.runtime.blob import BlobTooLarge, InvalidBlobName, UploadConflict, UploadNotFound
from sluice.runtime.checkpoint import SavepointNotFound
from sluice.runtime.ha import LeadershipLost
from sluice.runtime.jobmanager import (
    EgressConnections,
    JobAlreadyTerminal,
    JobDetail,
    JobSummary,
    QuotaExceeded,
    SubmissionRejected,
    TooManyJobs,
)
from sluice.runtime.jobmanager.dispatcher import FeedClosed, submit_with_blobs
from sluice.runtime.jobmanager.secrets import InvalidSecret, SecretRefused, Subject
from sluice.runtime.messages import JobSubmission, Message
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.job_access import JOB_ERRORS, require_owner, require_visible, visible_jobs
from sluice.runtime.rest.protocol import (
    BadRequest,
    Call,
    Form,
    NoQuery,
    Nothing,
    NotYours,
    PageQuery,
    Query,
    Reply,
    Route,
    paginate,
)
from sluice.runtime.rest.resources.events import version_of
from sluice.runtime.rest.resources.overview import Connections
from sluice.runtime.rest.submissions import SubmitRequest, admission_of, new_salt, receive_submission
from sluice.runtime.spark import ForbiddenSparkConf, PackageRefused

MAX_WAIT_SECONDS = 25
"""Shorter than the gateway's timeout for a response."""


class JobList(Message, frozen=True):
    """A page of jobs, latest first."""

    jobs: tuple[JobSummary, ...]
    next: str | None


class Submitted(Message, frozen=True):
    """A job that was accepted."""

    job_id: str


class JobQuery(Query, frozen=True):
    """How long to wait for a change, and since which version."""

    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_SECONDS, description="seconds")] = 0
    version: Annotated[str, msgspec.Meta(max_length=64, description="`ETag` of the previous response")] = ""


class ChangeQuery(Query, frozen=True):
    """The change of a job."""

    mode: str = ""


async def list_jobs(cluster: Cluster, call: Call[PageQuery]) -> JobList:
    """List running and ended jobs that the caller may see, latest first."""
    jobs = await visible_jobs(cluster, call)
    page, following = paginate(jobs, call.query, lambda job: (job.start_time, job.id), latest_first=True)
    return JobList(jobs=page, next=following)


async def get_job(cluster: Cluster, call: Call[JobQuery]) -> Reply[JobDetail]:
    """Get a job; with `wait`, as soon as it differs from the given version, or after that time.

    The header `ETag` of the response is the version. Pass it as `version`, or in the header `If-None-Match`, with the
    next request. Status 304 means that nothing changed.
    """
    job_id, known = (
        await require_visible(cluster, call),
        call.query.version or call.request.headers.get("if-none-match", "").strip('"'),
    )
    end = asyncio.get_running_loop().time() + call.query.wait
    with cluster.feed.watching(job_id) as watch:
        while True:
            detail = await cluster.dispatcher.job(job_id)
            version = version_of(detail)
            headers = {"etag": f'"{version}"'}
            if version != known:
                return Reply(detail, headers=headers)
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                raise web.HTTPNotModified(headers=headers)
            try:
                await watch.changed(left)
            except FeedClosed:
                raise LeadershipLost("this JobManager no longer leads", "try again: another one leads") from None


async def submit_job(cluster: Cluster, call: Call[NoQuery]) -> Submitted:
    """Submit a pipeline with its files. Nothing is kept of a submission that is not accepted.

    503 ``OutcomeUnknown`` names the job. If the job is not in the list of jobs, it was not accepted.
    """
    job_id = secrets.token_hex(16)
    used: list[str] = []

    async def prepare() -> JobSubmission:
        received = await receive_submission(
            call.request, cluster.store, job_id, owner=call.who.principal, default_executors=cluster.default_executors
        )
        used.extend(received.uploads)
        submission = received.submission
        if submission.savepoint:
            savepoint_id = await _own_savepoint(cluster, call, submission.savepoint)
            submission = msgspec.structs.replace(submission, savepoint=savepoint_id)
        # Each attempt checks this again; here the caller gets the error at once.
        await cluster.secrets.choose(submission.secrets, Subject.of(submission))
        return msgspec.structs.replace(submission, trace=call.trace, admission=admission_of(call.who), salt=new_salt())

    await submit_with_blobs(cluster.dispatcher, cluster.store, job_id, prepare)
    for upload_id in used:
        with contextlib.suppress(UploadNotFound):  # another job has used it at the same time
            cluster.store.uploads.remove(upload_id, call.who.name)
    return Submitted(job_id=job_id)


async def _own_savepoint(cluster: Cluster, call: Call[NoQuery], name: str) -> str:
    """The id of the caller's savepoint. Another user's is refused, because the pipeline could read all its data."""
    savepoint = await cluster.dispatcher.savepoint(name)
    if savepoint.owner != call.who.name:
        raise NotYours(f"{savepoint.id} belongs to {savepoint.owner}", "only its owner can resume from it")
    return savepoint.id


async def cancel_job(cluster: Cluster, call: Call[ChangeQuery]) -> Nothing:
    """Cancel a job. Only its owner and administrators may."""
    if call.query.mode != "cancel":
        raise BadRequest("PATCH of a job needs ?mode=cancel")
    job_id = await require_owner(cluster, call)
    await cluster.dispatcher.cancel_job(job_id)
    return Nothing()


async def list_job_connections(cluster: Cluster, call: Call[NoQuery]) -> Connections:
    """List a job's mutual TLS connections, and its connections to the outside."""
    job_id = await require_visible(cluster, call)
    seen = await cluster.dispatcher.job_connections(job_id)
    outside = EgressConnections() if cluster.egress is None else await cluster.egress.egress_connections(job_id)
    return Connections(
        connections=seen.connections,
        dropped=seen.dropped,
        egress=outside.rows,
        egress_dropped=outside.left_out,
        egress_since=outside.since,
    )


ROUTES = (
    Route("GET", "/v1/jobs", "jobs.list", list_jobs),
    Route(
        "POST",
        "/v1/jobs",
        "jobs.submit",
        submit_job,
        status=202,
        errors=(
            InvalidBlobName,
            ForbiddenSparkConf,
            PackageRefused,
            QuotaExceeded,
            SubmissionRejected,
            BlobTooLarge,
            TooManyJobs,
            NotYours,
            SavepointNotFound,
            UploadNotFound,
            UploadConflict,
            InvalidSecret,
            SecretRefused,
        ),
        form=Form(
            {
                "request": SubmitRequest,
                "pipeline": bytes,
                "file": list[bytes],
                "py_file": list[bytes],
                "archive": list[bytes],
            },
            ("request",),
        ),
    ),
    Route("GET", "/v1/jobs/{job_id}", "jobs.read", get_job, other_statuses=(304,), errors=JOB_ERRORS),
    Route(
        "PATCH", "/v1/jobs/{job_id}", "jobs.cancel", cancel_job, status=202, errors=(*JOB_ERRORS, JobAlreadyTerminal)
    ),
    Route("GET", "/v1/jobs/{job_id}/connections", "jobs.connections", list_job_connections, errors=JOB_ERRORS),
)
