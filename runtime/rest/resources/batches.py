"""Apache Livy's batches, for Livy clients: the same jobs under the same rules (docs/reference/livy.md).

The number of a batch is derived from the beginning of its job's id, so every JobManager knows it without stored state.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from sluice.runtime.blob import BlobTooLarge, InvalidBlobName
from sluice.runtime.jobmanager import (
    JobAlreadyTerminal,
    JobNotFound,
    JobSummary,
    LogNotFound,
    SubmissionRejected,
    TooManyJobs,
)
from sluice.runtime.jobmanager.dispatcher import submit_with_blobs
from sluice.runtime.messages import Archive, JobKind, JobState, JobSubmission
from sluice.runtime.node import MAX_CHUNK_BYTES, LogUnreadable
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.job_access import JOB_ERRORS, visible_jobs
from sluice.runtime.rest.protocol import ArtifactRefused, BadRequest, Call, NoQuery, NotYours, Query, Route, may_act_on
from sluice.runtime.rest.submissions import admission_of, mebibytes, new_salt
from sluice.runtime.spark import ForbiddenSparkConf
from sluice.runtime.spark.jvm import directory_name

NUMBER_DIGITS = 13
"""Hexadecimal digits: 52 bits, which every JSON parser represents exactly."""
MAX_LOG_BYTES = 8 << 20
"""How much of one log is read; later lines are not available."""
MAX_LOG_LINES = 10_000
DEFAULT_QUEUE = "default"
MAX_LISTED = 1000

STATES = {
    JobState.INITIALIZING: "starting",
    JobState.CREATED: "starting",
    JobState.RECONCILING: "starting",
    JobState.SUSPENDED: "starting",
    JobState.RUNNING: "running",
    JobState.FAILING: "running",
    JobState.RESTARTING: "running",
    JobState.CANCELLING: "shutting_down",
    JobState.FINISHED: "success",
    JobState.FAILED: "dead",
    JobState.CANCELED: "killed",
}
"""Sluice's state -> Livy's state."""

_Text = Annotated[str, msgspec.Meta(max_length=2000)]


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch to submit. Fields that this cluster does not support are refused, not ignored."""

    file: _Text
    args: tuple[str | int | float, ...] = ()
    name: str | None = None
    conf: dict[str, str | int | float | bool] | None = None
    py_files: tuple[_Text, ...] = msgspec.field(default=(), name="pyFiles")
    files: tuple[_Text, ...] = ()
    archives: tuple[_Text, ...] = ()
    jars: tuple[_Text, ...] = ()
    num_executors: int | None = msgspec.field(default=None, name="numExecutors")
    executor_cores: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] | None = msgspec.field(
        default=None, name="executorCores"
    )
    executor_memory: str | None = msgspec.field(default=None, name="executorMemory")
    driver_cores: int | None = msgspec.field(default=None, name="driverCores")
    driver_memory: str | None = msgspec.field(default=None, name="driverMemory")
    class_name: str | None = msgspec.field(default=None, name="className")
    proxy_user: str | None = msgspec.field(default=None, name="proxyUser")
    queue: str | None = None

    def queue_among(self, configured: Iterable[str]) -> str | msgspec.UnsetType:
        """The queue. ``default``, which clients send by themselves, counts as unset unless a queue has that name."""
        if not self.queue or (self.queue == DEFAULT_QUEUE and DEFAULT_QUEUE not in configured):
            return msgspec.UNSET
        return self.queue

    def spark_conf(self) -> dict[str, str]:
        """Its Spark settings as strings; the dispatcher checks them."""
        given = self.conf or {}
        return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given.items()}

    def executor_memory_mb(self) -> int:
        """Heap size of each executor in MiB; 0: the cluster's default. Raises :class:`BadRequest`."""
        if self.executor_memory is None:
            return 0
        try:
            return mebibytes(self.executor_memory)
        except ValueError as error:
            raise BadRequest(f"executorMemory: {error}", "as in 4g or 512m") from error


class AppInfo(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Links to the application's pages; always null."""

    driver_log_url: str | None = None
    spark_ui_url: str | None = None


class Batch(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A batch as Livy shows it; ``appId`` is the id of the job."""

    id: int
    name: str
    owner: str
    proxy_user: str | None = None
    state: str
    app_id: str
    app_info: AppInfo = AppInfo()
    log: tuple[str, ...] = ()


class BatchQuery(Query, frozen=True, rename={"first": "from"}):
    """The range of batches, oldest first."""

    first: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0
    size: Annotated[int, msgspec.Meta(ge=0, le=MAX_LISTED)] = 100


class BatchList(msgspec.Struct, frozen=True, kw_only=True, rename={"first": "from"}):
    """A page of batches."""

    first: int
    total: int
    sessions: tuple[Batch, ...]


class BatchState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a batch."""

    id: int
    state: str


class BatchLogQuery(Query, frozen=True, rename={"first": "from"}):
    """The range of lines; from -1 returns the last lines."""

    first: Annotated[int, msgspec.Meta(ge=-1, le=1 << 40)] = -1
    size: Annotated[int, msgspec.Meta(ge=-1, le=MAX_LOG_LINES)] = 100


class BatchLog(msgspec.Struct, frozen=True, kw_only=True, rename={"first": "from"}):
    """Lines of the driver's standard output, then of its standard error."""

    id: int
    first: int
    total: int
    log: tuple[str, ...]


class Deleted(msgspec.Struct, frozen=True):
    """The result of deleting a batch: it was cancelled, or had ended."""

    msg: str


async def submit_batch(cluster: Cluster, call: Call[NoQuery], body: BatchRequest) -> Batch:
    """Submit a batch whose files are in allowed stores.

    `file`, `pyFiles`, `files` and `archives` (`URL` or `URL#directory`) are URLs in `jobmanager.artifact_stores`.
    """
    _refuse_what_is_not_done(body, call.who.name)
    memory_mb = body.executor_memory_mb()
    job_id = secrets.token_hex(16)

    async def prepare() -> JobSubmission:
        pipeline = await cluster.artifacts.fetch(body.file, cluster.store, job_id)
        files = [await cluster.artifacts.fetch(each, cluster.store, job_id) for each in body.files]
        py_files = [await cluster.artifacts.fetch(each, cluster.store, job_id) for each in body.py_files]
        archives = []
        for each in body.archives:
            url, _, name = each.partition("#")
            blob = await cluster.artifacts.fetch(url, cluster.store, job_id)
            archives.append(Archive(blob=blob, name=name or directory_name(blob.name)))
        return JobSubmission(
            name=body.name or pipeline.name,
            owner=call.who.name,
            owner_roles=call.who.principal.roles,
            owner_groups=call.who.principal.groups,
            pipeline=pipeline,
            args=tuple(str(each) for each in body.args),
            spark_conf=body.spark_conf(),
            executors=cluster.default_executors if body.num_executors is None else body.num_executors,
            executor_cores=body.executor_cores or 0,
            executor_memory_mb=memory_mb,
            archives=tuple(archives),
            files=tuple(files),
            py_files=tuple(py_files),
            trace=call.trace,
            admission=admission_of(call.who),
            salt=new_salt(),
            queue=body.queue_among(each.name for each in cluster.config.scheduling.queues),
        )

    await submit_with_blobs(cluster.dispatcher, cluster.store, job_id, prepare)
    return _shown((await cluster.dispatcher.job(job_id)).summary())


async def list_batches(cluster: Cluster, call: Call[BatchQuery]) -> BatchList:
    """List batches, the oldest first."""
    jobs = sorted(await _batches(cluster, call), key=lambda job: (job.start_time, job.id))
    first = call.query.first
    page = jobs[first : first + call.query.size]
    return BatchList(first=first, total=len(jobs), sessions=tuple(map(_shown, page)))


async def get_batch(cluster: Cluster, call: Call[NoQuery]) -> Batch:
    """Get a batch."""
    return _shown(await _batch(cluster, call))


async def get_batch_state(cluster: Cluster, call: Call[NoQuery]) -> BatchState:
    """Get the state of a batch."""
    job = await _batch(cluster, call)
    return BatchState(id=number_of(job.id), state=STATES[job.state])


async def get_batch_log(cluster: Cluster, call: Call[BatchLogQuery]) -> BatchLog:
    """Get lines of the output of a batch's driver."""
    job = await _batch(cluster, call)
    lines: list[str] = []
    for stream in ("stdout", "stderr"):
        lines += [f"{stream}: ", *(await _lines(cluster, job.id, f"driver.{stream}"))]
    size = MAX_LOG_LINES if call.query.size < 0 else call.query.size
    first = max(0, len(lines) - size) if call.query.first < 0 else call.query.first
    return BatchLog(id=number_of(job.id), first=first, total=len(lines), log=tuple(lines[first : first + size]))


async def delete_batch(cluster: Cluster, call: Call[NoQuery]) -> Deleted:
    """Cancel a batch. Only its owner and administrators may. A batch that has ended does not change."""
    job = await _batch(cluster, call)
    if not may_act_on(call.request, job.owner):
        raise NotYours(f"batch {number_of(job.id)} belongs to {job.owner}", "its owner or an admin may")
    if not job.state.terminal:
        with contextlib.suppress(JobAlreadyTerminal):  # it has ended meanwhile
            await cluster.dispatcher.cancel_job(job.id)
    return Deleted(msg="deleted")


def number_of(job_id: str) -> int:
    """The batch number of a job."""
    return int(job_id[:NUMBER_DIGITS], 16)


def _refuse_what_is_not_done(body: BatchRequest, principal: str) -> None:
    if body.class_name or body.jars:
        raise BadRequest("className and jars are not supported: this cluster runs only PySpark", "leave them out")
    if body.driver_cores is not None or body.driver_memory is not None:
        raise BadRequest(
            "driverCores and driverMemory cannot be chosen for a batch: all drivers of a cluster have the same size",
            "leave them out; `spark.driver_memory_mb` in the cluster's configuration is the size",
        )
    if body.proxy_user not in {None, "", principal}:
        raise NotYours("a batch cannot be submitted for another user", "leave proxyUser out")


async def _batches(cluster: Cluster, call: Call[Any]) -> list[JobSummary]:
    """The batches that the caller may see."""
    return [job for job in await visible_jobs(cluster, call) if job.kind is JobKind.PIPELINE]


async def _batch(cluster: Cluster, call: Call[Any]) -> JobSummary:
    text = call.path["batch_id"]
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= 16 else -1
    for job in await _batches(cluster, call):
        if number_of(job.id) == number:
            return job
    raise JobNotFound(f"there is no batch {text[:40]!r}", "see GET /batches")


async def _lines(cluster: Cluster, job_id: str, source: str) -> list[str]:
    text, offset, end = [], 0, False
    while not end and offset < MAX_LOG_BYTES:
        try:
            chunk = await cluster.dispatcher.read_job_log(job_id, source, offset, MAX_CHUNK_BYTES)
        except (LogNotFound, LogUnreadable):
            break
        text.append(chunk.data)
        offset, end = chunk.next_offset, chunk.end
    return "".join(text).splitlines()


def _shown(job: JobSummary) -> Batch:
    return Batch(id=number_of(job.id), name=job.name, owner=job.owner, state=STATES[job.state], app_id=job.id)


_SUBMISSION_ERRORS = (
    ArtifactRefused,
    InvalidBlobName,
    ForbiddenSparkConf,
    SubmissionRejected,
    NotYours,
    BlobTooLarge,
    TooManyJobs,
)

ROUTES = (
    Route("GET", "/batches", "jobs.list", list_batches),
    Route("POST", "/batches", "jobs.submit", submit_batch, status=201, errors=_SUBMISSION_ERRORS),
    Route("GET", "/batches/{batch_id}", "jobs.read", get_batch, errors=(JobNotFound,)),
    Route("GET", "/batches/{batch_id}/state", "jobs.read", get_batch_state, errors=(JobNotFound,)),
    Route("GET", "/batches/{batch_id}/log", "jobs.logs", get_batch_log, errors=(JobNotFound,)),
    Route("DELETE", "/batches/{batch_id}", "jobs.cancel", delete_batch, errors=JOB_ERRORS),
)
