"""What the Dispatcher keeps of each job besides the state of its state machine."""

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
    """``record`` is the view of the job; ``accepting`` is the task that makes it durable, None when that is done.

    ``attempt`` is the latest one, as it is stored.
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
