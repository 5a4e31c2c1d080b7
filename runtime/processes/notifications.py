"""The notification sources of the leading JobManager: jobs, processes and authorities of its cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cryptography import x509

from sluice.core import Clock, Home, end_tasks, repeat, utc_now
from sluice.pki.authorities import AuthorityStore
from sluice.pki.ca import needing_attention
from sluice.pki.x509 import AuthorityKind, key_id
from sluice.runtime.ha import PointerStore
from sluice.runtime.jobmanager import JobSummary
from sluice.runtime.messages import JobState
from sluice.runtime.notify import (
    Event,
    Kind,
    Notifier,
    NotifyConfig,
    Source,
    audit_finding,
    authority_near_its_end,
    certificate_not_renewed,
    certificates_in,
    job_failed,
    superseded_renewal,
    worker_excluded,
)
from sluice.runtime.rest import read_summary
from sluice.runtime.shuffle.control_plane import ShuffleOverview, WorkerState

LOOK_SECONDS = 15.0
_FOLDER, _NAME = "meta", "notifications"


@dataclass(frozen=True, slots=True)
class PointerEntry:
    """Stores the delivery state of notifications in a pointer: only the leader writes it, the next leader reads it."""

    pointers: PointerStore

    async def read(self) -> bytes | None:
        """Return what was written last, or None."""
        found = await self.pointers.get(_FOLDER, _NAME)
        return None if found is None else found.value

    async def write(self, data: bytes) -> None:
        """Replace the stored state."""
        found = await self.pointers.get(_FOLDER, _NAME)
        if found is None:
            await self.pointers.create(_FOLDER, _NAME, data)
        else:
            await self.pointers.replace(_FOLDER, _NAME, data, found.version)


@dataclass(frozen=True, slots=True)
class ClusterEvents:
    """The events of the cluster that this JobManager leads.

    Attributes:
        home: home of this process.
        anchor: returns the authority of this process's certificate.
        jobs: returns the known jobs.
        metrics: returns the metrics of the processes of this home and of all TaskManagers.
        overview: returns the overview of the shuffle service; None where there is none.
        clock: returns the current time.
    """

    home: Home
    anchor: Callable[[], x509.Certificate]
    jobs: Callable[[], Awaitable[Sequence[JobSummary]]]
    metrics: Callable[[], Awaitable[str]]
    overview: Callable[[], Awaitable[ShuffleOverview]] | None
    clock: Clock = utc_now

    def sources(self) -> dict[Kind, Source]:
        """The source of each kind of event."""
        return {
            Kind.JOB_FAILED: self.failed_jobs,
            Kind.CERTIFICATE_NOT_RENEWED: self.certificates,
            Kind.AUTHORITY_ENDS: self.authorities,
            Kind.WORKER_EXCLUDED: self.workers,
            Kind.AUDIT_FINDING: self.audit,
            Kind.SUPERSEDED_RENEWAL: self.superseded,
        }

    async def failed_jobs(self) -> Sequence[Event]:
        """Jobs that have failed for good and are still kept."""
        return [
            job_failed(each.id, each.name, each.owner, each.end_time / 1000)
            for each in await self.jobs()
            if each.state is JobState.FAILED and each.end_time is not None
        ]

    async def certificates(self) -> Sequence[Event]:
        """Processes of this home, and TaskManagers anywhere, whose certificate is overdue for renewal."""
        now = self.clock().timestamp()
        found = await asyncio.to_thread(lambda text: list(certificates_in(text)), await self.metrics())
        events = [certificate_not_renewed(each, now) for each in found]
        return [each for each in events if each is not None]

    async def authorities(self) -> Sequence[Event]:
        """Signing authorities that expire soon: those of this home, and the one of this process's certificate."""
        return await asyncio.to_thread(self._authorities)

    def _authorities(self) -> Sequence[Event]:
        store, signing = AuthorityStore(self.home.pki), self.anchor()
        known = {kind: store.certificate(kind) for kind in AuthorityKind if store.exists(kind)}
        if key_id(signing) not in {key_id(each) for each in known.values()}:
            known[AuthorityKind.INTERNAL] = signing
        now = self.clock().timestamp()
        events = [authority_near_its_end(kind.value, each, now) for kind, each in known.items()]
        return [each for each in events if each is not None]

    async def workers(self) -> Sequence[Event]:
        """Excluded ShuffleWorkers."""
        if self.overview is None:
            return ()
        now = self.clock().timestamp()
        return [
            worker_excluded(each.name, each.reason, now)
            for each in (await self.overview()).workers
            if each.state is WorkerState.EXCLUDED
        ]

    async def audit(self) -> Sequence[Event]:
        """The findings of the last ``sluice audit`` of this home."""
        summary = await asyncio.to_thread(read_summary, self.home)
        event = None if summary is None else audit_finding(summary.findings, summary.at)
        return () if event is None else (event,)

    async def superseded(self) -> Sequence[Event]:
        """Renewals that the online authority of this home has refused because a newer certificate exists."""
        refused = await asyncio.to_thread(needing_attention, self.home, self.clock())
        return [superseded_renewal(each) for each in refused]


@asynccontextmanager
async def run_notifier(
    config: NotifyConfig, cluster: str, events: ClusterEvents, pointers: PointerStore
) -> AsyncIterator[None]:
    """Send ``events`` to the receivers of ``config`` for the duration of the block; do nothing without receivers."""
    if not config.receivers:
        yield
        return
    notifier = Notifier(config, cluster, events.sources(), PointerEntry(pointers))
    task = asyncio.create_task(repeat(notifier.step, LOOK_SECONDS, "notifications are not sent"), name="notify")
    try:
        yield
    finally:
        await end_tasks(task)
