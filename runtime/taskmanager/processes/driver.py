"""One driver: its identity, its agent process and its directories.

The agent (:mod:`sluice.runtime.spark.driver.main`) is trusted: it speaks RPC for the driver and starts the job's code.
The private key is generated here and never leaves this machine. The JobMaster signs only the CSR of the driver that it
told this TaskManager to launch. In the driver's directory, the job can write only ``work`` and ``reports``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sluice.core import (
    UnsafeFile,
    clear_untrusted,
    is_regular_file,
    make_private_directory,
    open_untrusted,
    side_by_side,
)
from sluice.pki import SpiffeId
from sluice.pki.issuing import SignedChain
from sluice.runtime.job_network import AttachmentServer, JobNetwork, WaitingNetwork
from sluice.runtime.messages import (
    MAX_EVENT_LOG_CHUNK_BYTES,
    DriverCsr,
    DriverLaunch,
    EventLogChunk,
    Evidence,
)
from sluice.runtime.node import ChildProcess, Exit, LeaderDiscovery, keep_renewed, shorten_log
from sluice.runtime.sandbox import IsolationConfig, Trial
from sluice.runtime.spark import read_evidence
from sluice.runtime.spark.driver import CUT, EVENT_LOG, EXIT_UNUSABLE, DriverSpec
from sluice.runtime.spark.jvm import SparkRuntime
from sluice.runtime.taskmanager.errors import DriverNotStarted
from sluice.runtime.taskmanager.processes.agent import AGENT, LOG_FILES, SpareAgent, StartedAgent
from sluice.runtime.taskmanager.processes.identity import make_identity
from sluice.runtime.taskmanager.waiting import WaitingDriverAgent, release_resources

SignDriver = Callable[[DriverCsr], Awaitable[SignedChain]]


def driver_directory(jobs: Path, job_id: str, attempt: int) -> Path:
    """The directory of a driver below ``<work>/jobs``."""
    return jobs / job_id / f"driver-{attempt}"


@dataclass(frozen=True, slots=True)
class DriverHome:
    """Settings that all drivers of a TaskManager share.


    Attributes:
        jobs: the directory of all jobs of this TaskManager.
        host: the address that the driver's Spark listens on.
        trust_domain: the trust domain of the cluster.
        leader: where a driver looks for the leading JobManager.
        isolation: the isolation of the driver's JVM and Python.
        trial: the isolation features found on this machine; None: each agent tests them itself.
        private: paths that no job may see.
        event_log_bytes: maximum size of a driver's compressed event log; 0: no event log is kept.
        spark: returns the Java and Spark installation of the JVMs; None: each agent finds it itself.
        argv: the command of a driver agent, which is followed by the path of its spec.
        spare: keeps an agent started that knows no driver; None: there is none.
    """

    jobs: Path
    host: str
    trust_domain: str
    leader: LeaderDiscovery
    isolation: IsolationConfig
    trial: Trial | None = None
    private: Sequence[Path] = ()
    event_log_bytes: int = 0
    spark: Callable[[], SparkRuntime | None] = lambda: None
    argv: Sequence[str] = AGENT
    spare: SpareAgent | None = None


JoinDriver = Callable[["HostedDriver"], Awaitable[JobNetwork]]
"""Opens the network of a driver and tells its JobMaster the listening ports."""


class HostedDriver:
    """A driver that is not started yet, is running, or has ended.


    Args:
        launch: the launch request.
        home: the settings of all drivers of this TaskManager.
        token: the fencing token of its JobMaster.
        sign: asks the JobMaster to sign its CSR.
        join: opens its network; None: it shares the machine's.
        waiting: a warm agent that is to run it; None: it gets an agent without a JVM.
    """

    def __init__(
        self,
        launch: DriverLaunch,
        home: DriverHome,
        *,
        token: bytes,
        sign: SignDriver,
        join: JoinDriver | None = None,
        waiting: WaitingDriverAgent | None = None,
    ) -> None:
        self.launch = launch
        self.ended = asyncio.Event()
        """Set when no process of the driver is left, or when it was not started."""
        self._home = home
        self._token = token
        self._sign = sign
        self._join = join
        self.directory = driver_directory(home.jobs, launch.job_id, launch.attempt)
        self._spec = self.directory / "driver.json"
        self._settle(waiting)
        self.identity = self.directory / "identity"
        self._child: ChildProcess | None = None
        self._grace: float | None = None

    def _settle(self, waiting: WaitingDriverAgent | None) -> None:
        """Choose its directories: its own, or those of the warm agent."""
        self._waiting = waiting
        place = self._place = None if waiting is None else waiting.place
        self._work = self.directory / "work" if place is None else place.work
        self._reports = self.directory / "reports" if place is None else place.reports
        self._network: JobNetwork | None = None

    @property
    def waiting_network(self) -> WaitingNetwork | None:
        """The network of the warm agent's sandboxes."""
        return None if self._waiting is None else self._waiting.network

    @property
    def directories(self) -> tuple[Path, ...]:
        """The directories below which its processes run."""
        return (self.directory, *(() if self._place is None else (self._place.directory,)))

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that are assigned to it; empty if it chooses its own."""
        return () if self._network is None else self._network.ports.ports

    @property
    def started(self) -> bool:
        """Whether its process was started."""
        return self._child is not None

    async def start(self) -> ChildProcess:
        """Start the agent, and prepare its identity and network meanwhile; raises :class:`DriverNotStarted`.

        The agent does nothing until it is told that its spec is written.
        """
        make_private_directory(self.directory)
        if self._waiting is not None:
            agent = await self._take_over(self._waiting)
            if agent is not None:
                return agent
            return await self._start_elsewhere()
        return await self._start_new()

    @property
    def is_warm(self) -> bool:
        """Whether it runs in a warm agent."""
        return self._waiting is not None

    def warm_agent_unusable(self, ended: Exit) -> bool:
        """Whether its agent ended because its warm JVM or Python could not be used. No code of the job has run then."""
        return self._waiting is not None and ended.code == EXIT_UNUSABLE

    async def start_again(self) -> ChildProcess:
        """Start it with a new agent after :meth:`warm_agent_unusable` was true. Raises the errors of :meth:`start`."""
        self._child = None
        self._check_wanted()
        return await self._start_elsewhere()

    async def _start_elsewhere(self) -> ChildProcess:
        await asyncio.to_thread(self._leave)
        self._settle(None)
        return await self._start_new()

    async def _take_over(self, waiting: WaitingDriverAgent) -> ChildProcess | None:
        """Let the warm agent become this driver's; None if it cannot, and has ended."""
        await side_by_side(self.renew_identity(), self._join_network())
        await asyncio.to_thread(self._write_spec, -1)
        self._check_wanted()
        agent = await waiting.become(self._spec, self.directory)
        if agent is not None:
            self._child = agent
            if self._grace is not None:  # asked to end while it was being started
                await agent.stop(self._grace)
        return agent

    async def _join_network(self) -> None:
        if self._join is not None:
            self._network = await self._join(self)

    def _check_wanted(self) -> None:
        if self._grace is not None:
            raise DriverNotStarted(f"the driver of job {self.launch.job_id} was given up before it was started")

    async def _start_new(self) -> ChildProcess:
        for path in (self._work, self._reports):
            make_private_directory(path)
        agent = await self._agent()
        try:
            await side_by_side(self.renew_identity(), self._open_network(agent))
            await asyncio.to_thread(self._write_spec, agent.inherited)
            await self._begin(agent)
        except BaseException:
            await asyncio.shield(agent.close())
            raise
        if self._grace is not None:  # asked to end while it was being started
            await agent.child.stop(self._grace)
        return agent.child

    async def _agent(self) -> StartedAgent:
        """The spare agent, or else a new one."""
        spare = None if self._home.spare is None else await self._home.spare.take(self.directory)
        if spare is not None:
            return spare
        argv = (*self._home.argv, str(self._spec))
        return await StartedAgent.start(argv, self.directory, networked=self._join is not None)

    async def _begin(self, agent: StartedAgent) -> None:
        self._check_wanted()
        self._child = agent.child
        await agent.begin(self._spec)

    async def _open_network(self, agent: StartedAgent) -> None:
        """Open its network and serve the agent's attachments; without networks, it shares the machine's."""
        if agent.attachments is None:
            return
        await self._join_network()
        if self._network is not None:
            AttachmentServer(self._network, agent.attachments)  # the event loop holds it
            agent.attachments = None

    def _write_spec(self, attachments: int) -> None:
        launch = self.launch
        DriverSpec(
            job_id=launch.job_id,
            attempt=launch.attempt,
            name=launch.name,
            trust_domain=self._home.trust_domain,
            leader=self._home.leader,
            jobmaster_token=self._token.hex(),
            identity_dir=str(self.identity),
            work_dir=str(self._work),
            reports_dir=str(self._reports),
            log_dir=str(self.directory),
            host=self._home.host,
            executors=launch.executors,
            executor_cores=launch.executor_cores,
            executor_memory_mb=launch.executor_memory_mb,
            driver_memory_mb=launch.driver_memory_mb,
            stop_grace_seconds=launch.stop_grace,
            start_timeout_seconds=launch.start_timeout,
            lease_seconds=launch.lease,
            allow_conf=launch.allow_conf,
            event_log_bytes=self._home.event_log_bytes,
            isolation=self._home.isolation,
            trial=self._home.trial,
            spark=self._home.spark(),
            private_dirs=tuple(map(str, self._home.private)),
            ports={} if self._network is None else dict(self._network.ports.by_name),
            attachments=attachments,
            waited="" if self._place is None else self._place.id,
        ).write(self._spec)

    async def renew_identity(self) -> None:
        """Generate a new key and have its certificate signed. A running JVM reloads the files by itself."""

        async def sign(csr_pem: bytes) -> SignedChain:
            return await self._sign(DriverCsr(attempt=self.launch.attempt, csr_pem=csr_pem))

        driver = SpiffeId.driver(self._home.trust_domain, self.launch.job_id)
        await make_identity(self.identity, driver, sign)

    async def keep_renewed(self) -> None:
        """Renew the identity whenever it is due, until cancelled."""
        await keep_renewed(self.identity, self.renew_identity, f"driver of job {self.launch.job_id}")

    async def stop(self, grace: float) -> None:
        """Send SIGTERM, so that the agent ends JVM and Python; SIGKILL after ``grace`` seconds. Wait for its end."""
        self._grace = grace
        if self._child is not None:
            await self._child.stop(grace)

    async def end_waiting(self) -> None:
        """End the warm agent if the driver has not taken it over."""
        if self._waiting is not None and self._child is None:
            await self._waiting.end()

    def connections(self) -> Evidence:
        """The connections that the driver's JVM recorded."""
        return read_evidence(self._reports)

    def clean_up(self) -> None:
        """Clean up after its end: shorten and keep the logs; remove key, token, network and the job's files."""
        self._leave()
        clean_driver_directory(self.directory)

    def _leave(self) -> None:
        """Close its network, and end and remove what is left in the directories of a warm agent."""
        release_resources(self._place, self._network or self.waiting_network)


def clean_driver_directory(directory: Path) -> None:
    """Remove everything but the logs of a driver and Spark's event log."""
    logs = frozenset(LOG_FILES.values())
    clear_untrusted(directory, keep={*logs, EVENT_LOG, CUT})
    for name in logs:
        shorten_log(directory / name)


def driver_logs(directory: Path) -> tuple[str, ...]:
    """The names of the logs that a driver has left."""
    return tuple(name for name, file in LOG_FILES.items() if is_regular_file(directory, file))


def read_event_log(directory: Path, offset: int, limit: int) -> EventLogChunk:
    """A piece of the event log that a driver has left; empty if there is none."""
    try:
        with open_untrusted(directory, EVENT_LOG) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, offset))
            data = file.read(max(1, min(limit, MAX_EVENT_LOG_CHUNK_BYTES)))
    except (FileNotFoundError, UnsafeFile):
        return EventLogChunk(data=b"", end=True)
    return EventLogChunk(data=data, end=offset + len(data) >= size, cut=is_regular_file(directory, CUT))
