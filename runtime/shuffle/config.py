"""Settings of the remote shuffle service (section ``[shuffle]`` of ``sluice.toml``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.core.errors import PkiError
from sluice.pki.ca.address import parse_address
from sluice.runtime.shuffle.control_plane.errors import ShuffleMisconfigured
from sluice.runtime.shuffle.worker.config import Layout, Policy

SHORTEST_JOB_LEASE_SECONDS = 10.0
MAX_REPLICAS = 2

_Count = Annotated[int, msgspec.Meta(ge=0, le=64)]


class ShuffleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Port 0 means: any free port. Times are in seconds, sizes in MiB; 0 as a quota means: none."""

    enabled: bool = False
    """Whether the shuffles of jobs go through the service. Where nobody says: yes in a cluster that one command starts
    on one machine (``sluice up``), no elsewhere."""
    managers: tuple[str, ...] = ()
    """``host:port`` of the ShuffleManagers, one of which leads; empty: those of this home."""
    manager_count: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    """How many ShuffleManagers ``sluice up`` starts (none where ``managers`` are named); one leads."""
    manager_names: tuple[str, ...] = ()
    """Names of the ShuffleManagers that may lead (``ha.mode`` ``zookeeper``)."""
    jobmanagers: tuple[str, ...] = ()
    """Names of the JobManagers that may use the service, for managers; empty: any of the trust domain."""
    workers: _Count = 2
    """How many ShuffleWorkers ``sluice up`` starts."""
    replicas: Annotated[int, msgspec.Meta(ge=1, le=MAX_REPLICAS)] = 1
    """On how many workers the output of each map task is kept."""
    host: str = "127.0.0.1"
    """Where managers and workers of this machine are reached."""
    manager_port: int = 0
    worker_port: int = 0
    memory_mb: Annotated[int, msgspec.Meta(ge=32)] = 256
    """Memory of one worker for data that is not on its disks yet."""
    metadata_mb: Annotated[int, msgspec.Meta(ge=16)] = 512
    """Memory of one worker beside that: half for what it knows of data (shuffles, maps, indices), half for connections
    and reads. What has no room is refused; one job gets three quarters of what the others leave at most."""
    max_connections: Annotated[int, msgspec.Meta(ge=16, le=65536)] = 1024
    """Most connections of drivers and executors to one worker at a time; each executor has two. One job may have two
    thirds of them, beside others fewer."""
    directories: tuple[str, ...] = ()
    """Where workers keep data, one directory a disk; each worker has a folder in each. Empty: in the home."""
    policy: Policy = Policy.BLOCKING
    """``hybrid``: commits are answered from memory, which a worker that is killed loses; meant for two replicas.
    ``pipelined``: likewise, and readers that follow a producer are served from memory; Spark's jobs do not."""
    layout: Layout = Layout.REDUCE
    """What lies together on the workers' disks: ``reduce``, a partition of all maps; ``map``, a map."""
    encrypt_at_rest: bool = False
    """Whether workers encrypt what they write, with keys derived from a secret of their own in the home."""
    disk_reserve_mb: Annotated[int, msgspec.Meta(ge=0)] = 512
    """What stays free on each disk; a worker with less takes no new shuffles."""
    spare_mb: Annotated[int, msgspec.Meta(ge=0)] = 1024
    """How much of files of shuffles that are over a worker keeps, for the same job's next shuffles to write over: less
    work than new files. They go when the job does, or when a disk gets short; 0: none."""
    workers_per_shuffle: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    """On how many workers one shuffle is spread at most."""
    job_quota_mb: Annotated[int, msgspec.Meta(ge=0)] = 0
    """What one job may keep in all workers together before it gets no further shuffle, and in each worker."""
    cluster_quota_mb: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Likewise of all jobs of one cluster."""
    job_lease: Annotated[float, msgspec.Meta(ge=SHORTEST_JOB_LEASE_SECONDS)] = 120.0
    """After which the data of a job is removed whose JobManager is not heard of; longer than any failover."""
    heartbeat_interval: Annotated[float, msgspec.Meta(gt=0)] = 2.0
    heartbeat_timeout: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """After which a worker that is silent gets no new shuffles."""
    allocation_timeout: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """How long a shuffle waits for the service to be there before its job fails."""

    @property
    def local(self) -> bool:
        """Whether managers and workers belong to the cluster of this machine."""
        return self.enabled and not self.managers

    def addresses(self) -> tuple[tuple[str, int], ...]:
        """:attr:`managers` as pairs."""
        try:
            return tuple(parse_address(each) for each in self.managers)
        except PkiError as error:
            raise ShuffleMisconfigured(f"shuffle.managers: {error.what}", 'as in ["shuffle1.internal:7337"]') from error


def check_shuffle(config: ShuffleConfig) -> ShuffleConfig:
    """``config`` when its values go together; raises :class:`ShuffleMisconfigured` naming the key."""
    config.addresses()
    if config.heartbeat_timeout <= config.heartbeat_interval:
        raise ShuffleMisconfigured("shuffle.heartbeat_timeout is no longer than shuffle.heartbeat_interval")
    if config.job_lease <= config.heartbeat_timeout:
        raise ShuffleMisconfigured("shuffle.job_lease is no longer than shuffle.heartbeat_timeout")
    if config.local and config.workers < config.replicas:
        raise ShuffleMisconfigured(
            f"shuffle.replicas is {config.replicas} with {config.workers} workers",
            "set shuffle.workers, or shuffle.managers to use a service elsewhere",
        )
    for key, port, count in (
        ("manager_port", config.manager_port, config.manager_count),
        ("worker_port", config.worker_port, config.workers),
    ):
        if config.local and port and count > 1:
            raise ShuffleMisconfigured(f"shuffle.{key} is {port} for {count} processes of one machine", "leave it at 0")
    if config.workers_per_shuffle < config.replicas:
        raise ShuffleMisconfigured("shuffle.workers_per_shuffle is less than shuffle.replicas")
    return config
