"""What the processes of a cluster say to each other: declared, bounded message types (msgspec).

Nothing here executes when decoded; every field has a declared type. Sizes are bounded by the
RPC layer's envelope limit.
"""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from sluice.core import TraceParent
from sluice.pki.tls import PeerCertificate
from sluice.runtime.restart_config import RestartWish
from sluice.runtime.sandbox import IsolationLevel


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all messages: immutable, keyword-only, unknown fields refused."""


class JobState(enum.StrEnum):
    """Job states, as Flink's ``JobStatus``."""

    INITIALIZING = "INITIALIZING"
    CREATED = "CREATED"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    FAILED = "FAILED"
    CANCELLING = "CANCELLING"
    CANCELED = "CANCELED"
    FINISHED = "FINISHED"
    RESTARTING = "RESTARTING"
    SUSPENDED = "SUSPENDED"
    RECONCILING = "RECONCILING"

    @property
    def terminal(self) -> bool:
        """Globally terminal: the job will never change state again."""
        return self in {JobState.FAILED, JobState.CANCELED, JobState.FINISHED}


class JobKind(enum.StrEnum):
    """What a job runs."""

    PIPELINE = "PIPELINE"
    """A program that was submitted."""
    CONNECT = "CONNECT"
    """A Spark Connect server, for its owner alone."""


class SlotState(enum.StrEnum):
    """Slot states, as Flink's ``TaskSlotState``."""

    FREE = "FREE"
    ALLOCATED = "ALLOCATED"
    ACTIVE = "ACTIVE"
    RELEASING = "RELEASING"


class SlotKind(enum.StrEnum):
    """What a slot is for. Each kind is a pool of its own: drivers never take what executors need, nor the reverse."""

    EXECUTOR = "EXECUTOR"
    DRIVER = "DRIVER"


class BlobRef(Message, frozen=True):
    """An artifact in the blob server: lower-case SHA-256 of its content, its file name and size in bytes."""

    sha256: str
    name: str
    size: int


class Archive(Message, frozen=True):
    """A packed directory that is unpacked for driver and executors, under ``name``."""

    blob: BlobRef
    name: str


class JobSubmission(Message, frozen=True):
    """What the Dispatcher accepts: one pipeline and how to run it.

    ``spark_conf`` holds only keys that survived :func:`sluice.runtime.spark.jvm.job_conf.check_job_conf`.
    """

    name: str
    owner: str
    pipeline: BlobRef
    args: tuple[str, ...] = ()
    spark_conf: dict[str, str] = {}
    executors: int = 2
    files: tuple[BlobRef, ...] = ()
    kind: JobKind = JobKind.PIPELINE
    restart: RestartWish = RestartWish()
    py_files: tuple[BlobRef, ...] = ()
    """Modules and packages for Python's path: ``.py``, ``.zip``, ``.egg``, ``.whl``."""
    archives: tuple[Archive, ...] = ()
    savepoint: str = ""
    """Id of the savepoint from which streaming queries go on."""
    executor_cores: int = 0
    """Of each executor; 0: as many as the cluster's slots have by default."""
    executor_memory_mb: int = 0
    """Heap of each executor; 0: as much as the cluster's slots have by default."""
    python: str = ""
    """Path of the Python that driver and executors use, in one of ``archives``; empty: the cluster's."""
    trace: TraceParent = ""

    @property
    def blobs(self) -> tuple[BlobRef, ...]:
        """Everything of the submission that is in the blob server."""
        return (self.pipeline, *self.files, *self.py_files, *(each.blob for each in self.archives))


class SlotProfile(Message, frozen=True):
    """Resources: whole cores and JVM heap in MiB, of one slot or of a whole TaskManager."""

    cores: int
    memory_mb: int

    def fits(self, wanted: SlotProfile) -> bool:
        """Whether this is at least as large as ``wanted``."""
        return self.cores >= wanted.cores and self.memory_mb >= wanted.memory_mb

    def plus(self, other: SlotProfile) -> SlotProfile:
        """Both together."""
        return SlotProfile(cores=self.cores + other.cores, memory_mb=self.memory_mb + other.memory_mb)

    def less(self, used: SlotProfile) -> SlotProfile:
        """What is left without ``used``, never below nothing."""
        return SlotProfile(cores=max(0, self.cores - used.cores), memory_mb=max(0, self.memory_mb - used.memory_mb))

    def multiplied(self, count: int) -> SlotProfile:
        """``count`` of these together."""
        return SlotProfile(cores=count * self.cores, memory_mb=count * self.memory_mb)

    def times(self, part: SlotProfile) -> int:
        """How many of ``part`` fit into this."""
        return min(self.cores // max(1, part.cores), self.memory_mb // max(1, part.memory_mb))


MAX_SLOTS_PER_TASKMANAGER = 1024
"""Default slots and carved ones; the numbers of slots are below this."""
NO_RESOURCES = SlotProfile(cores=0, memory_mb=0)


class SlotCount(Message, frozen=True):
    """A number of slots of one size."""

    profile: SlotProfile
    count: int


# --- TaskManager -> ResourceManager -------------------------------------------------------------


class TaskManagerRegistration(Message, frozen=True):
    """A TaskManager introduces itself, its default slots (all of one profile), and what it has in all.

    Slots of other sizes are carved out of ``total``; None: what the default slots have together. ``isolation`` is what
    it keeps the processes of jobs in. ``driver_slots`` of ``driver_profile`` are for drivers, apart from those.
    """

    name: str
    host: str
    slots: int
    profile: SlotProfile
    python: str
    version: str
    total: SlotProfile | None = None
    isolation: IsolationLevel = IsolationLevel.NONE
    driver_slots: int = 0
    driver_profile: SlotProfile = NO_RESOURCES
    report: SlotReport | None = None
    """Its slots now: what it holds since an earlier leader. None: it holds nothing."""


class RegistrationAccepted(Message, frozen=True):
    """The ResourceManager's answer: the token that fences what follows, and the heartbeat in seconds."""

    fencing_token: bytes
    heartbeat_interval: float
    heartbeat_timeout: float
    blob_host: str
    blob_port: int


class SlotStatus(Message, frozen=True):
    """One slot as its TaskManager sees it; ``profile`` is None in a default slot."""

    slot: int
    state: SlotState
    allocation_id: str = ""
    job_id: str = ""
    profile: SlotProfile | None = None


class SlotReport(Message, frozen=True):
    """All default slots of one TaskManager, and the carved ones that are held; ``draining``: it takes no more.

    ``driver_slots`` are those for drivers, under numbers of their own.
    """

    slots: tuple[SlotStatus, ...]
    draining: bool = False
    driver_slots: tuple[SlotStatus, ...] = ()

    def of(self, kind: SlotKind) -> tuple[SlotStatus, ...]:
        """The slots of one kind."""
        return self.driver_slots if kind is SlotKind.DRIVER else self.slots


# --- ResourceManager / JobMaster -> TaskManager ---------------------------------------------------


class SlotRequest(Message, frozen=True):
    """The ResourceManager reserves ``slot`` for a job; the TaskManager then offers it to the JobMaster.

    A number beyond those of the default slots is a slot of ``profile`` to be carved out of what is free.
    """

    slot: int
    allocation_id: str
    job_id: str
    jobmaster_endpoint: str
    jobmaster_token: bytes
    profile: SlotProfile
    kind: SlotKind = SlotKind.EXECUTOR

    def __repr__(self) -> str:
        return f"<SlotRequest of {self.job_id}: {self.kind} slot {self.slot}, {self.profile}>"  # never the token


class RunningExecutor(Message, frozen=True):
    """An executor that runs in a slot, as it was launched."""

    executor_id: int
    app_id: str
    resource_profile_id: int
    cores: int
    memory_mb: int


class SlotOffer(Message, frozen=True):
    """A TaskManager offers a reserved slot to the JobMaster of the job.

    Attributes:
        held: the slot is offered again, at a new leader: the TaskManager has held it since before.
        executor: what runs in a held slot for executors; None: nothing.
        driver: the attempt whose driver runs in a held slot for drivers; 0: none does.
    """

    taskmanager: str
    host: str
    slot: int
    allocation_id: str
    profile: SlotProfile
    kind: SlotKind = SlotKind.EXECUTOR
    held: bool = False
    executor: RunningExecutor | None = None
    driver: int = 0


class ExecutorLaunch(Message, frozen=True):
    """Everything a TaskManager needs to start one Spark executor in a slot.

    ``startup_conf`` and ``java_options`` come from the driver (already stripped of what a job may not
    set); the TaskManager composes the command line itself. ``spark_auth_secret`` never reaches argv.
    """

    job_id: str
    allocation_id: str
    executor_id: int
    app_id: str
    driver_url: str
    resource_profile_id: int
    cores: int
    memory_mb: int
    startup_conf: dict[str, str]
    java_options: tuple[str, ...]
    spark_auth_secret: str
    python: str
    trace: TraceParent = ""
    checkpoints: str = ""
    """URL below which the job's streaming queries keep their checkpoints, to which executors write."""


class ExecutorExit(Message, frozen=True):
    """How an executor ended. ``by_application`` tells Spark whether to count it against the job."""

    executor_id: int
    exit_code: int
    by_application: bool
    reason: str
    host: str = ""
    host_lost: bool = False


class CsrToSign(Message, frozen=True):
    """A certificate request (PEM) for executor ``executor_id``; its key never leaves the TaskManager."""

    executor_id: int
    csr_pem: bytes


DRIVER_LOGS = ("driver.stdout", "driver.stderr", "driver.jvm", "driver.agent")
"""What a driver may leave, by the names under which users ask for it."""
MAX_CSR_BYTES = 16 << 10
"""Largest certificate request that is looked at."""
MAX_DRIVER_END_CHARACTERS = 500
"""Longest sentence that a TaskManager says about the end of a driver."""


class DriverLaunch(Message, frozen=True):
    """Everything a TaskManager needs to start the driver of one attempt in a slot for drivers.

    The fencing token of its JobMaster is not in it: the TaskManager has it from the :class:`SlotRequest`. What the
    driver is to run it asks its JobMaster for, with its own identity. Sizes are MiB, times seconds.
    """

    job_id: str
    attempt: int
    allocation_id: str
    name: str
    executors: int
    executor_cores: int
    executor_memory_mb: int
    driver_memory_mb: int
    stop_grace: float
    start_timeout: float
    lease: float
    allow_conf: tuple[str, ...] = ()
    trace: TraceParent = ""


class DriverCsr(Message, frozen=True):
    """A certificate request (PEM) for the driver of an attempt; its key never leaves the TaskManager."""

    attempt: int
    csr_pem: Annotated[bytes, msgspec.Meta(max_length=MAX_CSR_BYTES)]


class DriverProcessEnd(Message, frozen=True):
    """The process of a driver has ended, and nothing of it runs any more; ``how`` is for people.

    What the driver has achieved it reports itself.
    """

    attempt: int
    how: Annotated[str, msgspec.Meta(max_length=MAX_DRIVER_END_CHARACTERS)]


class LogChunk(Message, frozen=True):
    """A piece of a log file: ``data`` (UTF-8, undecodable bytes replaced) from ``offset`` to ``next_offset``."""

    data: str
    offset: int
    next_offset: int
    end: bool


class UiRequest(Message, frozen=True):
    """A page of Spark's UI that somebody wants: path and query in the driver, and where the UI is for a browser."""

    path: str
    query: str
    base: str


class UiPage(Message, frozen=True):
    """What Spark's UI answered: nothing of its headers but the media type, and where a redirection leads."""

    status: int
    media: str = ""
    location: str = ""
    body: bytes = b""


class ConnectionEvidence(Message, frozen=True):
    """One mutual TLS connection as one of its ends saw it; ``opened_at`` is in epoch seconds."""

    channel: str
    local: str
    peer: str
    direction: str
    protocol: str
    cipher: str
    address: str = ""
    opened_at: float = 0.0
    certificate: PeerCertificate | None = None


class Evidence(Message, frozen=True):
    """The latest connections that somebody saw; ``dropped``: so many earlier ones are not among them."""

    connections: tuple[ConnectionEvidence, ...] = ()
    dropped: int = 0


# --- driver <-> JobMaster --------------------------------------------------------------------------


class SparkRegistration(Message, frozen=True):
    """The driver's SparkContext is up: where executors find it and what they must be started with."""

    app_id: str
    driver_url: str
    startup_conf: dict[str, str]
    java_options: tuple[str, ...]
    executor_memory_mb: int
    executor_cores: int
    live_executors: tuple[int, ...] = ()


MAX_EXECUTOR_CORES = 1024
MAX_EXECUTOR_MEMORY_MB = 1 << 24
"""Larger executors are not asked for: 16 TiB."""
_MAX_JAVA_INT = (1 << 31) - 1
"""What Spark says when it wants any number."""


class ExecutorTarget(Message, frozen=True):
    """How many executors of one Spark resource profile the driver wants.

    A driver is not believed: what is out of these bounds does not get as far as its JobMaster.
    """

    resource_profile_id: Annotated[int, msgspec.Meta(ge=0, le=_MAX_JAVA_INT)]
    total: Annotated[int, msgspec.Meta(ge=0, le=_MAX_JAVA_INT)]
    cores: Annotated[int, msgspec.Meta(ge=1, le=MAX_EXECUTOR_CORES)]
    memory_mb: Annotated[int, msgspec.Meta(ge=1, le=MAX_EXECUTOR_MEMORY_MB)]


class ExecutorTargets(Message, frozen=True):
    """The driver's latest wish; level-triggered: a higher ``version`` replaces everything before."""

    version: int
    targets: tuple[ExecutorTarget, ...]


class JobProgress(Message, frozen=True):
    """Counters since the start of the driver attempt; the JobMaster shows them as they are.

    What failed is not among what finished. A stage that is tried again counts again in ``stages_total``.
    """

    spark_jobs_started: int = 0
    spark_jobs_finished: int = 0
    spark_jobs_failed: int = 0
    stages_total: int = 0
    stages_finished: int = 0
    stages_failed: int = 0
    tasks_total: int = 0
    tasks_finished: int = 0
    tasks_failed: int = 0
    tasks_running: int = 0
    executors_added: int = 0
    executors_removed: int = 0
    shuffle_bytes_written: int = 0
    shuffle_bytes_read: int = 0
    first_task_at: float = 0.0


class WorkerAddress(Message, frozen=True):
    """Where a ShuffleWorker serves the data channel; ``name`` is that in its certificate."""

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name} at {self.host}:{self.port}"


class OutputLocation(Message, frozen=True):
    """Where the map outputs that were pushed to worker ``pushed_to`` are served now: there, or by its successor."""

    pushed_to: str
    address: WorkerAddress


class ShuffleAllocation(Message, frozen=True):
    """Where a shuffle is kept.

    Attributes:
        shuffle_number: its number on the data plane, unique in the job over all driver attempts and SparkContexts
            (Spark counts its own ``shuffle_id`` from 0 in each SparkContext).
        workers: which keep it; every one of them knows the job already.
        replicas: on how many of them the output of each map task has to be.
        integrity_key: of the job, for the check values of its data.
    """

    shuffle_number: int
    workers: tuple[WorkerAddress, ...]
    replicas: int
    integrity_key: bytes


MAX_STAGES = 300
"""Stages of one job that are told of: the latest ones."""


class StageState(enum.StrEnum):
    """What becomes of a stage. ``SKIPPED``: its output was there already."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"


class StageReport(Message, frozen=True):
    """One stage of Spark, as its driver counts it. Times are epoch milliseconds, 0: not yet.

    ``job`` is Spark's, -1 when unknown; ``operators`` are what Spark SQL calls the steps in it. ``task_ms``: least,
    quartiles and most of the times of its finished tasks, empty without any; far apart they show skew.
    """

    id: int
    job: int
    name: str
    state: StageState
    attempts: int
    tasks_total: int
    tasks_running: int
    tasks_finished: int
    tasks_failed: int
    description: str = ""
    parents: tuple[int, ...] = ()
    operators: tuple[str, ...] = ()
    started_at: int = 0
    ended_at: int = 0
    failure: str = ""
    input_bytes: int = 0
    output_bytes: int = 0
    shuffle_read_bytes: int = 0
    shuffle_write_bytes: int = 0
    memory_spilled_bytes: int = 0
    disk_spilled_bytes: int = 0
    run_ms: int = 0
    gc_ms: int = 0
    task_ms: tuple[int, ...] = ()


class StageTable(Message, frozen=True):
    """The stages of a driver attempt; ``left_out`` older ones are not kept."""

    stages: tuple[StageReport, ...] = ()
    left_out: int = 0


MAX_STREAMING_QUERIES = 64
"""Most streaming queries of one driver that are told of."""


class StreamingQuery(Message, frozen=True):
    """One Structured Streaming query: ``batch`` is its last committed one, -1 before the first.

    ``state`` is RUNNING, ENDED or FAILED; ``location`` is the URL of its checkpoint, ``rows`` what this driver has
    read.
    """

    id: str
    run_id: str
    name: str
    location: str
    state: str
    batch: int = -1
    rows: int = 0
    error: str = ""


class StreamingState(Message, frozen=True):
    """All streaming queries of a driver; level-triggered: the latest replaces those before."""

    queries: Annotated[tuple[StreamingQuery, ...], msgspec.Meta(max_length=MAX_STREAMING_QUERIES)] = ()


class TaskFailure(Message, frozen=True):
    """A task failed by an error of its own; Spark may run it again."""

    stage: int
    partition: int
    attempt: int
    executor_id: int
    error: str
    traceback: str = ""


class DriverExit(Message, frozen=True):
    """The end of a driver attempt, judged by the exit code *and* by whether Spark ended in order."""

    succeeded: bool
    exit_code: int
    error: str = ""
    traceback: str = ""


MAX_KNOWN_SHUFFLES = 50_000
"""Most shuffles that a driver may tell a new leader of: about a MiB."""
_MAX_NUMBER = (1 << 32) - 1


class KnownShuffle(Message, frozen=True):
    """A shuffle that has a place: Spark's number of it, and its number on the data plane."""

    shuffle_id: Annotated[int, msgspec.Meta(ge=0, le=_MAX_JAVA_INT)]
    number: Annotated[int, msgspec.Meta(ge=0, le=_MAX_NUMBER)]
    partitions: Annotated[int, msgspec.Meta(ge=1, le=_MAX_JAVA_INT)]


class RunningDriver(Message, frozen=True):
    """What a driver says of itself when it registers again: a new leader has it from nobody else (ADR 103).

    Attributes:
        spark_auth_secret: of its SparkContext and executors, in hexadecimal.
        app_id: of the SparkContext that is up; empty without one.
        shuffles: those of that SparkContext that have a place.
        shuffles_asked: how often this driver has asked for the place of a shuffle; each time may have used a number.
        bound: why only the JobMaster that started it can go on with it; empty: any can.
    """

    spark_auth_secret: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    app_id: Annotated[str, msgspec.Meta(max_length=200)] = ""
    shuffles: Annotated[tuple[KnownShuffle, ...], msgspec.Meta(max_length=MAX_KNOWN_SHUFFLES)] = ()
    shuffles_asked: Annotated[int, msgspec.Meta(ge=0, le=_MAX_JAVA_INT)] = 0
    bound: Annotated[str, msgspec.Meta(max_length=200)] = ""

    def __repr__(self) -> str:
        return f"<RunningDriver of {self.app_id!r} with {len(self.shuffles)} shuffles>"  # never the secret


class DriverAssignment(Message, frozen=True):
    """What the JobMaster hands the driver when it registers."""

    pipeline: BlobRef
    files: tuple[BlobRef, ...]
    args: tuple[str, ...]
    spark_conf: dict[str, str]
    spark_auth_secret: str
    blob_host: str
    blob_port: int
    jobmanager: str = ""
    """The name of the blob server's JobManager in its certificate."""
    kind: JobKind = JobKind.PIPELINE
    py_files: tuple[BlobRef, ...] = ()
    archives: tuple[Archive, ...] = ()
    python: str = ""
    """See :attr:`JobSubmission.python`."""
    shuffle: bool = False
    """Whether its shuffles go through the shuffle service."""
    checkpoints: str = ""
    """URL below which streaming queries keep their checkpoints."""
