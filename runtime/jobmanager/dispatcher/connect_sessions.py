"""Spark Connect sessions: one for each principal, started at its first request and reused afterwards.

A session is a job whose program is ``runtime.spark.driver.connect.session``: a driver of its own with executors in
slots of its own. Principals never share one, because the code of a session's user runs as that driver.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
import weakref
from collections.abc import Callable

from sluice.core import SluiceError
from sluice.pki.assertions import Principal
from sluice.runtime.blob import BlobStore
from sluice.runtime.config import ConnectConfig
from sluice.runtime.jobmanager.dispatcher.submitting import submit_with_blobs
from sluice.runtime.jobmanager.errors import ConnectSessionRuns, TooManyJobs
from sluice.runtime.jobmanager.gateways import ConnectAddress, DispatcherGateway
from sluice.runtime.jobmanager.views import JobDetail, JobSummary
from sluice.runtime.messages import Admission, BlobRef, JobKind, JobState, JobSubmission, Message, SecretReference
from sluice.runtime.spark.driver.connect import session

_LOG = logging.getLogger(__name__)

PROGRAM_NAME = "connect_session.py"
SESSION_NAME = "Spark Connect"
_ENDING = frozenset({JobState.CANCELLING, JobState.FAILING})


class ConnectSession(Message, frozen=True):
    """A principal's session; ``port`` is 0 until its server listens."""

    job_id: str
    owner: str
    state: JobState
    host: str = ""
    port: int = 0
    pending_reason: str = ""


class ConnectSessions:
    """Finds and starts sessions.

    Args:
        dispatcher: accepts the jobs.
        store: stores their program.
        config: size, number and life of sessions.
    """

    def __init__(self, dispatcher: DispatcherGateway, store: BlobStore, config: ConnectConfig) -> None:
        self._dispatcher = dispatcher
        self._store = store
        self._config = config
        self._program = inspect.getsource(session).encode()
        self._submitting: set[str] = set()
        self._starting: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def ensure(self, owner: Principal, admission: Admission) -> ConnectSession:
        """The session of ``owner``; starts one when there is none. Raises ``TooManyJobs``."""
        return await self._start(owner, admission, (), lambda running: running)

    async def start(
        self, owner: Principal, admission: Admission, references: tuple[SecretReference, ...]
    ) -> ConnectSession:
        """Start a session of ``owner`` that gets these secrets.

        Raises:
            ConnectSessionRuns: there is one, and a running process gets no more secrets.
            TooManyJobs: the limit of sessions is reached.
        """

        def refuse(running: str) -> str:
            raise ConnectSessionRuns(
                f"your session runs already, as job {running}", f"end it first: sluice jobs cancel {running}"
            )

        return await self._start(owner, admission, references, refuse)

    async def _start(
        self,
        owner: Principal,
        admission: Admission,
        references: tuple[SecretReference, ...],
        found: Callable[[str], str],
    ) -> ConnectSession:
        lock = self._starting.setdefault(owner.name, asyncio.Lock())
        async with lock:  # the same owner's next call finds the session that this one starts
            job_id = await self._find_or_submit(owner, admission, references, found)
        detail = await self._dispatcher.job(job_id)
        return await self._view(detail)

    async def _find_or_submit(
        self,
        owner: Principal,
        admission: Admission,
        references: tuple[SecretReference, ...],
        found: Callable[[str], str],
    ) -> str:
        # Of two owners at once the later one sees the earlier one: as submitting, or in the list of jobs read
        # afterwards.
        submitting = frozenset(self._submitting)
        self._submitting.add(owner.name)
        try:
            sessions = {job.owner: job.id for job in await self._dispatcher.jobs() if is_live_session(job)}
            if owner.name in sessions:
                return found(sessions[owner.name])
            if len(sessions.keys() | submitting) >= self._config.max_sessions:
                raise TooManyJobs(f"{self._config.max_sessions} Spark Connect sessions are running", "try again later")
            return await self._submit(owner, admission, references)
        finally:
            self._submitting.discard(owner.name)

    async def _submit(self, owner: Principal, admission: Admission, references: tuple[SecretReference, ...]) -> str:
        job_id = secrets.token_hex(16)

        async def prepare() -> JobSubmission:
            return JobSubmission(
                name=SESSION_NAME,
                owner=owner.name,
                owner_roles=owner.roles,
                owner_groups=owner.groups,
                kind=JobKind.CONNECT,
                pipeline=await asyncio.to_thread(self._put_program, job_id),
                args=(str(self._config.idle_seconds),),
                executors=self._config.executors,
                secrets=references,
                admission=admission,
            )

        await submit_with_blobs(self._dispatcher, self._store, job_id, prepare)
        return job_id

    def _put_program(self, job_id: str) -> BlobRef:
        with self._store.writer(job_id, PROGRAM_NAME) as writer:
            writer.write(self._program)
            return writer.commit()

    async def _view(self, detail: JobDetail) -> ConnectSession:
        address = await self._address(detail)
        return ConnectSession(
            job_id=detail.id,
            owner=detail.owner,
            state=detail.state,
            host=address.host,
            port=address.port,
            pending_reason=detail.pending_reason,
        )

    async def _address(self, detail: JobDetail) -> ConnectAddress:
        """The address that its driver reports. It proves nothing: who connects checks the driver's certificate."""
        if detail.state is not JobState.RUNNING:
            return ConnectAddress(host="", port=0)
        try:
            return await self._dispatcher.connect_address(detail.id)
        except SluiceError as error:  # its driver is busy or away; a later call asks again
            _LOG.info("the session %s does not tell where it listens: %s", detail.id, error)
            return ConnectAddress(host="", port=0)


def is_live_session(job: JobSummary) -> bool:
    """Whether ``job`` is a session that can be used, now or soon."""
    return job.kind is JobKind.CONNECT and not job.state.terminal and job.state not in _ENDING
