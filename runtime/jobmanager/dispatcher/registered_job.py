"""What the Dispatcher knows of one job, besides what its state machine decides by."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from sluice.runtime.jobmanager.attempt import JobMaster
from sluice.runtime.jobmanager.errors import JobNotFound
from sluice.runtime.jobmanager.gateways import JobMasterInternalGateway
from sluice.runtime.jobmanager.store import Attempt, JobHistory
from sluice.runtime.jobmanager.views import JobRecord
from sluice.runtime.rpc import Host


@dataclass(slots=True)
class RegisteredJob:
    """``record`` is how the job is shown; ``accepting`` is what makes it durable, None once it is.

    ``attempt`` is the latest one, as it is written down.
    """

    record: JobRecord
    master: JobMaster | None = None
    history: JobHistory = field(default_factory=JobHistory)
    accepting: asyncio.Task[None] | None = None
    attempt: Attempt | None = None

    @property
    def terminal(self) -> bool:
        """Whether the job has ended."""
        return self.record.detail.state.terminal

    def master_gateway(self, host: Host) -> JobMasterInternalGateway | None:
        """The JobMaster of the job, in the process ``host``; None when none runs."""
        if self.master is None or not self.master.running:
            return None
        return host.local(JobMasterInternalGateway, self.master.name, token=self.master.token)


class RegisteredJobs(dict[str, RegisteredJob]):
    """All jobs by id, in the order in which they came."""

    def __missing__(self, job_id: str) -> RegisteredJob:
        raise JobNotFound(f"there is no job {job_id[:64]!r}", "see the list of jobs")
