"""The start parameters of a driver agent: its TaskManager writes them, and ``runtime.spark.driver.main`` reads them.

The TaskManager writes a :class:`DriverSpec` with :meth:`DriverSpec.write` (0600, because it contains the fencing token)
to a directory without access for the job, and starts ``python -m sluice.runtime.spark.driver.main SPEC``. The spec
contains nothing about the *work* (pipeline, arguments, Spark settings, Spark's secret): the agent requests that over
its own mutual TLS connection with ``JobMasterGateway.register_driver``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from sluice.core import read_secret, write_secret
from sluice.runtime.node import LeaderDiscovery
from sluice.runtime.sandbox import IsolationConfig, Trial
from sluice.runtime.spark.errors import DriverFailed
from sluice.runtime.spark.jvm import DriverShape, SparkRuntime

MAX_SPEC_BYTES = 512 << 10
"""Maximum size of a spec, which lists about 300 Spark jars."""
BEGIN = b"begin\n"
"""The line on standard input that tells an agent that its spec is complete."""
SPARE = "--spare"
"""The option of an agent that gets the path of its spec on standard input."""
EXIT_UNUSABLE = 75
"""Exit code (EX_TEMPFAIL of sysexits(3)) of a waiting agent that cannot run the driver. A new agent can run it."""


class DriverSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One driver attempt.

    Attributes:
        job_id: 32 hexadecimal digits.
        attempt: number of this attempt, from 1.
        name: the name of the job (``spark.app.name``).
        trust_domain: the trust domain of the cluster.
        leader: how to find the leading JobManager.
        jobmaster_token: fencing token of the JobMaster, in hexadecimal.
        identity_dir: identity directory of the driver, with a ``peers`` file (``spiffe://<td>/job/<job-id>/*``).
        work_dir: private directory of this attempt, to which the job may write.
        reports_dir: directory for the JVM's reports about its connections and what it trusts.
        log_dir: for ``driver.stdout``, ``driver.stderr`` and ``driver.jvm.log``; the job has no access to it.
        host: the address that the driver's Spark listens on.
        executors, executor_cores, executor_memory_mb, driver_memory_mb: the size of the job.
        reconnect_seconds: how long to wait for a lost JobManager before the driver stops itself.
        stop_grace_seconds: grace period for Python and the JVM to end by themselves.
        start_timeout_seconds: timeout for the start of the driver's JVM.
        lease_seconds: how long the driver may continue without an answer from a leading JobManager; 0: without limit,
            because no other JobManager could lead.
        allow_conf: Spark settings that the operator additionally allows in the job's code.
        isolation: the isolation of JVM and Python.
        trial: the TaskManager's trial of this isolation; None: the agent tries it itself.
        spark: the Java, Spark and plugin that the TaskManager has found; None: the agent finds them itself.
        ports: the driver's assigned ports by the name of the listener; empty: it chooses them itself.
        waited: the id that determines the uid of the boxes if JVM and Python have waited for the job; otherwise empty.
        attachments: descriptor over which its boxes attach to the job's network; -1: they use the machine's network.
        event_log_bytes: maximum compressed size of the event log; 0: no event log is kept.
        private_dirs: directories that no job may see, wherever they are, such as the home directory with its keys.
    """

    job_id: str
    attempt: int
    name: str
    trust_domain: str
    leader: LeaderDiscovery
    jobmaster_token: str
    identity_dir: str
    work_dir: str
    reports_dir: str
    log_dir: str
    host: str = "127.0.0.1"
    executors: int = 2
    executor_cores: int = 1
    executor_memory_mb: int = 768
    driver_memory_mb: int = 768
    reconnect_seconds: float = 30.0
    stop_grace_seconds: float = 15.0
    start_timeout_seconds: float = 120.0
    lease_seconds: float = 0.0
    allow_conf: tuple[str, ...] = ()
    event_log_bytes: int = 0
    isolation: IsolationConfig = IsolationConfig()
    trial: Trial | None = None
    spark: SparkRuntime | None = None
    private_dirs: tuple[str, ...] = ()
    ports: dict[str, int] = {}
    attachments: int = -1
    waited: str = ""

    @property
    def token(self) -> bytes:
        """The fencing token in its wire format."""
        return bytes.fromhex(self.jobmaster_token)

    @property
    def shape(self) -> DriverShape:
        """The size of the job for the launcher's Spark settings."""
        return DriverShape(self.executors, self.executor_cores, self.executor_memory_mb, self.driver_memory_mb)

    def write(self, path: Path) -> Path:
        """Write the spec to ``path`` with mode 0600; return ``path``."""
        write_secret(path, msgspec.json.encode(self, enc_hook=str))  # str() encodes paths
        return path

    @classmethod
    def read(cls, path: Path) -> DriverSpec:
        """Read a spec.

        Raises:
            DriverFailed: the file cannot be decoded.
        """
        try:
            spec = msgspec.json.decode(read_secret(path, MAX_SPEC_BYTES), type=cls, dec_hook=as_path)
            bytes.fromhex(spec.jobmaster_token)
        except (msgspec.DecodeError, ValueError) as error:
            raise DriverFailed(f"{path} is not a driver spec: {error}", "the TaskManager writes it") from error
        return spec


def as_path(kind: type, value: Any) -> Path:  # noqa: ANN401  # any JSON value
    """Decode a path of a spec."""
    if kind is not Path or not isinstance(value, str):
        raise NotImplementedError(f"a spec has no values of type {kind.__name__}")
    return Path(value)
