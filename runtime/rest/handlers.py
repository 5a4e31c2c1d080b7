"""What each route does: ask an endpoint, shape the answer. No decisions about jobs are made here."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web

from runtime.blob.store import BlobStore
from runtime.jobmanager.connect_sessions import ConnectSessions
from runtime.jobmanager.errors import JobNotFound
from runtime.jobmanager.gateways import DispatcherGateway, ResourceManagerInternalGateway
from runtime.jobmanager.views import Overview
from runtime.log_files import MAX_CHUNK_BYTES
from runtime.messages import JobState
from runtime.rest.assertion import asserted, may_change
from runtime.rest.problems import BadRequest, NotYours
from runtime.rest.submission import receive_submission

_LOG = logging.getLogger(__name__)

DEFAULT_LOG_BYTES = 64 << 10

RestHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What the overview says besides numbers."""

    sluice_version: str
    spark_version: str
    jobmanager: str
    trust_domain: str


class Handlers:
    """The operations of :data:`runtime.rest.routes.ROUTES`, over the endpoints of this process."""

    def __init__(
        self,
        dispatcher: DispatcherGateway,
        resource_manager: ResourceManagerInternalGateway,
        store: BlobStore,
        facts: ClusterFacts,
        sessions: ConnectSessions,
        *,
        default_executors: int,
    ) -> None:
        self._dispatcher = dispatcher
        self._resource_manager = resource_manager
        self._store = store
        self._facts = facts
        self._sessions = sessions
        self._default_executors = default_executors

    def by_operation(self) -> Mapping[str, RestHandler]:
        """The handler of each operation."""
        return {
            "overview.read": self.overview,
            "jobs.list": self.jobs,
            "jobs.submit": self.submit,
            "jobs.read": self.job,
            "jobs.cancel": self.cancel,
            "jobs.logs": self.logs,
            "jobs.connections": self.job_connections,
            "connect.use": self.connect_session,
            "taskmanagers.read": self.taskmanagers,
            "connections.read": self.connections,
        }

    async def overview(self, _: web.Request) -> web.Response:
        """The cluster in numbers."""
        jobs, taskmanagers = await asyncio.gather(self._dispatcher.jobs(), self._resource_manager.taskmanagers())
        states = [job.state for job in jobs]
        return _json(
            Overview(
                taskmanagers=len(taskmanagers),
                slots_total=sum(each.slots_total for each in taskmanagers),
                slots_available=sum(each.slots_free for each in taskmanagers),
                jobs_running=sum(not state.terminal for state in states),
                jobs_finished=states.count(JobState.FINISHED),
                jobs_cancelled=states.count(JobState.CANCELED),
                jobs_failed=states.count(JobState.FAILED),
                sluice_version=self._facts.sluice_version,
                spark_version=self._facts.spark_version,
                jobmanager=self._facts.jobmanager,
                trust_domain=self._facts.trust_domain,
            )
        )

    async def health(self, _: web.Request) -> web.Response:
        """That this process takes work, and how many TaskManagers it has; for whoever started it."""
        return _json(await self._resource_manager.service_counts())

    async def jobs(self, _: web.Request) -> web.Response:
        """All jobs, the latest first."""
        return _json({"jobs": await self._dispatcher.jobs()})

    async def job(self, request: web.Request) -> web.Response:
        """One job."""
        return _json(await self._dispatcher.job(_job_id(request)))

    async def submit(self, request: web.Request) -> web.Response:
        """Store what comes, then hand it to the Dispatcher; nothing stays behind when it is not accepted."""
        job_id = secrets.token_hex(16)
        try:
            submission = await receive_submission(
                request,
                self._store,
                job_id,
                owner=asserted(request).principal,
                default_executors=self._default_executors,
            )
            await self._dispatcher.submit_job(job_id, submission)
        except BaseException:
            self._store.remove_job(job_id)
            raise
        return _json({"job_id": job_id}, status=202)

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel a job: its owner may, and administrators."""
        if request.query.get("mode", "") != "cancel":
            raise BadRequest("PATCH of a job needs ?mode=cancel")
        job_id = _job_id(request)
        job = await self._dispatcher.job(job_id)
        if not may_change(request, job.owner):
            who = asserted(request).principal
            raise NotYours(f"job {job_id} belongs to {job.owner}, not to {who}", "its owner or an admin may")
        await self._dispatcher.cancel_job(job_id)
        return _json({}, status=202)

    async def logs(self, request: web.Request) -> web.Response:
        """The names of a job's logs, or with ``source`` a piece of one."""
        job_id = _job_id(request)
        source = request.query.get("source", "")
        if not source:
            return _json({"logs": await self._dispatcher.job_logs(job_id)})
        offset = _number(request, "offset", default=0, most=1 << 60)
        limit = _number(request, "limit", default=DEFAULT_LOG_BYTES, most=MAX_CHUNK_BYTES)
        chunk = await self._dispatcher.read_job_log(job_id, source, offset, limit)
        return _json({"source": source, **msgspec.structs.asdict(chunk)})

    async def job_connections(self, request: web.Request) -> web.Response:
        """Evidence of a job's mutual TLS connections."""
        return _json({"connections": await self._dispatcher.job_connections(_job_id(request))})

    async def connect_session(self, request: web.Request) -> web.Response:
        """The Spark Connect session of who asks, started when there is none."""
        session = await self._sessions.ensure(asserted(request).principal)
        return _json(session, status=200 if session.port else 202)

    async def taskmanagers(self, _: web.Request) -> web.Response:
        """All TaskManagers and their slots."""
        return _json({"taskmanagers": await self._resource_manager.taskmanagers()})

    async def connections(self, _: web.Request) -> web.Response:
        """Evidence of the cluster's own mutual TLS connections."""
        return _json({"connections": await self._resource_manager.connections()})


def _json(document: object, *, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), status=status, content_type="application/json")


def _job_id(request: web.Request) -> str:
    job_id = request.match_info["job_id"]
    if len(job_id) != 32 or not job_id.isascii():
        raise JobNotFound(f"there is no job {job_id[:64]!r}")
    return job_id


def _number(request: web.Request, name: str, *, default: int, most: int) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 20:
        raise BadRequest(f"{name} is {text[:40]!r}, not a number")
    return min(int(text), most)
