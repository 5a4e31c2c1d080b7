"""Jobs: submitted, listed, looked at, cancelled."""

from __future__ import annotations

import secrets

from runtime.blob.errors import BlobTooLarge, InvalidBlobName
from runtime.jobmanager.errors import JobAlreadyTerminal, JobNotFound, SubmissionRejected, TooManyJobs
from runtime.jobmanager.views import JobDetail, JobSummary
from runtime.messages import Message
from runtime.rest.cluster import Cluster
from runtime.rest.jobs import job_id_of, require_owner
from runtime.rest.paging import PageQuery, paginate
from runtime.rest.problems import BadRequest, NotYours
from runtime.rest.resources.overview import Connections
from runtime.rest.route import Call, Form, NoQuery, Nothing, Query, Route
from runtime.rest.submission import SubmitRequest, receive_submission
from runtime.spark.errors import ForbiddenSparkConf


class JobList(Message, frozen=True):
    """One page of jobs, the latest first."""

    jobs: tuple[JobSummary, ...]
    next: str | None


class Submitted(Message, frozen=True):
    """A job that was accepted."""

    job_id: str


class ChangeQuery(Query, frozen=True):
    """What is to be done with a job."""

    mode: str = ""


async def list_jobs(cluster: Cluster, call: Call[PageQuery]) -> JobList:
    """Running and archived jobs, the latest first."""
    jobs = await cluster.dispatcher.jobs()
    page, following = paginate(jobs, call.query, lambda job: (job.start_time, job.id), latest_first=True)
    return JobList(jobs=page, next=following)


async def get_job(cluster: Cluster, call: Call[NoQuery]) -> JobDetail:
    """One job."""
    return await cluster.dispatcher.job(job_id_of(call))


async def submit_job(cluster: Cluster, call: Call[NoQuery]) -> Submitted:
    """Submit a pipeline with its files; nothing stays behind when it is not accepted."""
    job_id = secrets.token_hex(16)
    try:
        submission = await receive_submission(
            call.request,
            cluster.store,
            job_id,
            owner=call.who.principal,
            default_executors=cluster.default_executors,
        )
        await cluster.dispatcher.submit_job(job_id, submission)
    except BaseException:
        cluster.store.remove_job(job_id)
        raise
    return Submitted(job_id=job_id)


async def cancel_job(cluster: Cluster, call: Call[ChangeQuery]) -> Nothing:
    """Cancel a job: its owner may, and administrators."""
    if call.query.mode != "cancel":
        raise BadRequest("PATCH of a job needs ?mode=cancel")
    job_id = await require_owner(cluster, call)
    await cluster.dispatcher.cancel_job(job_id)
    return Nothing()


async def list_job_connections(cluster: Cluster, call: Call[NoQuery]) -> Connections:
    """Evidence of a job's mutual TLS connections."""
    return Connections(connections=await cluster.dispatcher.job_connections(job_id_of(call)))


ROUTES = (
    Route("GET", "/v1/jobs", "jobs.list", list_jobs),
    Route(
        "POST",
        "/v1/jobs",
        "jobs.submit",
        submit_job,
        status=202,
        errors=(InvalidBlobName, ForbiddenSparkConf, SubmissionRejected, BlobTooLarge, TooManyJobs),
        form=Form({"request": SubmitRequest, "pipeline": bytes, "file": list[bytes]}, ("request", "pipeline")),
    ),
    Route("GET", "/v1/jobs/{job_id}", "jobs.read", get_job, errors=(JobNotFound,)),
    Route(
        "PATCH",
        "/v1/jobs/{job_id}",
        "jobs.cancel",
        cancel_job,
        status=202,
        errors=(NotYours, JobNotFound, JobAlreadyTerminal),
    ),
    Route("GET", "/v1/jobs/{job_id}/connections", "jobs.connections", list_job_connections, errors=(JobNotFound,)),
)
