"""The JobManager's views: immutable snapshots in exactly the shapes of the REST API.

Times are epoch milliseconds.
"""

from __future__ import annotations

import enum

from sluice.core import EgressMode
from sluice.runtime.checkpoint import CheckpointsView
from sluice.runtime.messages import (
    ConnectionEvidence,
    Evidence,
    JobKind,
    JobProgress,
    JobState,
    JobSubmission,
    Message,
    SlotProfile,
    SlotState,
    StageTable,
    WarmJvms,
)
from sluice.runtime.sandbox import IsolationLevel


class Failure(Message, frozen=True):
    """Why a job failed: one line, and the pipeline's Python traceback if it has one."""

    error: str
    traceback: str = ""


class AttemptView(Message, frozen=True):
    """One attempt of a job. ``outcome`` is empty while it runs; ``error`` is empty unless it failed.

    ``taskmanager`` is where the driver ran and where its logs are; empty while the driver waits for a slot.
    """

    number: int
    started_at: int
    ended_at: int | None = None
    outcome: str = ""
    error: str = ""
    taskmanager: str = ""


class ExceptionEntry(Message, frozen=True):
    """An exception of a job: the attempt, the time, and the place if it is known.

    ``error`` is one line; ``root_cause`` is the innermost cause. ``ended_attempt`` distinguishes failures of the driver
    from those of a task or an executor. ``recovered``: whether the job recovered from it; null while that is unknown.
    """

    attempt: int
    time: int
    error: str
    root_cause: str
    traceback: str = ""
    task: str = ""
    executor: int | None = None
    taskmanager: str = ""
    ended_attempt: bool = False
    recovered: bool | None = None


class SavepointState(enum.StrEnum):
    """The state of a requested savepoint."""

    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class SavepointRequest(Message, frozen=True):
    """A requested savepoint. It has a ``path`` when it is complete, and an ``error`` when it failed."""

    id: str
    requested_at: int
    stop: bool
    state: SavepointState = SavepointState.IN_PROGRESS
    path: str = ""
    error: str = ""


class ExecutorView(Message, frozen=True):
    """One executor of a job; ``state`` is one of :class:`sluice.runtime.jobmanager.attempt.ExecutorState`."""

    id: int
    taskmanager: str
    slot: int
    state: str
    exit_reason: str
    started_at: int


class ProcessIdentity(Message, frozen=True):
    """The certificates of one process of a job in one attempt, signed at the request of the JobMaster.

    Attributes:
        identity: the SPIFFE ID.
        attempt: the attempt in which the process ran.
        taskmanager: the TaskManager on which it ran.
        isolation: the isolation level of jobs on that TaskManager; empty when unknown.
        egress: the egress mode of jobs on that TaskManager; empty when unknown.
        serials: the serial numbers of the latest certificates, in hexadecimal.
        certificates: the number of certificates, renewals included.
        not_before: start of validity of the first certificate, in epoch seconds.
        not_after: end of validity of the latest certificate, in epoch seconds.
    """

    identity: str
    attempt: int
    taskmanager: str
    isolation: str
    egress: str
    serials: tuple[str, ...]
    certificates: int
    not_before: int
    not_after: int


class JobSummary(Message, frozen=True):
    """A job as shown in a list."""

    id: str
    name: str
    owner: str
    state: JobState
    start_time: int
    end_time: int | None
    duration_ms: int
    kind: JobKind = JobKind.PIPELINE


class JobDetail(Message, frozen=True):
    """Everything that is shown of one job."""

    id: str
    name: str
    owner: str
    state: JobState
    start_time: int
    end_time: int | None
    duration_ms: int
    attempt: int
    progress: JobProgress
    executors: tuple[ExecutorView, ...]
    timestamps: dict[str, int]
    failure: Failure | None
    pending_reason: str
    kind: JobKind = JobKind.PIPELINE
    attempts: tuple[AttemptView, ...] = ()
    checkpoints: int = 0
    owner_roles: tuple[str, ...] = ()
    """Roles of the owner at submission."""
    owner_groups: tuple[str, ...] = ()
    """Groups of the owner at submission."""

    def summary(self) -> JobSummary:
        """The job as shown in a list."""
        return JobSummary(**{name: getattr(self, name) for name in JobSummary.__struct_fields__})


class JobRecord(Message, frozen=True):
    """The stored record of a job: the submission, its outcome, its stages, and its connections.

    ``seen_connections`` are those of ``connections`` that the JobManager saw itself; the job reported the others.
    """

    submission: JobSubmission
    detail: JobDetail
    connections: tuple[ConnectionEvidence, ...] = ()
    connections_dropped: int = 0
    stages: StageTable = StageTable()
    exceptions: tuple[ExceptionEntry, ...] = ()
    checkpoints: CheckpointsView = CheckpointsView()
    savepoints: tuple[SavepointRequest, ...] = ()
    seen_connections: tuple[ConnectionEvidence, ...] = ()
    seen_dropped: int = 0
    processes: tuple[ProcessIdentity, ...] = ()
    processes_dropped: int = 0
    sluice_version: str = ""
    """The version of the JobManager that led last."""
    spark_version: str = ""

    @property
    def evidence(self) -> Evidence:
        """The connections, and how many were dropped."""
        return Evidence(self.connections, self.connections_dropped)

    @property
    def seen(self) -> Evidence:
        """The part of the evidence that the JobManager saw itself."""
        return Evidence(self.seen_connections, self.seen_dropped)


class SparkUiState(enum.StrEnum):
    """Whether Spark's UI of a job is available."""

    LIVE = "LIVE"
    """The job runs."""
    KEPT = "KEPT"
    """The job has ended, and its event log is in the history."""
    CUT = "CUT"
    """As ``KEPT``, but events are missing: the log was too large, or its end was lost."""
    NONE = "NONE"


class SparkUiView(Message, frozen=True):
    """Where Spark's UI of a job is. ``path`` is empty without one; ``reason`` says why, or what is missing."""

    state: SparkUiState
    path: str = ""
    reason: str = ""
    size: int = 0
    """The compressed size of the event log, in bytes."""
    kept_until: int | None = None
    """When the event log expires, in epoch milliseconds; it is removed earlier if the history needs space."""


class JobBlob(Message, frozen=True):
    """A file of an unfinished job."""

    job_id: str
    owner: str
    submitted_at: int
    name: str
    sha256: str
    size: int


class SlotView(Message, frozen=True):
    """One slot of a TaskManager, with its cores and heap in MiB."""

    slot: int
    state: SlotState
    job_id: str
    cores: int = 0
    memory_mb: int = 0


class TaskManagerView(Message, frozen=True):
    """A registered TaskManager; ``identity`` is the SPIFFE ID of its certificate.

    ``slots_total`` and ``slots_free`` count default slots; ``total`` and ``free`` are its capacity for slots of any
    size. ``draining``: it gives no more slots, and leaves when none is held. ``isolation``: the isolation level of the
    processes of jobs; with ``none`` a job can do what the TaskManager can. ``egress``: what jobs there may connect to;
    with ``off``, anything. Drivers have separate slots, counted by ``driver_slots_total`` and ``driver_slots_free``.
    ``drivers`` are the jobs whose drivers run here; an entry is empty if the caller may not see the job. ``warm``: JVMs
    that are started in advance and wait for jobs; null when the TaskManager may have none.
    """

    id: str
    identity: str
    host: str
    slots_total: int
    slots_free: int
    slots: tuple[SlotView, ...]
    last_heartbeat: int
    total: SlotProfile | None = None
    free: SlotProfile | None = None
    draining: bool = False
    isolation: IsolationLevel = IsolationLevel.NONE
    egress: EgressMode = EgressMode.OFF
    driver_slots_total: int = 0
    driver_slots_free: int = 0
    drivers: tuple[str, ...] = ()
    warm: WarmJvms | None = None


class QueueJobView(Message, frozen=True):
    """A job that holds or lacks slots for executors.

    Attributes:
        priority: its priority, at most the highest that its queue allows.
        slots: how many it holds, without those that were taken from it.
        lacking: how many it waits for.
        position: its position, from 1, among the jobs of its queue that may have the next free slot. 0: it lacks none,
            a limit keeps it from more, or all that it lacks are on their way.
        waits_for: why it waits; empty when it lacks nothing.
        expected_by: the latest time, approximately, at which it gets its next slot, in epoch milliseconds: executors of
            other jobs make room, or are about to. Null when unknown.
    """

    id: str
    owner: str
    priority: int
    slots: int
    lacking: int
    position: int
    waits_for: str
    expected_by: int | None = None


class QueueView(Message, frozen=True):
    """A queue: its configuration, and what its jobs hold and lack.

    Attributes:
        weight, guaranteed, maximum, max_slots, max_slots_per_user, max_priority: as configured.
        share: the part of all cores or of all memory, whichever is larger, that its jobs hold or are about to get.
        below_guarantee: whether a job waits for a slot that the queue is guaranteed, and that limits allow.
        slots: how many slots its jobs hold.
        lacking: how many slots its jobs wait for.
        jobs_waiting, jobs_served: how many jobs lack slots, and how many have what they want.
        preempted: how many slots were taken from its jobs since this JobManager began to lead.
        jobs: the jobs that the caller may see: waiting ones first, in the order in which they get the next slots.
    """

    name: str
    weight: float
    guaranteed: float
    maximum: float
    max_slots: int
    max_slots_per_user: int
    max_priority: int
    share: float
    below_guarantee: bool
    slots: int
    lacking: int
    jobs_waiting: int
    jobs_served: int
    preempted: int
    jobs: tuple[QueueJobView, ...] = ()


class Overview(Message, frozen=True):
    """The cluster in numbers. ``isolation`` and ``egress`` count the TaskManagers by the isolation level and the egress
    mode of their jobs."""

    taskmanagers: int
    slots_total: int
    slots_available: int
    jobs_running: int
    jobs_finished: int
    jobs_cancelled: int
    jobs_failed: int
    sluice_version: str
    spark_version: str
    jobmanager: str
    trust_domain: str
    isolation: dict[IsolationLevel, int]
    egress: dict[EgressMode, int]
