"""The typed interfaces between the endpoints of the JobManager process, and for its REST endpoint.

They extend what other processes may call (``runtime.gateways``). What is added here is local: it is called within
the process alone, and no peer may call it, whatever its certificate says.
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
"""How long it may take until something is durable."""
RESULT_SECONDS = 86_400.0
"""A result is not given up: its JobMaster waits until it is durable, or this process does not lead any more."""


class SlotRequirement(Message, frozen=True):
    """A job wants slots of these sizes and numbers in total.

    ``owner`` and ``groups`` are whose limits they count towards, ``queue`` and ``priority`` when it is the job's turn.
    ``ready``: it could use them at once. For a job whose SparkContext is not up nothing is taken from others.
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
        return f"<SlotRequirement of {self.job_id}: {self.kind} {self.wanted}>"  # never the token

    @property
    def count(self) -> int:
        """The number of slots of all sizes."""
        return sum(max(0, each.count) for each in self.wanted)


class ExecutorLogRequest(Message, frozen=True):
    """A piece of ``stdout`` or ``stderr`` of an executor."""

    taskmanager: str
    job_id: str
    executor_id: int
    stream: str
    offset: int
    limit: int


class DriverLogRequest(Message, frozen=True):
    """A piece of the log ``name`` of the driver of an attempt."""

    taskmanager: str
    job_id: str
    attempt: int
    name: str
    offset: int
    limit: int


class ConnectAddress(Message, frozen=True):
    """The address of a session's Spark Connect server; port 0: it does not listen yet."""

    host: str
    port: int


class HistoryPage(Message, frozen=True):
    """Jobs of the history, those that ended last first; ``following`` is where the next page begins, None: nowhere."""

    jobs: tuple[JobSummary, ...]
    following: tuple[int, str] | None = None


class ServiceCounts(Message, frozen=True):
    """How many TaskManagers are registered, how many of them drain, and how many besides those should be in service.

    ``taskmanagers_wanted`` is None where nobody starts them on demand.
    """

    taskmanagers: int
    taskmanagers_draining: int = 0
    taskmanagers_wanted: int | None = None


class ProvisionView(Message, frozen=True):
    """How many TaskManagers should be in service, those that drain not counted, and which are registered."""

    wanted: int
    registered: frozenset[str]
    draining: frozenset[str]


class EgressConnections(Message, frozen=True):
    """Connections of jobs to the outside, the oldest first; ``left_out`` earlier ones are not kept.

    Of what ended before ``since`` (epoch seconds), when this JobManager began to lead, another one was told.
    ``forgotten``: some or all rows of the job may have been known, and are not kept.
    """

    rows: tuple[EgressRow, ...] = ()
    left_out: int = 0
    since: float = 0.0
    forgotten: bool = False


class JobOrigin(Message, frozen=True):
    """The owner of a job as the policy sees it, and the trace that it belongs to."""

    job: EgressJob
    trace: TraceParent = ""


class EgressInternalGateway(EgressGateway, Protocol):
    """What REST asks about connections to the outside."""

    @rpc(local=True)
    async def egress_of(self, job_id: str) -> EgressConnections:
        """What is known of a job's connections; of all jobs when ``job_id`` is empty."""
        ...


class Box(Message, frozen=True):
    """What keeps a process of a job in, and what it may connect to."""

    isolation: IsolationLevel
    egress: EgressMode


class ResourceManagerInternalGateway(ResourceManagerGateway, Protocol):
    """What JobMasters and REST ask of the ResourceManager."""

    @rpc(local=True)
    async def require_slots(self, requirement: SlotRequirement) -> str:
        """State a total; answers why it is not met, empty when it is."""
        ...

    @rpc(local=True)
    async def too_large(self, size: SlotProfile) -> str:
        """Why no TaskManager could ever have a slot of this size; empty when one could, or none is there yet."""
        ...

    @rpc(local=True)
    async def release_slot(self, allocation_id: str) -> None:
        """An allocation is not needed any more."""
        ...

    @rpc(local=True)
    async def release_job(self, job_id: str) -> None:
        """The job is over: it wants nothing and gives everything back."""
        ...

    @rpc(local=True, oneway=True)
    async def expect(self, job_ids: tuple[str, ...]) -> None:
        """TaskManagers may hold slots for these jobs since an earlier leader: they keep them when they register."""
        ...

    @rpc(local=True, oneway=True)
    async def settled(self, job_id: str) -> None:
        """No more such slots are expected for this job."""
        ...

    @rpc(local=True)
    async def taskmanagers(self) -> tuple[TaskManagerView, ...]:
        """All registered TaskManagers."""
        ...

    @rpc(local=True)
    async def queues(self) -> tuple[QueueView, ...]:
        """All queues, with all jobs that hold or lack slots for executors; none where none are configured."""
        ...

    @rpc(local=True)
    async def box_of(self, taskmanager: str) -> Box:
        """What a TaskManager keeps the processes of jobs in; raises ``TaskManagerNotFound``."""
        ...

    @rpc(local=True)
    async def service_counts(self) -> ServiceCounts:
        """How many TaskManagers there are and should be."""
        ...

    @rpc(local=True)
    async def drain_taskmanager(self, name: str, draining: bool) -> None:
        """Give no more slots of a TaskManager and have it leave when none is held, or take that back.

        Raises ``TaskManagerNotFound``, or ``TaskManagerLeaves`` when it cannot be taken back any more.
        """
        ...

    @rpc(local=True, timeout=20.0)
    async def connections(self) -> Evidence:
        """Mutual TLS connections of this process and of all TaskManagers."""
        ...

    @rpc(local=True, timeout=20.0)
    async def read_executor_log(self, request: ExecutorLogRequest) -> LogChunk:
        """A piece of an executor's log, from its TaskManager; raises ``LogNotFound``."""
        ...

    @rpc(local=True, timeout=20.0)
    async def driver_logs(self, taskmanager: str, job_id: str, attempt: int) -> tuple[str, ...]:
        """Which logs the driver of an attempt has; all that it could have when its TaskManager is not there."""
        ...

    @rpc(local=True, timeout=20.0)
    async def read_driver_log(self, request: DriverLogRequest) -> LogChunk:
        """A piece of a driver's log, from its TaskManager; raises ``LogNotFound``."""
        ...

    @rpc(local=True, timeout=20.0)
    async def read_event_log(self, taskmanager: str, job_id: str, attempt: int, offset: int) -> EventLogChunk:
        """A piece of Spark's event log of a driver that has ended; raises ``LogNotFound``."""
        ...

    @rpc(local=True)
    async def ended_ui_hosts(self) -> tuple[str, ...]:
        """The TaskManagers that can show Spark's UI of jobs that have ended: they have a sandbox."""
        ...

    @rpc(local=True, timeout=25.0)
    async def ended_ui_page(self, taskmanager: str, job_id: str, request: UiRequest) -> EndedUiAnswer:
        """A page of the UI of a job that has ended; raises ``TaskManagerNotFound``."""
        ...

    @rpc(local=True, timeout=25.0)
    async def load_ended_ui(self, taskmanager: str, piece: EventLogPiece) -> None:
        """Give a TaskManager a piece of an event log; raises ``TaskManagerNotFound``, or what it raises."""
        ...


class ResourceProviderGateway(ResourceManagerInternalGateway, Protocol):
    """What a resource provider asks of the ResourceManager."""

    @rpc(local=True)
    async def provide(self, note: str) -> ProvisionView:
        """What whoever starts TaskManagers is to compare with those it has; ``note`` is what keeps it from more."""
        ...


class JobMasterInternalGateway(JobMasterGateway, Protocol):
    """What Dispatcher and ResourceManager ask of a JobMaster."""

    @rpc(local=True)
    async def cancel(self) -> None:
        """Cancel the job; raises ``JobAlreadyTerminal``."""
        ...

    @rpc(local=True)
    async def slots_lost(self, allocation_ids: tuple[str, ...], taskmanager: str) -> None:
        """These slots and what ran in them are gone."""
        ...

    @rpc(local=True)
    async def slots_draining(self, allocation_ids: tuple[str, ...], taskmanager: str) -> None:
        """These slots are to be given back soon: what runs in them is moved to others."""
        ...

    @rpc(local=True)
    async def slots_preempted(self, allocation_ids: tuple[str, ...], reason: str, grace: float) -> None:
        """These slots are taken for other jobs: what runs in them has ``grace`` seconds to end in order."""
        ...

    @rpc(local=True)
    async def record(self) -> JobRecord:
        """The job as it is now; its connections are those of earlier attempts, see :meth:`connections`."""
        ...

    @rpc(local=True)
    async def trigger_savepoint(self, savepoint_id: str, stop: bool) -> None:
        """Begin a savepoint; raises ``NotStreaming`` or ``SavepointFailed``."""
        ...

    @rpc(local=True, timeout=20.0)
    async def connections(self) -> Evidence:
        """Mutual TLS connections of the job's driver and executors."""
        ...

    @rpc(local=True, timeout=20.0)
    async def ui(self, request: UiRequest) -> UiPage:
        """A page of the UI of the job's Spark; raises ``UiNotFound``."""
        ...

    @rpc(local=True, timeout=20.0)
    async def connect_address(self) -> ConnectAddress:
        """The address of this session's Spark Connect server."""
        ...


class DispatcherGateway(Protocol):
    """Submission and queries; served to REST and to JobMasters."""

    @rpc(local=True, timeout=DURABLE_SECONDS)
    async def submit_job(self, job_id: str, submission: JobSubmission) -> None:
        """Accept a job whose blobs are stored.

        Raises ``SubmissionRejected``, ``ForbiddenSparkConf`` or ``TooManyJobs``.
        """
        ...

    @rpc(local=True)
    async def jobs(self) -> tuple[JobSummary, ...]:
        """Running and archived jobs, the latest first."""
        ...

    @rpc(local=True, timeout=30.0)
    async def history(self, before: tuple[int, str] | None, limit: int) -> HistoryPage:
        """Ended jobs that are kept, those that ended last first: ``before`` a time (epoch milliseconds) and an id."""
        ...

    @rpc(local=True)
    async def blobs(self) -> tuple[JobBlob, ...]:
        """The files of all jobs that have not ended."""
        ...

    @rpc(local=True, timeout=30.0)
    async def job(self, job_id: str) -> JobDetail:
        """One job, also from the history; raises ``JobNotFound``."""
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
        """A piece of one log; raises ``LogNotFound``."""
        ...

    @rpc(local=True, timeout=30.0)
    async def job_connections(self, job_id: str) -> Evidence:
        """Evidence of the job's mutual TLS connections, also after its end."""
        ...

    @rpc(local=True, timeout=30.0)
    async def job_record(self, job_id: str) -> JobRecord:
        """All that is known of a job now, or was at its end; connections of the present attempt are asked for apart.

        Raises ``JobNotFound``.
        """
        ...

    @rpc(local=True, timeout=30.0)
    async def job_ui(self, job_id: str, request: UiRequest) -> UiPage:
        """A page of the UI of a job's Spark; status 202 while the event log of one that has ended is read.

        Raises ``UiNotFound`` or ``UiNotReady``.
        """
        ...

    @rpc(local=True, timeout=30.0)
    async def job_ui_state(self, job_id: str) -> SparkUiView:
        """Whether there is such a UI; raises ``JobNotFound``."""
        ...

    @rpc(local=True, timeout=30.0)
    async def connect_address(self, job_id: str) -> ConnectAddress:
        """Where the Spark Connect server of a session listens; port 0 while there is none. Raises ``JobNotFound``."""
        ...

    @rpc(local=True, oneway=True)
    async def job_updated(self, detail: JobDetail) -> None:
        """A JobMaster shows the latest state of its job."""
        ...

    @rpc(local=True, timeout=RESULT_SECONDS)
    async def job_ended(self, record: JobRecord) -> None:
        """A job is globally terminal."""
        ...

    @rpc(local=True, oneway=True)
    async def job_history(self, job_id: str, history: JobHistory) -> None:
        """A JobMaster tells what the next leader is to know of its job's past."""
        ...

    @rpc(local=True, timeout=RESULT_SECONDS)
    async def driver_placed(self, job_id: str, taskmanager: str) -> None:
        """The driver of a job is about to be launched there; that is durable when this returns."""
        ...

    @rpc(local=True, timeout=RESULT_SECONDS)
    async def attempt_failed(self, job_id: str) -> float | None:
        """An attempt failed; after how many seconds is there to be another one, None: not at all."""
        ...

    @rpc(local=True, timeout=RESULT_SECONDS)
    async def job_restarting(self, record: JobRecord, delay: float) -> None:
        """An attempt is over and everything of it given back; the next one is to begin after ``delay`` seconds."""
        ...

    @rpc(local=True, timeout=30.0)
    async def trigger_savepoint(self, job_id: str, stop: bool) -> str:
        """Begin a savepoint, with ``stop`` the job ends with it; answers its id.

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
        """Everything of a job that has ended is given back; its JobMaster may go."""
        ...
