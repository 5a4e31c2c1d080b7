"""Whose a job is, and how it is called: asked of REST, for a certificate says only which job a process belongs to."""

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
"""A job with many executors and attempts."""
EXPECTED = frozenset({200})
KEPT_SECONDS = 5.0
"""How long an answer counts: a job that has ended connects nowhere after that."""
MAX_KEPT = 10_000

AUTH_SERVICE = Principal("auth-service", (), "session", Credential.of_session(SessionId("")))
"""In whose name it is asked."""
ENDED = frozenset({"FINISHED", "FAILED", "CANCELED"})
"""States in which nothing of a job runs."""


class JobUnknown(SluiceError):
    """Nobody knows whose the job is, or it has ended."""


class _Job(msgspec.Struct, frozen=True):
    id: str
    name: str
    owner: str
    state: str
    owner_roles: tuple[str, ...] = ()
    owner_groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RestJobs:
    """REST's resource of a job; ``signer`` signs what ``rest`` asks."""

    signer: AssertionSigner
    rest: RestClient

    async def ask(self, job_id: str) -> EgressSubject:
        """The running job ``job_id`` (32 hexadecimal digits); raises :class:`JobUnknown`."""
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
            raise JobUnknown(f"REST does not tell whose the job is: {error}") from error
        if job.id != job_id or job.state in ENDED:
            raise JobUnknown(f"the job is {job.state}")
        return EgressSubject(job_id, job.name, job.owner, job.owner_roles, job.owner_groups)


class JobOwners:
    """Answers of ``ask``, kept for a short time; many questions about one job at once are one.

    Args:
        ask: tells whose a job is.
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
        """The job; raises :class:`JobUnknown`."""
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
