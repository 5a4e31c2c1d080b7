"""Settings of the cluster (sections ``[jobmanager]``, ``[taskmanager]``, ``[spark]`` of ``sluice.toml``)."""

from __future__ import annotations

import msgspec

from runtime.checkpoint.config import StreamingConfig
from runtime.ha.config import HaConfig
from runtime.jobmanager.placement import Placement
from runtime.restart_config import RestartConfig
from runtime.shuffle.config import ShuffleConfig


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
    """Where REST is reached from other machines, over mutual TLS; empty: on its unix socket only."""
    rest_port: int = 8081
    heartbeat_interval: float = 10.0
    heartbeat_timeout: float = 50.0
    executor_failure_budget: int = 8
    """Executors of one job that may end by themselves before it fails (restarts are unlimited otherwise)."""
    driver_start_timeout: float = 120.0
    cancel_grace: float = 10.0
    max_blob_bytes: int = 1 << 30
    finished_jobs_kept: int = 100
    artifact_stores: tuple[str, ...] = ()
    """Where files may come from that a Livy client names: ``file:///srv/pipelines/``, ``s3://bucket/pipelines/``."""


class TaskManagerConfig(_Section, frozen=True):
    """One TaskManager: its default slots, and what it has in all."""

    count: int = 2
    """How many TaskManagers ``sluice up`` starts."""
    slots: int = 2
    slot_cores: int = 1
    slot_memory_mb: int = 768
    cores: int = 0
    """Cores in all, for slots of any size; 0: what the default slots have together."""
    memory_mb: int = 0
    """Heap of executors in all, in MiB; 0: what the default slots have together."""
    host: str = "127.0.0.1"


class SparkConfig(_Section, frozen=True):
    """Defaults for every job; a job may override what :mod:`runtime.spark.conf` allows."""

    driver_memory_mb: int = 768
    executors: int = 2
    conf: dict[str, str] = {}


class ConnectConfig(_Section, frozen=True):
    """Spark Connect sessions: one for each principal, started when it first connects."""

    executors: int = 1
    """Executors of one session, each in a slot."""
    idle_seconds: float = 1800.0
    """How long nobody may ask anything before a session ends."""
    max_sessions: int = 8
    """Sessions at the same time."""


class ResourcesConfig(_Section, frozen=True):
    """How slots are given to jobs."""

    placement: Placement = Placement.SPREAD
    """``spread`` jobs over TaskManagers, or ``pack`` them, so that whole TaskManagers stay free."""
    slot_idle_timeout: float = 50.0
    """Seconds for which a job holds slots before it has a SparkContext; then they go back until it has one."""


class LimitsConfig(_Section, frozen=True):
    """How much one user may have at the same time; 0: any number."""

    max_slots_per_user: int = 0
    max_blob_bytes_per_user: int = 0
    """Of the files of one user's unfinished jobs together."""


class RuntimeConfig(_Section, frozen=True):
    """All of the above, and the trust domain from ``[pki]``."""

    trust_domain: str = "sluice.local"
    jobmanager: JobManagerConfig = JobManagerConfig()
    taskmanager: TaskManagerConfig = TaskManagerConfig()
    spark: SparkConfig = SparkConfig()
    connect: ConnectConfig = ConnectConfig()
    ha: HaConfig = HaConfig()
    shuffle: ShuffleConfig = ShuffleConfig()
    restart: RestartConfig = RestartConfig()
    streaming: StreamingConfig = StreamingConfig()
    resources: ResourcesConfig = ResourcesConfig()
    limits: LimitsConfig = LimitsConfig()
