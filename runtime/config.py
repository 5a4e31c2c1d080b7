"""Settings of the cluster (sections ``[jobmanager]``, ``[taskmanager]``, ``[spark]`` of ``sluice.toml``)."""

from __future__ import annotations

import enum
from typing import Annotated

import msgspec

from sluice.core import EgressConfig
from sluice.runtime.checkpoint import StreamingConfig
from sluice.runtime.ha import HaConfig
from sluice.runtime.messages import SlotProfile
from sluice.runtime.notify import NotifyConfig
from sluice.runtime.placement import Placement
from sluice.runtime.restart_config import RestartConfig
from sluice.runtime.sandbox import IsolationConfig
from sluice.runtime.scheduling_config import SchedulingConfig
from sluice.runtime.shuffle import ShuffleConfig
from sluice.runtime.warm import WarmConfig


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class JobManagerConfig(_Section, frozen=True):
    """JobManagers. Port 0 means any free port, published under ``run/`` for other processes. Times are in seconds."""

    count: int = 1
    """How many JobManagers ``sluice up`` starts; one leads."""
    host: str = "127.0.0.1"
    rpc_port: int = 0
    blob_port: int = 0
    rest_host: str = ""
    """Host at which REST listens with mutual TLS for other machines; empty: REST listens only on its unix socket."""
    rest_port: int = 8081
    heartbeat_interval: float = 10.0
    heartbeat_timeout: float = 50.0
    executor_failure_budget: int = 0
    """Number of executors of one job that may end by themselves within an hour before the job fails; 0: twice its
    number of executors, at least 8 (at least 3 if the job is the cause, as with too little memory). A job's
    spark.executor.maxNumFailures overrides it."""
    driver_start_timeout: float = 120.0
    cancel_grace: float = 10.0
    max_blob_bytes: int = 1 << 30
    finished_jobs_kept: int = 100
    artifact_stores: tuple[str, ...] = ()
    """Stores from which Livy clients may name files, such as ``file:///srv/pipelines/``, ``s3://bucket/pipelines/``."""


class TaskManagerConfig(_Section, frozen=True):
    """One TaskManager: its default slots and its total resources."""

    count: int = 2
    """How many TaskManagers ``sluice up`` starts."""
    slots: int = 2
    slot_cores: int = 1
    slot_memory_mb: int = 768
    cores: int = 0
    """Total cores, for slots of any size; 0: the sum of the default slots."""
    memory_mb: int = 0
    """Total executor heap, in MiB; 0: the sum of the default slots."""
    driver_slots: int = 8
    """Maximum number of drivers at a time, in addition to executors; each takes ``[spark] driver_memory_mb``."""
    host: str = "127.0.0.1"
    """Host on which drivers and executors listen for connections from each other."""

    @property
    def profile(self) -> SlotProfile:
        """The size of a default slot."""
        return SlotProfile(cores=self.slot_cores, memory_mb=self.slot_memory_mb)

    @property
    def total(self) -> SlotProfile:
        """The total resources of a TaskManager: at least those of its default slots."""
        default = self.profile.multiplied(self.slots)
        return SlotProfile(cores=max(self.cores, default.cores), memory_mb=max(self.memory_mb, default.memory_mb))


class SparkConfig(_Section, frozen=True):
    """Defaults for every job; a job may override what :mod:`sluice.runtime.spark.jvm.job_conf` allows."""

    driver_memory_mb: int = 768
    executors: int = 2
    conf: dict[str, str] = {}
    make_class_archive: bool = True
    """Whether ``sluice up`` creates, in the background, the class archive with which Spark's JVMs start faster."""
    vector_api: bool = False
    """Whether to enable the Vector API (``jdk.incubator.vector``), which makes MLlib faster, for Spark's JVMs with Java
    25 and newer as well. They then start some seconds slower, because they cannot use an AOT cache. With Java 17 and
    21 it is always enabled."""

    @property
    def driver_profile(self) -> SlotProfile:
        """The size of a slot for a driver."""
        return SlotProfile(cores=1, memory_mb=self.driver_memory_mb)


class JobsConfig(_Section, frozen=True):
    """What jobs may change."""

    allow_conf: tuple[str, ...] = ()
    """Further Spark settings that jobs may make: names, or prefixes such as ``spark.sql.catalog.*``. Settings that
    secure or place a job cannot be allowed."""


class ConnectConfig(_Section, frozen=True):
    """Spark Connect sessions: one for each principal, started when it first connects."""

    executors: int = 1
    """Number of executors of a session, each in a slot."""
    idle_seconds: float = 1800.0
    """Seconds that a session may be idle before it ends."""
    max_sessions: int = 8
    """Maximum number of sessions at a time."""


class Provider(enum.StrEnum):
    """What starts TaskManagers."""

    STANDALONE = "standalone"
    """Nothing: the operator starts them."""
    PROCESS = "process"
    """``sluice up`` starts them on its machine when jobs lack slots."""
    KUBERNETES = "kubernetes"
    """The leading JobManager creates Kubernetes pods when jobs lack slots."""


class ResourcesConfig(_Section, frozen=True):
    """How TaskManagers are started, and how their slots are assigned to jobs."""

    provider: Provider = Provider.STANDALONE
    """``standalone``: a fixed number, ``taskmanager.count``; ``process``: on demand, within the limits below;
    ``kubernetes``: on demand as pods (section ``[pods]``), within the same limits."""
    min_taskmanagers: int = 0
    max_taskmanagers: int = 4
    taskmanager_idle_timeout: float = 60.0
    """Seconds after which an idle TaskManager is stopped if it was started on demand."""
    placement: Placement = Placement.SPREAD
    """``spread`` jobs over TaskManagers, or ``pack`` them, so that whole TaskManagers stay free."""
    slot_idle_timeout: float = 50.0
    """Seconds that a job without a SparkContext may hold slots; then they are released until it has one."""
    drain_timeout: float = 300.0
    """Seconds that executors of a draining TaskManager have to finish their tasks and move their blocks."""


class PodsConfig(_Section, frozen=True):
    """The pods of TaskManagers. API server, namespace and service account come from ``ha.kubernetes_…``."""

    template: str = ""
    """File with the PodTemplateSpec of a TaskManager in JSON; its container must be named ``taskmanager``."""
    own_pod: str = ""
    """Name of the JobManager's pod. Its controller, or else this pod, owns the pods; empty: they have no owner."""
    share: bool = False
    """Whether a pod may run several jobs, at the same time or one after the other; otherwise each pod runs one job."""
    start_timeout: Annotated[float, msgspec.Meta(ge=10, le=86_400)] = 300.0
    """Seconds within which a running pod must register; otherwise it is deleted."""


class LimitsConfig(_Section, frozen=True):
    """Limits on jobs and slots; 0: unlimited."""

    max_slots_per_user: int = 0
    """Maximum number of slots of all jobs of one user together."""
    max_running_jobs: int = 100
    """Maximum number of running jobs; others wait."""
    max_jobs_per_user: int = 0
    """Maximum number of running jobs of one user; that user's other jobs wait."""
    max_queued_jobs: int = 1000
    """Maximum number of waiting jobs; more are refused."""
    max_queued_jobs_per_user: int = 100
    """Maximum number of waiting jobs of one user; more are refused."""
    max_blob_bytes_per_user: int = 0
    """Maximum total size, in bytes, of the files of one user's unfinished jobs."""


MAX_EVENT_LOG_BYTES = 256 << 20
"""Largest value of ``history.max_ui_bytes``."""


class HistoryConfig(_Section, frozen=True):
    """Ended jobs and their logs, which are kept in the HA storage after they have left the list of jobs."""

    days: Annotated[float, msgspec.Meta(ge=0, le=3650)] = 30.0
    """Days that a job is kept after its end; 0: no job is kept, and existing ones are removed."""
    max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 1 << 30
    """Maximum size of all kept jobs, in bytes. Beyond it, the oldest jobs of the user with the most are removed."""
    max_job_bytes: Annotated[int, msgspec.Meta(ge=0)] = 16 << 20
    """Maximum size of the compressed logs of one job, in bytes; logs that do not fit are not kept."""
    max_ui_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_EVENT_LOG_BYTES)] = 16 << 20
    """Maximum size of the compressed Spark event log of one job, in bytes, from which its Spark UI is shown after its
    end. Events that do not fit are left out, those of tasks first. 0: no Spark UI of ended jobs, and no event log."""
    ui_memory_mb: Annotated[int, msgspec.Meta(ge=256, le=65536)] = 768
    """Heap in MiB of a JVM that shows the Spark UI of an ended job. Each TaskManager runs at most two such JVMs, in
    addition to its slots."""


class SecretsConfig(_Section, frozen=True):
    """Secrets of jobs."""

    keys: str = ""
    """Directory, on each JobManager, with the keys that encrypt secrets; empty: `secret-keys` in the home. The
    encrypted secrets are in the HA storage: keep backups of the two in different places."""


class RuntimeConfig(_Section, frozen=True):
    """All settings of the cluster, and the trust domain from ``[pki]``."""

    trust_domain: str = "sluice.local"
    jobmanager: JobManagerConfig = JobManagerConfig()
    taskmanager: TaskManagerConfig = TaskManagerConfig()
    spark: SparkConfig = SparkConfig()
    jobs: JobsConfig = JobsConfig()
    connect: ConnectConfig = ConnectConfig()
    ha: HaConfig = HaConfig()
    shuffle: ShuffleConfig = ShuffleConfig()
    restart: RestartConfig = RestartConfig()
    streaming: StreamingConfig = StreamingConfig()
    resources: ResourcesConfig = ResourcesConfig()
    pods: PodsConfig = PodsConfig()
    limits: LimitsConfig = LimitsConfig()
    scheduling: SchedulingConfig = SchedulingConfig()
    isolation: IsolationConfig = IsolationConfig()
    egress: EgressConfig = EgressConfig()
    secrets: SecretsConfig = SecretsConfig()
    warm: WarmConfig = WarmConfig()
    history: HistoryConfig = HistoryConfig()
    notify: NotifyConfig = NotifyConfig()

    @property
    def fence_after(self) -> float:
        """Seconds without a JobManager after which a TaskManager ends its processes; no driver outlives that."""
        return max(self.jobmanager.heartbeat_timeout, self.ha.lease)
