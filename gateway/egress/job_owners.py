"""Finds the owner and the name of a job by asking REST. A certificate only says to which job a process belongs."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from sluice.core import SluiceError
from sluice.gateway.authz import EgressSubject
from sluice.gateway.credentials import AssertionSigner
from sluice.gateway.rest_client import RestClient, RestUnavailable
from sluice.pki.assertions import Credential, Principal, SessionId

ANSWER_SECONDS = 5.0
MAX_ANSWER_BYTES = 4 << 20
"""Enough for a job with many executors and attempts."""
EXPECTED = frozenset({200})
KEPT_SECONDS = 5.0
"""How long an answer is cached. A job that has ended can make no connections after that."""
MAX_KEPT = 10_000

AUTH_SERVICE = Principal("auth-service", (), "session", Credential.of_session(SessionId("")))
"""The principal of the requests to REST."""
ENDED = frozenset({"FINISHED", "FAILED", "CANCELED"})
"""States in which no process of a job runs."""


class JobUnknown(SluiceError):
    """The owner of the job is unknown, or the job has ended."""


class _Job(msgspec.Struct, frozen=True):
    id: str
    name: str
    owner: str
    state: str
    owner_roles: tuple[str, ...] = ()
    owner_groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RestJobs:
    """Asks REST about jobs. ``signer`` signs the requests that ``rest`` sends."""

    signer: AssertionSigner
    rest: RestClient

    async def ask(self, job_id: str) -> EgressSubject:
        """The running job ``job_id`` (32 hexadecimal digits). Raises :class:`JobUnknown`."""
        path = f"/v1/jobs/{job_id}"
        assertion = self.signer.sign(
            AUTH_SERVICE, method="GET", target=path, operation="jobs.read", request_id="", any_owner=True
        )
        try:
            body = await self.rest.request(
                "GET", path, assertion, expected=EXPECTED, seconds=ANSWER_SECONDS, max_bytes=MAX_ANSWER_BYTES
            )
            job = msgspec.json.decode(body, type=_Job)
        except (RestUnavailable, msgspec.MsgspecError) as error:
            raise JobUnknown(f"cannot get the owner of the job from REST: {error}") from error
        if job.id != job_id or job.state in ENDED:
            raise JobUnknown(f"the job is {job.state}")
        return EgressSubject(job_id, job.name, job.owner, job.owner_roles, job.owner_groups)


class JobOwners:
    """Caches answers of ``ask`` for a short time. Concurrent requests for one job are combined.

    Args:
        ask: finds the owner of a job.
        monotonic: a clock in seconds.
    """

    def __init__(
        self, ask: Callable[[str], Awaitable[EgressSubject]], *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._monotonic = monotonic
        self._known: OrderedDict[str, tuple[float, EgressSubject]] = OrderedDict()
        self._asking: dict[str, asyncio.Task[EgressSubject]] = {}

    async def find(self, job_id: str) -> EgressSubject:
        """The job. Raises :class:`JobUnknown`."""
        known = self._known.get(job_id)
        if known is not None and self._monotonic() - known[0] < KEPT_SECONDS:
            return known[1]
        asking = self._asking.get(job_id)
        if asking is None:
            asking = self._asking[job_id] = asyncio.create_task(self._find(job_id))
            asking.add_done_callback(lambda _: self._asking.pop(job_id, None))
        return await asyncio.shield(asking)

    async def _find(self, job_id: str) -> EgressSubject:
        subject = await self._ask(job_id)
        self._known[job_id] = (self._monotonic(), subject)
        self._known.move_to_end(job_id)
        while len(self._known) > MAX_KEPT:
            self._known.popitem(last=False)
        return subject
