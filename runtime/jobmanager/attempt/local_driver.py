"""Drivers as processes of the JobManager's machine: directory, identity, process.

The identity (``spiffe://<td>/job/<job-id>/driver``) is issued for this job alone, and renewed in place at
half of its life for as long as the driver runs.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from sluice.core import clear_untrusted, is_regular_file, make_private_directory
from sluice.pki import SpiffeId
from sluice.pki.issuing import Issuer
from sluice.runtime.jobmanager.attempt.driver import DRIVER_LOGS
from sluice.runtime.messages import Evidence, JobSubmission, LogChunk, SlotProfile
from sluice.runtime.node import ChildProcess, LeaderPlace, keep_renewed, open_log, read_log, shorten_log
from sluice.runtime.spark import read_evidence
from sluice.runtime.spark.driver import DriverSpec

PASSED_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "JAVA_HOME", "XDG_CACHE_HOME", "USER")
"""What a driver agent inherits of the JobManager's environment; nothing else."""

LOG_FILES = dict(
    zip(DRIVER_LOGS, ("driver.stdout", "driver.stderr", "driver.jvm.log", "driver.agent.log"), strict=True)
)
"""The file of each log in the attempt's directory."""

DriverArgv = Callable[[Path], Sequence[str]]
"""The command that runs a driver agent with the spec at this path."""


def attempt_directory(jobs: Path, job_id: str, attempt: int) -> Path:
    """Where an attempt lives below ``jobs`` (see :attr:`sluice.core.home.Home.jobs`)."""
    return jobs / job_id / f"attempt-{attempt}"


@dataclass(frozen=True, slots=True)
class DriverHost:
    """A :class:`DriverLauncher` for this machine: who signs, how drivers are started, and where they call home."""

    jobs: Path
    issuer: Issuer
    trust_domain: str
    identity_lifetime: timedelta
    leader: LeaderPlace
    host: str
    executor_cores: int
    executor_memory_mb: int
    driver_memory_mb: int
    start_timeout: float
    stop_grace: float
    argv: DriverArgv
    lease: float = 0.0
    allow_conf: tuple[str, ...] = ()
    """Spark settings that the operator allows jobs in addition, see ``[jobs] allow_conf``."""

    def executor_size(self, submission: JobSubmission) -> SlotProfile:
        """How large the executors of a job are: what it asked for, else the cluster's default."""
        return SlotProfile(
            cores=submission.executor_cores or self.executor_cores,
            memory_mb=submission.executor_memory_mb or self.executor_memory_mb,
        )

    def driver(self, job_id: str, attempt: int, submission: JobSubmission, token: bytes) -> LocalDriver:
        """A driver of this machine, which is not started yet."""
        return LocalDriver(self, job_id, attempt, submission, token)

    async def logs(self, job_id: str, attempt: int) -> tuple[str, ...]:
        """Those that are regular files."""
        directory = attempt_directory(self.jobs, job_id, attempt)
        found = await asyncio.to_thread(lambda: [is_regular_file(directory, file) for file in LOG_FILES.values()])
        return tuple(name for name, there in zip(LOG_FILES, found, strict=True) if there)

    async def read_log(self, job_id: str, attempt: int, name: str, offset: int, limit: int) -> LogChunk:
        """A piece of the log's file."""
        path = attempt_directory(self.jobs, job_id, attempt) / LOG_FILES[name]
        return await asyncio.to_thread(read_log, path, offset, limit)


class LocalDriver:
    """A :class:`~sluice.runtime.jobmanager.attempt.driver.Driver` that is a process of this machine."""

    def __init__(self, host: DriverHost, job_id: str, attempt: int, submission: JobSubmission, token: bytes) -> None:
        self._host = host
        self._job_id = job_id
        self._attempt = attempt
        self._submission = submission
        self._token = token
        self.directory = attempt_directory(host.jobs, job_id, attempt)
        self._identity = self.directory / "identity"
        self._reports = self.directory / "reports"
        self._work = self.directory / "work"
        self._child: ChildProcess | None = None

    @property
    def running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._child is not None and self._child.running

    async def start(self) -> None:
        """Issue the identity, write the spec, and start the process."""
        spec = await asyncio.to_thread(self._prepare)
        environment = {name: os.environ[name] for name in PASSED_ENVIRONMENT if name in os.environ}
        with open_log(self.directory / LOG_FILES["driver.agent"]) as log:
            self._child = await ChildProcess.start(
                self._host.argv(spec),
                env=environment,
                cwd=self.directory,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
            )

    def _prepare(self) -> Path:
        for path in (self.directory, self._work, self._reports):
            make_private_directory(path)
        self._issue()
        size = self._host.executor_size(self._submission)
        return DriverSpec(
            job_id=self._job_id,
            attempt=self._attempt,
            name=self._submission.name,
            trust_domain=self._host.trust_domain,
            leader=self._host.leader,
            jobmaster_token=self._token.hex(),
            identity_dir=str(self._identity),
            work_dir=str(self._work),
            reports_dir=str(self._reports),
            log_dir=str(self.directory),
            host=self._host.host,
            executors=self._submission.executors,
            executor_cores=size.cores,
            executor_memory_mb=size.memory_mb,
            driver_memory_mb=self._host.driver_memory_mb,
            stop_grace_seconds=self._host.stop_grace,
            start_timeout_seconds=self._host.start_timeout,
            lease_seconds=self._host.lease,
            allow_conf=self._host.allow_conf,
        ).write(self.directory / "driver.json")

    def _issue(self) -> None:
        self._host.issuer.issue_to(
            self._identity,
            SpiffeId.driver(self._host.trust_domain, self._job_id),
            lifetime=self._host.identity_lifetime,
            accept=[f"spiffe://{self._host.trust_domain}/job/{self._job_id}/*"],
        )

    async def ended(self) -> str:
        """Wait for the end of the process, and keep its identity fresh meanwhile."""
        if self._child is None:
            return "it was never started"
        renewal = asyncio.create_task(keep_renewed(self._identity, self._renew, f"driver of job {self._job_id}"))
        try:
            return f"{await self._child.wait()}; see driver.agent and driver.stderr"
        finally:
            renewal.cancel()
            await asyncio.wait([renewal])

    async def _renew(self) -> None:
        """Replace certificate and key by new ones; the running JVM picks them up by itself."""
        await asyncio.to_thread(self._issue)

    async def stop(self, grace: float) -> None:
        """SIGTERM, and SIGKILL to what is left of its process group after ``grace`` seconds."""
        if self._child is not None:
            await self._child.stop(grace)

    async def connections(self) -> Evidence:
        """What the driver's JVM recorded."""
        return await asyncio.to_thread(read_evidence, self._reports)

    async def clean_up(self) -> None:
        """After the end: only the logs stay."""
        await asyncio.to_thread(clean_attempt_directory, self.directory)


def clean_attempt_directory(directory: Path) -> None:
    """Keep nothing but the logs of an attempt, shortened; key, token and the job's files go."""
    logs = frozenset(LOG_FILES.values())
    clear_untrusted(directory, keep=logs)
    for name in logs:
        shorten_log(directory / name)
