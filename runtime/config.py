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
    """Port 0 means: any free port (published under ``run/`` for the other processes). Times are in seconds."""

    count: int = 1
    """How many JobManagers ``sluice up`` starts; one leads."""
    host: str = "127.0.0.1"
    rpc_port: int = 0
    blob_port: int = 0
    rest_host: str = ""
    """Host on which other machines reach REST over mutual TLS; empty: REST is only on its unix socket."""
    rest_port: int = 8081
    heartbeat_interval: float = 10.0
    heartbeat_timeout: float = 50.0
    executor_failure_budget: int = 0
    """Executors of one job that may end by themselves within an hour before the job fails; 0: twice its number of
    executors, at least 8 (at least 3 if the job is the cause, as with too little memory). A job's
    spark.executor.maxNumFailures overrides it."""
    driver_start_timeout: float = 120.0
    cancel_grace: float = 10.0
    max_blob_bytes: int = 1 << 30
    finished_jobs_kept: int = 100
    artifact_stores: tuple[str, ...] = ()
    """Stores from which files may come that a Livy client names: ``file:///srv/pipelines/``, ``s3://bucket/pipelines/``."""


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
    """Total heap of executors, in MiB; 0: the sum of the default slots."""
    driver_slots: int = 8
    """Drivers that run here at a time, besides the executors in slots; each takes ``[spark] driver_memory_mb``."""
    host: str = "127.0.0.1"
    """Host on which drivers and executors listen for each other."""

    @property
    def profile(self) -> SlotProfile:
        """The size of a default slot."""
        return SlotProfile(cores=self.slot_cores, memory_mb=self.slot_memory_mb)

    @property
    def total(self) -> SlotProfile:
        """What a TaskManager has in all: at least its default slots."""
        default = self.profile.multiplied(self.slots)
        return SlotProfile(cores=max(self.cores, default.cores), memory_mb=max(self.memory_mb, default.memory_mb))


class SparkConfig(_Section, frozen=True):
    """Defaults for every job; a job may override what :mod:`sluice.runtime.spark.jvm.job_conf` allows."""

    driver_memory_mb: int = 768
    executors: int = 2
    conf: dict[str, str] = {}
    make_class_archive: bool = True
    """Whether ``sluice up`` makes the archive of classes with which Spark's JVMs start faster, in the background."""
    vector_api: bool = False
    """Whether Spark's JVMs have the Vector API (``jdk.incubator.vector``) with Java 25 and newer as well, with which
    MLlib computes faster. They start some seconds slower then, because they cannot use an AOT cache. Java 17 and 21
    always have it."""

    @property
    def driver_profile(self) -> SlotProfile:
        """The size of a slot for a driver."""
        return SlotProfile(cores=1, memory_mb=self.driver_memory_mb)


class JobsConfig(_Section, frozen=True):
    """What jobs may change."""

    allow_conf: tuple[str, ...] = ()
    """Spark settings that jobs may make besides the usual ones: names, or prefixes such as ``spark.sql.catalog.*``.
    What secures or places a job cannot be allowed."""


class ConnectConfig(_Section, frozen=True):
    """Spark Connect sessions: one for each principal, started when it first connects."""

    executors: int = 1
    """Executors of one session, each in a slot."""
    idle_seconds: float = 1800.0
    """How long a session may be idle before it ends."""
    max_sessions: int = 8
    """Sessions at the same time."""


class Provider(enum.StrEnum):
    """Where TaskManagers come from."""

    STANDALONE = "standalone"
    """Somebody starts them."""
    PROCESS = "process"
    """``sluice up`` starts them on its machine when jobs lack slots."""
    KUBERNETES = "kubernetes"
    """The leading JobManager has Kubernetes run pods when jobs lack slots."""


class ResourcesConfig(_Section, frozen=True):
    """How TaskManagers are started, and how their slots are assigned to jobs."""

    provider: Provider = Provider.STANDALONE
    """``standalone``: as many as ``taskmanager.count``; ``process``: on demand, within the bounds below;
    ``kubernetes``: on demand as pods (section ``[pods]``), within the same bounds."""
    min_taskmanagers: int = 0
    max_taskmanagers: int = 4
    taskmanager_idle_timeout: float = 60.0
    """Seconds after which an idle TaskManager that was started on demand is stopped."""
    placement: Placement = Placement.SPREAD
    """``spread`` jobs over TaskManagers, or ``pack`` them, so that whole TaskManagers stay free."""
    slot_idle_timeout: float = 50.0
    """Seconds that a job may hold slots without a SparkContext; then they are released until it has one."""
    drain_timeout: float = 300.0
    """Seconds that executors of a drained TaskManager get to finish and to hand on their blocks."""


class PodsConfig(_Section, frozen=True):
    """The pods of TaskManagers. API server, namespace and service account are those of ``ha.kubernetes_…``."""

    template: str = ""
    """File with the PodTemplateSpec of a TaskManager, in JSON; its container is called ``taskmanager``."""
    own_pod: str = ""
    """Name of the JobManager's own pod: the pods go with what it belongs to. Empty: they belong to nobody."""
    share: bool = False
    """Whether a pod may run several jobs, at a time and one after the other; else each is for one job."""
    start_timeout: Annotated[float, msgspec.Meta(ge=10, le=86_400)] = 300.0
    """Seconds within which a pod that runs must register; else it is deleted."""


class LimitsConfig(_Section, frozen=True):
    """Limits on jobs and slots; 0: unlimited."""

    max_slots_per_user: int = 0
    """Slots of all jobs of one user together."""
    max_running_jobs: int = 100
    """Running jobs; others wait."""
    max_jobs_per_user: int = 0
    """Running jobs of one user; that user's other jobs wait."""
    max_queued_jobs: int = 1000
    """Waiting jobs; more are refused."""
    max_queued_jobs_per_user: int = 100
    """Waiting jobs of one user; more are refused."""
    max_blob_bytes_per_user: int = 0
    """Bytes of all files of one user's unfinished jobs."""


MAX_EVENT_LOG_BYTES = 256 << 20
"""Most bytes of one job's event log that can be configured to be kept."""


class HistoryConfig(_Section, frozen=True):
    """Ended jobs with their logs in the HA storage: they stay when they have left the list of jobs."""

    days: Annotated[float, msgspec.Meta(ge=0, le=3650)] = 30.0
    """How long after its end a job is kept; 0: no job is, and those that are there are removed."""
    max_bytes: Annotated[int, msgspec.Meta(ge=0)] = 1 << 30
    """Bytes of all jobs together; beyond that, the oldest ones of whoever takes the most go."""
    max_job_bytes: Annotated[int, msgspec.Meta(ge=0)] = 16 << 20
    """Bytes of the logs of one job, compressed; what does not fit is not kept."""
    max_ui_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_EVENT_LOG_BYTES)] = 16 << 20
    """Bytes of Spark's event log of one job, compressed, from which its Spark UI is shown after its end; what does not
    fit is left out, tasks first; 0: there is no Spark UI of ended jobs, and no event log."""
    ui_memory_mb: Annotated[int, msgspec.Meta(ge=256, le=65536)] = 768
    """Heap in MiB of a JVM that shows the Spark UI of an ended job; each TaskManager has at most two, beside its
    slots."""


class SecretsConfig(_Section, frozen=True):
    """Secrets of jobs."""

    keys: str = ""
    """Directory of the keys with which secrets are encrypted, on each JobManager; empty: `secret-keys` in the home.
    What is encrypted is in the HA storage: keep backups of the two apart."""


class RuntimeConfig(_Section, frozen=True):
    """All of the above, and the trust domain from ``[pki]``."""

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
        """Seconds without a JobManager after which a TaskManager ends what it runs: no driver goes on any longer."""
        return max(self.jobmanager.heartbeat_timeout, self.ha.lease)
