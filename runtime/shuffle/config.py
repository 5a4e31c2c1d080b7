"""Settings of the remote shuffle service (section ``[shuffle]`` of ``sluice.toml``)."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.core import PkiError
from sluice.pki.ca import parse_address
from sluice.runtime.messages import Seal
from sluice.runtime.shuffle.control_plane import ShuffleMisconfigured
from sluice.runtime.shuffle.worker import Layout, Policy

SHORTEST_JOB_LEASE_SECONDS = 10.0
MAX_REPLICAS = 2

_Count = Annotated[int, msgspec.Meta(ge=0, le=64)]


class ShuffleConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Times are in seconds, sizes in MiB. Port 0 means any free port, and a quota of 0 means no quota."""

    enabled: bool = False
    """Whether the shuffles of jobs go through the service. Default: yes in a cluster that
    ``sluice up`` starts, no elsewhere."""
    managers: tuple[str, ...] = ()
    """``host:port`` of the ShuffleManagers, one of which leads. Empty: the ShuffleManagers of this home."""
    manager_count: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    """How many ShuffleManagers ``sluice up`` starts (none if ``managers`` is set). One leads."""
    manager_names: tuple[str, ...] = ()
    """Names of the ShuffleManagers that may lead (``ha.mode`` ``zookeeper``)."""
    jobmanagers: tuple[str, ...] = ()
    """Names of the JobManagers that ShuffleManagers admit. Empty: all JobManagers of the trust domain."""
    workers: _Count = 2
    """How many ShuffleWorkers ``sluice up`` starts."""
    replicas: Annotated[int, msgspec.Meta(ge=1, le=MAX_REPLICAS)] = 1
    """Number of workers that store the output of each map task."""
    host: str = "127.0.0.1"
    """Host under which the managers and workers of this machine are reachable."""
    manager_port: int = 0
    worker_port: int = 0
    memory_mb: Annotated[int, msgspec.Meta(ge=32)] = 256
    """Memory of one worker for data that is not on disk yet."""
    metadata_mb: Annotated[int, msgspec.Meta(ge=16)] = 512
    """Further memory of one worker: half for metadata (shuffles, maps, indices), half for connections and reads.
    Requests beyond it are refused; one job gets at most three quarters of what the others leave."""
    max_connections: Annotated[int, msgspec.Meta(ge=16, le=65536)] = 1024
    """Maximum connections of drivers and executors to one worker; each executor has two. One job may have two thirds
    of them, fewer if there are other jobs."""
    directories: tuple[str, ...] = ()
    """Directories for the workers' data, one per disk; each worker has a folder in each. Empty: in the home."""
    policy: Policy = Policy.BLOCKING
    """blocking: a commit is on disk. hybrid: commits are answered from memory, which a killed worker loses; meant for
    two replicas. pipelined: the same, and readers that follow a producer are served from memory. Shuffles of
    real-time streaming are always pipelined."""
    layout: Layout = Layout.REDUCE
    """What is contiguous on the workers' disks. reduce: a partition of all maps. map: all partitions of a map."""
    seal: Seal = "auto"
    """Whether jobs encrypt and authenticate the data that they push to workers, with keys that only their drivers and
    executors have. "auto": yes if the driver's CPU has AES instructions."""
    encrypt_at_rest: bool = False
    """Whether workers encrypt their files, with keys derived from a secret in their home."""
    disk_reserve_mb: Annotated[int, msgspec.Meta(ge=0)] = 512
    """Space to keep free on each disk; a worker with less accepts no new shuffles."""
    spare_mb: Annotated[int, msgspec.Meta(ge=0)] = 1024
    """Size of the files of ended shuffles that a worker keeps. The next shuffles of the same job overwrite them, which
    is cheaper than new files. They are deleted with the job, or if disk space is short. 0: none are kept."""
    workers_per_shuffle: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    """Maximum number of workers of one shuffle."""
    job_quota_mb: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How much one job may store in all workers together, and in each worker, before it gets no further shuffle."""
    cluster_quota_mb: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The same for all jobs of one cluster."""
    job_lease: Annotated[float, msgspec.Meta(ge=SHORTEST_JOB_LEASE_SECONDS)] = 120.0
    """Time after which the data of a job with a silent JobManager is removed. Must be longer than any failover."""
    heartbeat_interval: Annotated[float, msgspec.Meta(gt=0)] = 2.0
    heartbeat_timeout: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """Time after which a silent worker gets no new shuffles."""
    allocation_timeout: Annotated[float, msgspec.Meta(gt=0)] = 60.0
    """How long a shuffle waits for the service before its job fails."""

    @property
    def local(self) -> bool:
        """Whether managers and workers belong to the cluster of this machine."""
        return self.enabled and not self.managers

    def addresses(self) -> tuple[tuple[str, int], ...]:
        """:attr:`managers` as pairs of host and port; raises :class:`ShuffleMisconfigured`."""
        try:
            return tuple(parse_address(each) for each in self.managers)
        except PkiError as error:
            raise ShuffleMisconfigured(f"shuffle.managers: {error.what}", 'as in ["shuffle1.internal:7337"]') from error


def check_shuffle(config: ShuffleConfig) -> ShuffleConfig:
    """Return ``config`` if its values are consistent; raises :class:`ShuffleMisconfigured`, which names the key."""
    config.addresses()
    if config.heartbeat_timeout <= config.heartbeat_interval:
        raise ShuffleMisconfigured("shuffle.heartbeat_timeout must be longer than shuffle.heartbeat_interval")
    if config.job_lease <= config.heartbeat_timeout:
        raise ShuffleMisconfigured("shuffle.job_lease must be longer than shuffle.heartbeat_timeout")
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
