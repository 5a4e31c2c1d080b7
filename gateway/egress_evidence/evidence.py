"""Answers JobManagers about external connections of jobs: records rows, and decides about open destinations.

Rows arrive at least once. Rows that are already in the audit log are recognised by their id. This also works after a
restart, because the ids at the end of the log are read back.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence

from prometheus_client import Counter

from sluice.core import ANY_PORT, REGISTRY, EgressAnswer, EgressJob, EgressQuestion, EgressTarget
from sluice.gateway.audit_log import AuditRecord
from sluice.gateway.authz import EgressSubject, Policy
from sluice.gateway.egress_evidence.narrowing import Narrowing
from sluice.gateway.egress_evidence.records import record_of, record_of_loss, row_id

MAX_KNOWN_IDS = 50_000
"""Maximum number of cached ids of recorded rows. Rows are resent within seconds, or after an outage."""
READ_BACK_RECORDS = 20_000
"""Number of records at the end of the log that are read for the first request."""

ROWS = Counter(
    "sluice_egress_recorded_total",
    "Rows about external connections of jobs that were recorded in the audit log, by decision.",
    ["decision"],
    registry=REGISTRY,
)

Append = Callable[[Sequence[AuditRecord]], Awaitable[None]]
"""Appends to the audit log. The records are in the log on return."""


class EgressEvidence:
    """Handles requests one after another.

    Args:
        policy: returns the current policy; raises if there is none.
        append: appends records to the audit log.
        read_back: returns the last records of the log.
        clock: monotonic clock in seconds.
    """

    def __init__(
        self,
        policy: Callable[[], Policy],
        append: Append,
        read_back: Callable[[int], Iterable[AuditRecord]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy = policy
        self._append = append
        self._read_back = read_back
        self._known: OrderedDict[str, None] | None = None
        self._turn = asyncio.Lock()
        self._narrowing = Narrowing(clock)

    async def answer(self, question: EgressQuestion) -> EgressAnswer:
        """Record all rows, then decide about all destinations. Raises ``SluiceError`` if either is not possible."""
        jobs = {job.id: job for job in question.jobs}
        async with self._turn:
            await self._record(question, jobs)
        policy = self._policy()
        return EgressAnswer(allowed=tuple(self._allows(policy, jobs, target) for target in question.targets))

    def _allows(self, policy: Policy, jobs: dict[str, EgressJob], target: EgressTarget) -> bool:
        """Whether the policy allows ``target``. A job without an owner is denied."""
        job = jobs.get(target.job_id)
        if job is None or not job.owner:
            return False
        subject = EgressSubject(job.id, job.name, job.owner, job.roles, job.groups)
        if target.port == ANY_PORT:
            return policy.egress_rules.decide_any_port(subject, target.host).allowed
        ruling = policy.egress(subject, target.host, target.port)
        return ruling.allowed and not self._narrowing.refuses(target, ruling)

    async def _record(self, question: EgressQuestion, jobs: dict[str, EgressJob]) -> None:
        if not question.rows and not question.lost:
            return
        known = await self._ids()
        fresh = {told.row.id: told for told in question.rows if told.row.id not in known}
        records = [
            record_of(told, jobs.get(told.row.job_id) or EgressJob(id=told.row.job_id, name="", owner=""))
            for told in fresh.values()
        ]
        losses = [record_of_loss(reporter, rows) for reporter, rows in question.lost.items() if rows]
        await self._append([*records, *losses])
        for record in records:
            ROWS.labels(record.decision).inc()
        known.update(dict.fromkeys(fresh))
        while len(known) > MAX_KNOWN_IDS:
            known.popitem(last=False)

    async def _ids(self) -> OrderedDict[str, None]:
        """The ids of recorded rows, as far back as rows may be resent."""
        if self._known is None:
            self._known = await asyncio.to_thread(self._read_ids)
        return self._known

    def _read_ids(self) -> OrderedDict[str, None]:
        found = (row_id(record) for record in self._read_back(READ_BACK_RECORDS))
        return OrderedDict((each, None) for each in found if each)
