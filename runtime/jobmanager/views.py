"""What the JobManager shows of itself: immutable snapshots, in exactly the shapes of the REST API.

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
    """Why a job failed: one line, and the pipeline's Python traceback if there is one."""

    error: str
    traceback: str = ""


class AttemptView(Message, frozen=True):
    """One attempt of a job's driver; ``outcome`` is empty while it runs, ``error`` unless it failed.

    ``taskmanager`` is where the driver ran, and where its logs are; empty while it waits for a slot.
    """

    number: int
    started_at: int
    ended_at: int | None = None
    outcome: str = ""
    error: str = ""
    taskmanager: str = ""


class ExceptionEntry(Message, frozen=True):
    """An exception of a job: the attempt, the time, and the place if it is known.

    ``error`` is one line, ``root_cause`` the innermost cause. ``ended_attempt`` tells failures of the driver from those
    of a task or an executor. ``recovered``: whether the job got over it; null while nobody can know.
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
    """A savepoint that somebody asked for: ``path`` when it is complete, ``error`` when it failed."""

    id: str
    requested_at: int
    stop: bool
    state: SavepointState = SavepointState.IN_PROGRESS
    path: str = ""
    error: str = ""


class ExecutorView(Message, frozen=True):
    """One executor of a job; ``state`` as in :class:`sluice.runtime.jobmanager.attempt.ExecutorState`."""

    id: int
    taskmanager: str
    slot: int
    state: str
    exit_reason: str
    started_at: int


class ProcessIdentity(Message, frozen=True):
    """The certificates of one process of a job in one attempt, as the JobMaster had them signed.

    Attributes:
        identity: the SPIFFE ID.
        attempt: in which it ran.
        taskmanager: on which it ran.
        isolation: what the TaskManager keeps processes of jobs in; empty: not known.
        egress: what they may connect to there; empty: not known.
        serials: of the latest certificates, in hexadecimal.
        certificates: how many there were, with renewals.
        not_before: of the first one, in epoch seconds.
        not_after: of the latest one.
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
    """A job in a list."""

    id: str
    name: str
    owner: str
    state: JobState
    start_time: int
    end_time: int | None
    duration_ms: int
    kind: JobKind = JobKind.PIPELINE


class JobDetail(Message, frozen=True):
    """All there is to show of one job."""

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
        """The same job in a list."""
        return JobSummary(**{name: getattr(self, name) for name in JobSummary.__struct_fields__})


class JobRecord(Message, frozen=True):
    """A job as it is kept on disk: what was submitted, what became of it, its stages, and its connections.

    ``seen_connections`` are those of ``connections`` that the JobManager saw itself: of the others the job has told.
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
    """Of the JobManager that led last."""
    spark_version: str = ""

    @property
    def evidence(self) -> Evidence:
        """The connections, and how many are not among them."""
        return Evidence(self.connections, self.connections_dropped)

    @property
    def seen(self) -> Evidence:
        """The part of it that the JobManager saw itself."""
        return Evidence(self.seen_connections, self.seen_dropped)


class SparkUiState(enum.StrEnum):
    """Whether Spark's UI of a job can be opened."""

    LIVE = "LIVE"
    """The job runs."""
    KEPT = "KEPT"
    """It has ended, and its event log is in the history."""
    CUT = "CUT"
    """The same, but events are missing: the log was too large, or its end was lost."""
    NONE = "NONE"


class SparkUiView(Message, frozen=True):
    """Where Spark's UI of a job is: ``path`` is empty without one, and ``reason`` says why, or what is missing."""

    state: SparkUiState
    path: str = ""
    reason: str = ""
    size: int = 0
    """Of the event log, compressed, in bytes."""
    kept_until: int | None = None
    """Epoch milliseconds; it may go earlier when the history needs room."""


class JobBlob(Message, frozen=True):
    """A file of a job that has not ended."""

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

    ``slots_total`` and ``slots_free`` count default slots; ``total`` and ``free`` are what slots of any size are
    made of. ``draining``: it takes no more slots, and leaves when none is held. ``isolation``: what it keeps the
    processes of jobs in; with ``none`` a job can do what the TaskManager can. ``egress``: what jobs there may connect
    to; with ``off`` to anything. Drivers have slots of their own:
    ``driver_slots_total`` and ``driver_slots_free`` count those, ``drivers`` are the jobs whose drivers run here, empty
    for one that the caller may not see. ``warm``: JVMs that wait there for jobs; null where none may.
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
        priority: in its queue, as far as the queue allows it.
        slots: that it holds; those that were taken from it do not count.
        lacking: slots that it waits for.
        position: among the jobs of its queue that may have a slot, when the next one is free: 1 is the first. 0: it
            lacks none, a limit keeps it from having more, or all that it lacks are on their way.
        waits_for: what it waits for; empty when it lacks nothing.
        expected_by: about when it has its next slot at the latest, in epoch milliseconds: executors of other jobs make
            room, or are about to. Null: unknown.
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
    """A queue: what it is configured to get, and what its jobs have.

    Attributes:
        weight, guaranteed, maximum, max_slots, max_slots_per_user, max_priority: as configured.
        share: the larger of the parts of all cores and all memory that its jobs hold, or that are on their way to them.
        below_guarantee: whether a job waits for a slot that is part of what the queue is guaranteed, and may have it.
        slots: that its jobs hold.
        lacking: slots that its jobs wait for.
        jobs_waiting, jobs_served: jobs that lack slots, and those that have what they want.
        preempted: slots that were taken from its jobs since this JobManager leads.
        jobs: those that the caller may see: waiting ones first, in the order in which they get the next slots.
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
    """The cluster in numbers; ``isolation`` says how many TaskManagers keep jobs in which sandbox, ``egress`` how many
    decide how about connections of jobs to others."""

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
