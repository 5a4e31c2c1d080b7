"""What a driver agent needs to know to start: written by its TaskManager, read by ``runtime.spark.driver.main``.

The TaskManager fills a :class:`DriverSpec`, writes it with :meth:`DriverSpec.write` (0600: it holds the fencing
token) where the job has no way to, and starts ``python -m sluice.runtime.spark.driver.main SPEC``. Everything
about the *work* (pipeline, arguments, Spark settings, Spark's secret) is not in here; the agent asks for it over
its own mutual TLS connection with ``JobMasterGateway.register_driver``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from sluice.core import read_secret, write_secret
from sluice.runtime.node import LeaderPlace
from sluice.runtime.sandbox import IsolationConfig, Trial
from sluice.runtime.spark.errors import DriverFailed
from sluice.runtime.spark.jvm import DriverShape, SparkRuntime

MAX_SPEC_BYTES = 512 << 10
"""Spark has some 300 jars, each of which is named."""
BEGIN = b"begin\n"
"""What an agent reads on its standard input when its spec is there."""
EXIT_WAITED_IN_VAIN = 75
"""EX_TEMPFAIL of sysexits(3): of an agent that has waited, when no code of the job has run and a new one can."""


class DriverSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One driver attempt.

    Attributes:
        job_id: 32 hexadecimal digits.
        attempt: number of this attempt, from 1.
        name: what the job is called (``spark.app.name``).
        trust_domain: of the cluster.
        leader: where to look for the JobManager that leads.
        jobmaster_token: fencing token of the JobMaster, in hexadecimal.
        identity_dir: identity directory of the driver, with a ``peers`` file (``spiffe://<td>/job/<job-id>/*``).
        work_dir: private directory of this attempt, in which the job may write.
        reports_dir: where the JVM tells what it has connected to and what it trusts.
        log_dir: for ``driver.stdout``, ``driver.stderr`` and ``driver.jvm.log``; the job has no way into it.
        host: the address that the driver's Spark listens on.
        executors, executor_cores, executor_memory_mb, driver_memory_mb: the size of the job.
        reconnect_seconds: how long a lost JobManager is waited for before the driver stops itself.
        stop_grace_seconds: how long Python and the JVM get to end by themselves.
        start_timeout_seconds: how long the driver's JVM may take to come up.
        lease_seconds: how long the driver may go on without word from a JobManager that leads; 0: there is no other
            that could lead.
        allow_conf: Spark settings that the operator allows the job's code in addition.
        isolation: what JVM and Python run in.
        trial: how the TaskManager found this machine to give that; None: the agent tries it itself.
        spark: the Java, Spark and plugin that the TaskManager has examined; None: the agent does it itself.
        ports: assigned to the driver, by what it listens for; empty: it listens where it wants.
        waited: in the place of a job's id, whose uid its boxes have, if JVM and Python have waited for it; else empty.
        attachments: descriptor over which its boxes are attached to the job's network; -1: they share the machine's.
        event_log_bytes: largest event log that is kept, compressed; 0: none is.
        private_dirs: what no job may see, wherever it is: the home directory with its keys.
    """

    job_id: str
    attempt: int
    name: str
    trust_domain: str
    leader: LeaderPlace
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
        """The fencing token as it goes on the wire."""
        return bytes.fromhex(self.jobmaster_token)

    @property
    def shape(self) -> DriverShape:
        """The size of the job as the launcher's Spark settings want it."""
        return DriverShape(self.executors, self.executor_cores, self.executor_memory_mb, self.driver_memory_mb)

    def write(self, path: Path) -> Path:
        """Write the spec to ``path`` with mode 0600; returns ``path``."""
        write_secret(path, msgspec.json.encode(self, enc_hook=str))  # a path
        return path

    @classmethod
    def read(cls, path: Path) -> DriverSpec:
        """Read a spec; a file that others may read, or that does not decode, is refused."""
        try:
            spec = msgspec.json.decode(read_secret(path, MAX_SPEC_BYTES), type=cls, dec_hook=as_path)
            bytes.fromhex(spec.jobmaster_token)
        except (msgspec.DecodeError, ValueError) as error:
            raise DriverFailed(f"{path} is not a driver spec: {error}", "it is written by the TaskManager") from error
        return spec


def as_path(kind: type, value: Any) -> Path:  # noqa: ANN401  # whatever JSON has there
    """How a spec's paths are decoded."""
    if kind is not Path or not isinstance(value, str):
        raise NotImplementedError(f"{kind.__name__} is none of a spec's types")
    return Path(value)
