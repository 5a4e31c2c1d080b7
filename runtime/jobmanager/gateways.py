"""The typed interfaces between the endpoints of the JobManager process, also for its REST endpoint.

They extend the gateways that other processes may call (``runtime.gateways``). The methods added here are local: only
code in this process can call them. No peer may, whatever its certificate.
"""

from __future__ import annotations

from typing import Protocol

from sluice.core import EgressJob, EgressMode, EgressRow, TraceParent
from sluice.runtime.checkpoint import Savepoint
from sluice.runtime.gateways import EgressGateway, JobMasterGateway, ResourceManagerGateway
from sluice.runtime.jobmanager.store import JobHistory
from sluice.runtime.jobmanager.views import (
    JobBlob,
    JobDetail,
    JobRecord,
    JobSummary,
    QueueView,
    SparkUiView,
    TaskManagerView,
)
from sluice.runtime.messages import (
    EndedUiAnswer,
    EventLogChunk,
    EventLogPiece,
    Evidence,
    JobSubmission,
    LogChunk,
    Message,
    SlotCount,
    SlotKind,
    SlotProfile,
    UiPage,
    UiRequest,
)
from sluice.runtime.rpc import rpc
from sluice.runtime.sandbox import IsolationLevel

DISPATCHER = "dispatcher"
DURABLE_SECONDS = 120.0
"""Timeout of calls that return when something is durable, in seconds."""
RESULT_SECONDS = 86_400.0
"""In effect no timeout: a JobMaster waits until its result is durable, or this process is no longer the leader."""


class SlotRequirement(Message, frozen=True):
    """The total number of slots of each size that a job wants.

    The slots count towards the limits of ``owner`` and ``groups``; ``queue`` and ``priority`` decide the job's turn.
    ``ready`` means that the job can use slots at once. Without it, no slots are taken from other jobs: the job has no
    SparkContext yet.
    """

    job_id: str
    wanted: tuple[SlotCount, ...]
    jobmaster_endpoint: str
    jobmaster_token: bytes
    owner: str = ""
    kind: SlotKind = SlotKind.EXECUTOR
    groups: tuple[str, ...] = ()
    queue: str = ""
    priority: int = 0
    ready: bool = True

    def __repr__(self) -> str:
        return f"<SlotRequirement of {self.job_id}: {self.kind} {self.wanted}>"  # without the token

    @property
    def count(self) -> int:
        """The number of wanted slots of all sizes together."""
        return sum(max(0, each.count) for each in self.wanted)


class ExecutorLogRequest(Message, frozen=True):
    """A request for a chunk of ``stdout`` or ``stderr`` of an executor."""

    taskmanager: str
    job_id: str
    executor_id: int
    stream: str
    offset: int
    limit: int


class DriverLogRequest(Message, frozen=True):
    """A request for a chunk of the log ``name`` of the driver of an attempt."""

    taskmanager: str
    job_id: str
    attempt: int
    name: str
    offset: int
    limit: int


class ConnectAddress(Message, frozen=True):
    """The address of a session's Spark Connect server; port 0 when it does not listen yet."""

    host: str
    port: int


class HistoryPage(Message, frozen=True):
    """A page of the history, latest end first; ``following`` is the start of the next page, None on the last one."""

    jobs: tuple[JobSummary, ...]
    following: tuple[int, str] | None = None


class ServiceCounts(Message, frozen=True):
    """How many TaskManagers are registered, how many of them are draining, and how many others should be in service.

    ``taskmanagers_wanted`` is None in clusters that do not start TaskManagers on demand.
    """

    taskmanagers: int
    taskmanagers_draining: int = 0
    taskmanagers_wanted: int | None = None


class ProvisionView(Message, frozen=True):
    """How many TaskManagers should be in service, without those that are draining, and which ones are registered."""

    wanted: int
    registered: frozenset[str]
    draining: frozenset[str]


class EgressConnections(Message, frozen=True):
    """Outgoing connections of jobs, the oldest first; ``left_out`` earlier ones are not kept.

    This JobManager began to lead at ``since`` (epoch seconds); connections that ended before were reported to another
    one. ``forgotten`` means that rows of the job may have been known, and are not kept.
    """

    rows: tuple[EgressRow, ...] = ()
    left_out: int = 0
    since: float = 0.0
    forgotten: bool = False


class JobOrigin(Message, frozen=True):
    """The owner of a job as the policy sees it, and the trace of the job."""

    job: EgressJob
    trace: TraceParent = ""


class EgressInternalGateway(EgressGateway, Protocol):
    """The queries of REST about outgoing connections."""

    @rpc(local=True)
    async def egress_connections(self, job_id: str) -> EgressConnections:
        """The known connections of a job; those of all jobs when ``job_id`` is empty."""
        ...


class SandboxView(Message, frozen=True):
    """The sandbox of a process of a job: its isolation level, and what it may connect to."""

    isolation: IsolationLevel
    egress: EgressMode


class ResourceManagerInternalGateway(ResourceManagerGateway, Protocol):
    """The ResourceManager's methods for JobMasters and REST."""

    @rpc(local=True)
    async def require_slots(self, requirement: SlotRequirement) -> str:
        """State the total of slots that a job wants; returns why it is not met, empty when it is."""
        ...

    @rpc(local=True)
    async def too_large(self, size: SlotProfile) -> str:
        """Why no TaskManager can ever have a slot of this size; empty when one can, or none is registered yet."""
        ...

    @rpc(local=True)
    async def release_slot(self, allocation_id: str) -> None:
        """Give back an allocation."""
        ...

    @rpc(local=True)
    async def release_job(self, job_id: str) -> None:
        """Give back everything of a job that is over."""
        ...

    @rpc(local=True, oneway=True)
    async def expect_held_slots(self, job_ids: tuple[str, ...]) -> None:
        """Expect TaskManagers to hold slots for these jobs from an earlier leader; they keep them on registration."""
        ...

    @rpc(local=True, oneway=True)
    async def held_slots_settled(self, job_id: str) -> None:
        """Expect no more such slots for this job."""
        ...

    @rpc(local=True)
    async def taskmanagers(self) -> tuple[TaskManagerView, ...]:
        """All registered TaskManagers."""
        ...

    @rpc(local=True)
    async def queues(self) -> tuple[QueueView, ...]:
        """All queues, with the jobs that hold or lack slots for executors; empty when no queues are configured."""
        ...

    @rpc(local=True)
    async def sandbox_of(self, taskmanager: str) -> SandboxView:
        """The sandbox in which a TaskManager runs the processes of jobs; raises ``TaskManagerNotFound``."""
        ...

    @rpc(local=True)
    async def service_counts(self) -> ServiceCounts:
        """How many TaskManagers are registered, and how many should be."""
        ...

    @rpc(local=True)
    async def drain_taskmanager(self, name: str, draining: bool) -> None:
        """Drain a TaskManager: it gives no more slots, and leaves when none is held. ``draining`` False undoes that.

        Raises ``TaskManagerNotFound``, or ``TaskManagerLeaves`` when it is too late to undo it.
        """
        ...

    @rpc(local=True, timeout=20.0)
    async def connections(self) -> Evidence:
        """Mutual TLS connections of this process and of all TaskManagers."""
        ...

    @rpc(local=True, timeout=20.0)
    async def read_executor_log(self, request: ExecutorLogRequest) -> LogChunk:
        """A chunk of an executor's log, from its TaskManager; raises ``LogNotFound``."""
        ...

    @rpc(local=True, timeout=20.0)
    async def driver_logs(self, taskmanager: str, job_id: str, attempt: int) -> tuple[str, ...]:
        """The names of the logs of a driver; all possible names when its TaskManager is not there."""
        ...

    @rpc(local=True, timeout=20.0)
    async def read_driver_log(self, request: DriverLogRequest) -> LogChunk:
        """A chunk of a driver's log, from its TaskManager; raises ``LogNotFound``."""
        ...

    @rpc(local=True, timeout=20.0)
    async def read_event_log(self, taskmanager: str, job_id: str, attempt: int, offset: int) -> EventLogChunk:
        """A chunk of Spark's event log of an ended driver; raises ``LogNotFound``."""
        ...

    @rpc(local=True)
    async def ended_ui_hosts(self) -> tuple[str, ...]:
        """The TaskManagers that can show Spark's UI of ended jobs, because they have a sandbox."""
        ...

    @rpc(local=True, timeout=25.0)
    async def ended_ui_page(self, taskmanager: str, job_id: str, request: UiRequest) -> EndedUiAnswer:
        """A page of Spark's UI of an ended job; raises ``TaskManagerNotFound``."""
        ...

    @rpc(local=True, timeout=25.0)
    async def load_ended_ui(self, taskmanager: str, piece: EventLogPiece) -> None:
        """Send a chunk of an event log to a TaskManager; raises ``TaskManagerNotFound`` or the TaskManager's error."""
        ...


class ResourceProviderGateway(ResourceManagerInternalGateway, Protocol):
    """The ResourceManager's method for resource providers."""

    @rpc(local=True)
    async def provide(self, note: str) -> ProvisionView:
        """The TaskManagers that a provider should have. ``note`` says what keeps the provider from starting more."""
        ...


class JobMasterInternalGateway(JobMasterGateway, Protocol):
    """The JobMaster's methods for the Dispatcher and the ResourceManager."""

    @rpc(local=True)
    async def cancel(self) -> None:
        """Cancel the job; raises ``JobAlreadyTerminal``."""
        ...

    @rpc(local=True)
    async def slots_lost(self, allocation_ids: tuple[str, ...], taskmanager: str) -> None:
        """Note that these slots, and the processes in them, are gone."""
        ...

    @rpc(local=True)
    async def slots_draining(self, allocation_ids: tuple[str, ...], taskmanager: str) -> None:
        """Move the processes in these slots to other slots: these must be given back soon."""
        ...

    @rpc(local=True)
    async def slots_preempted(self, allocation_ids: tuple[str, ...], reason: str, grace: float) -> None:
        """End the processes in these slots within ``grace`` seconds: other jobs get the slots."""
        ...

    @rpc(local=True)
    async def record(self) -> JobRecord:
        """The current record of the job. Its connections are those of earlier attempts, see :meth:`connections`."""
        ...

    @rpc(local=True)
    async def trigger_savepoint(self, savepoint_id: str, stop: bool) -> None:
        """Begin a savepoint; with ``stop``, the job ends with it. Raises ``NotStreaming`` or ``SavepointFailed``."""
        ...

    @rpc(local=True, timeout=20.0)
    async def connections(self) -> Evidence:
        """Mutual TLS connections of the job's driver and executors."""
        ...

    @rpc(local=True, timeout=20.0)
    async def ui(self, request: UiRequest) -> UiPage:
        """A page of Spark's UI of the job; raises ``UiNotFound``."""
        ...

    @rpc(local=True, timeout=20.0)
    async def connect_address(self) -> ConnectAddress:
        """The address of this session's Spark Connect server."""
        ...


class DispatcherGateway(Protocol):
    """The Dispatcher's methods for REST and for JobMasters: submission, queries, and reports about jobs."""

    @rpc(local=True, timeout=DURABLE_SECONDS)
    async def submit_job(self, job_id: str, submission: JobSubmission) -> None:
        """Accept a job. Its blobs must be stored already.

        Raises ``SubmissionRejected``, ``ForbiddenSparkConf`` or ``TooManyJobs``.
        """
        ...

    @rpc(local=True)
    async def jobs(self) -> tuple[JobSummary, ...]:
        """Running and archived jobs, the latest first."""
        ...

    @rpc(local=True, timeout=30.0)
    async def history(self, before: tuple[int, str] | None, limit: int) -> HistoryPage:
        """A page of ended jobs, latest end first, from ``before``: an end time (epoch milliseconds) and an id."""
        ...

    @rpc(local=True)
    async def blobs(self) -> tuple[JobBlob, ...]:
        """The files of all unfinished jobs."""
        ...

    @rpc(local=True, timeout=30.0)
    async def job(self, job_id: str) -> JobDetail:
        """One job, possibly from the history; raises ``JobNotFound``."""
        ...

    @rpc(local=True)
    async def job_origin(self, job_id: str) -> JobOrigin:
        """The owner of a job; raises ``JobNotFound``."""
        ...

    @rpc(local=True, timeout=DURABLE_SECONDS)
    async def cancel_job(self, job_id: str) -> None:
        """Cancel a job; raises ``JobNotFound`` or ``JobAlreadyTerminal``."""
        ...

    @rpc(local=True, timeout=30.0)
    async def job_logs(self, job_id: str) -> tuple[str, ...]:
        """Names of the logs of a job."""
        ...

    @rpc(local=True, timeout=30.0)
    async def read_job_log(self, job_id: str, source: str, offset: int, limit: int) -> LogChunk:
        """A chunk of one log; raises ``LogNotFound``."""
        ...

    @rpc(local=True, timeout=30.0)
    async def job_connections(self, job_id: str) -> Evidence:
        """Evidence of the job's mutual TLS connections, before and after its end."""
        ...

    @rpc(local=True, timeout=30.0)
    async def job_record(self, job_id: str) -> JobRecord:
        """The record of a job, now or at its end, without the connections of the current attempt.

        Raises ``JobNotFound``.
        """
        ...

    @rpc(local=True, timeout=30.0)
    async def job_ui(self, job_id: str, request: UiRequest) -> UiPage:
        """A page of Spark's UI of a job; status 202 while the event log of an ended job is being read.

        Raises ``UiNotFound`` or ``UiNotReady``.
        """
        ...

    @rpc(local=True, timeout=30.0)
    async def job_ui_state(self, job_id: str) -> SparkUiView:
        """Whether Spark's UI of a job is available; raises ``JobNotFound``."""
        ...

    @rpc(local=True, timeout=30.0)
    async def connect_address(self, job_id: str) -> ConnectAddress:
        """The address of a session's Spark Connect server; port 0 when it does not listen. Raises ``JobNotFound``."""
        ...

    @rpc(local=True, oneway=True)
    async def job_updated(self, detail: JobDetail) -> None:
        """Publish the latest state of a job."""
        ...

    @rpc(local=True, timeout=RESULT_SECONDS)
    async def job_ended(self, record: JobRecord) -> None:
        """Record the result of a job that is globally terminal; durable when this returns."""
        ...

    @rpc(local=True, oneway=True)
    async def job_history(self, job_id: str, history: JobHistory) -> None:
        """Store the history of a job for the next leader."""
        ...

    @rpc(local=True, timeout=RESULT_SECONDS)
    async def driver_placed(self, job_id: str, taskmanager: str) -> None:
        """Record where the driver of a job is about to be launched; durable when this returns."""
        ...

    @rpc(local=True, timeout=RESULT_SECONDS)
    async def attempt_failed(self, job_id: str) -> float | None:
        """Note that an attempt failed; returns the seconds until the next attempt, None when there is none."""
        ...

    @rpc(local=True, timeout=RESULT_SECONDS)
    async def job_restarting(self, record: JobRecord, delay: float) -> None:
        """Begin the next attempt after ``delay`` seconds: the last one is over, and has given everything back."""
        ...

    @rpc(local=True, timeout=30.0)
    async def trigger_savepoint(self, job_id: str, stop: bool) -> str:
        """Begin a savepoint, and return its id; with ``stop``, the job ends with it.

        Raises ``NotStreaming`` or ``SavepointFailed``.
        """
        ...

    @rpc(local=True, timeout=30.0)
    async def savepoints(self) -> tuple[Savepoint, ...]:
        """All complete savepoints, the latest first."""
        ...

    @rpc(local=True, timeout=30.0)
    async def savepoint(self, savepoint_id: str) -> Savepoint:
        """One savepoint, by its id or path; raises ``SavepointNotFound``."""
        ...

    @rpc(local=True, timeout=DURABLE_SECONDS)
    async def dispose_savepoint(self, savepoint_id: str) -> None:
        """Remove a savepoint; raises ``SavepointNotFound``, or ``SavepointFailed`` when a job needs it."""
        ...

    @rpc(local=True)
    async def job_released(self, job_id: str) -> None:
        """Remove the JobMaster of an ended job that has given everything back."""
        ...
