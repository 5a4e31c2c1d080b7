"""One executor: its identity, its process and its directories.

The private key is generated here and never leaves this machine. The JobMaster signs only the CSR of an executor that it
told this TaskManager to launch.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from sluice.core import clear_untrusted, make_private_directory, side_by_side
from sluice.pki import SpiffeId
from sluice.pki.issuing import SignedChain
from sluice.pki.trust import place_reports
from sluice.runtime.job_network import JobNetwork, WaitingNetwork
from sluice.runtime.messages import GIVE_WAY_SECONDS, CsrToSign, Evidence, ExecutorExit, ExecutorLaunch
from sluice.runtime.node import (
    ChildProcess,
    Exit,
    JobIdentity,
    can_return,
    in_background,
    keep_renewed,
    masker_of,
    open_log,
    own_checkpoints,
    secret_files,
    shorten_log,
)
from sluice.runtime.out_of_memory import HEAP_FULL, KernelKills, describe_exit
from sluice.runtime.sandbox import Box, Sandbox, View
from sluice.runtime.spark import read_evidence
from sluice.runtime.spark.jvm import Command, JvmPlace, make_temp_dir, remove_temp_dir
from sluice.runtime.taskmanager.errors import ExecutorNotStarted
from sluice.runtime.taskmanager.launcher import ExecutorLauncher
from sluice.runtime.taskmanager.processes.identity import make_identity
from sluice.runtime.taskmanager.waiting import EXECUTOR, STREAMS, WaitingExecutor, release_resources
from sluice.runtime.workload import AskKeys, AskToken, WorkloadPlace, WorkloadServer, no_keys, no_token

KILL_GRACE_SECONDS = 3.0
"""Time between SIGTERM and SIGKILL for an executor."""
SIGNAL_EXIT_BASE = 128
BLAMED_ON_APPLICATION = HEAP_FULL | {50, 51}
"""Exit codes that Spark may count as failures of the application: out of memory, and UNCAUGHT_EXCEPTION and
UNCAUGHT_EXCEPTION_TWICE of ``org.apache.spark.util.SparkExitCode``."""

Sign = Callable[[CsrToSign], Awaitable[SignedChain]]


def executor_directory(jobs: Path, job_id: str, executor_id: int) -> Path:
    """The directory of an executor below ``<work>/jobs``."""
    return jobs / job_id / f"executor-{executor_id}"


Join = Callable[["ExecutorProcess"], Awaitable[JobNetwork]]
"""Opens the network of an executor and tells its JobMaster the listening ports."""


class ExecutorProcess:
    """An executor that is not started yet, is running, or has ended.

    It runs in a sandbox in which it can read its identity and write its work, temporary and reports directories.
    """

    def __init__(  # identity, location and start parameters
        self,
        launch: ExecutorLaunch,
        jobs: Path,
        *,
        host: str,
        trust_domain: str,
        sign: Sign,
        sandbox: Sandbox,
        join: Join | None = None,
        ask_token: AskToken = no_token,
        ask_keys: AskKeys = no_keys,
        waiting: WaitingExecutor | None = None,
    ) -> None:
        self.launch = launch
        self._host = host
        self._trust_domain = trust_domain
        self._sign = sign
        self._sandbox = sandbox
        self._join = join
        self.directory = executor_directory(jobs, launch.job_id, launch.executor_id)
        self.identity = self.directory / "identity"
        self._settle(waiting)
        self._ask_token = ask_token
        self._ask_keys = ask_keys
        self._child: ChildProcess | None = None
        self._unwanted = False
        self._kills = KernelKills()
        self._kills_before = self._kills.count

    def _settle(self, waiting: WaitingExecutor | None) -> None:
        """Choose its directories: its own, or those of the warm JVM."""
        self._waiting = waiting
        place = self._place = None if waiting is None else waiting.place
        self._box_id = self.launch.job_id if place is None else place.id
        """Selects the uid of the process: the id of the job, or of the sandbox of the warm JVM."""
        self._work = self.directory / "work" if place is None else place.work
        self._reports = self.directory / "reports" if place is None else place.reports
        shown = None if place is None else place.identity
        self._of_job = JobIdentity(self.identity, self._sandbox, self._box_id, shown)
        self._temp: Path | None = None if place is None else place.temp
        self._network: JobNetwork | None = None
        self._workload: WorkloadServer | None = None

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that are assigned to it; empty if it chooses its own."""
        return () if self._network is None else self._network.ports.ports

    @property
    def waiting_network(self) -> WaitingNetwork | None:
        """The network of the warm JVM's sandbox."""
        return None if self._waiting is None else self._waiting.network

    @property
    def started(self) -> bool:
        """Whether its process was started."""
        return self._child is not None

    async def start(self, launcher: ExecutorLauncher) -> ChildProcess:
        """Get an identity and start the process."""
        make_private_directory(self.directory)
        child = await self._attempt(launcher)
        if child is None:
            await self.end_workload()
            await asyncio.to_thread(self._leave)
            self._settle(None)
            child = await self._attempt(launcher)
        if child is None:
            raise ExecutorNotStarted(f"executor {self.launch.executor_id} was not started")
        self._child = child
        try:
            await asyncio.to_thread(self._place_reports, child.pid)
        except BaseException:  # no caller gets the child, so nobody else could stop it
            await asyncio.shield(child.stop(0))
            raise
        if self._unwanted:  # stopped while it was being started: it has done nothing yet
            await child.stop(0)
        return child

    async def _attempt(self, launcher: ExecutorLauncher) -> ChildProcess | None:
        """Start it in its directories; None if the warm JVM cannot become this executor."""
        if self._waiting is None:
            for path in (self._work, self._reports):
                make_private_directory(path)
        temp = self._temp = self._temp or make_temp_dir()
        await side_by_side(self._identify(), self._open_network())
        ports = None if self._network is None else self._network.ports.by_name
        place = JvmPlace(self._of_job.visible_directory, self._work, temp, self._reports, self._host, ports)
        command = launcher.command(self.launch, place)
        more = {} if self._workload is None else self._workload.environment
        if self._waiting is not None:
            await asyncio.to_thread(self._of_job.refresh)
            self._check_wanted()
            return await self._waiting.become(self.launch, command, more, self.directory)
        return await self._start_cold(command, temp, more)

    def _check_wanted(self) -> None:
        if self._unwanted:
            raise ExecutorNotStarted(f"executor {self.launch.executor_id} was given up before it was started")

    async def _start_cold(self, command: Command, temp: Path, more: Mapping[str, str]) -> ChildProcess:
        """Start a new process for it."""
        box = await asyncio.to_thread(self._prepare, command, temp)
        self._check_wanted()
        masker = await asyncio.to_thread(masker_of, self.launch.secrets)
        with open_log(self.directory / "stdout") as stdout, open_log(self.directory / "stderr") as stderr:
            guard = self._sandbox.guard(
                box.limits, EXECUTOR, directories=(self._work, temp, self._reports), logs=(stdout, stderr)
            )
            return await ChildProcess.start(
                command.argv,
                env={**command.env, **more},
                cwd=self._work,
                stdout=stdout,
                stderr=stderr,
                box=box,
                guard=guard,
                masker=masker,
            )

    def _prepare(self, command: Command, temp: Path) -> Box:
        """Write all files that the process needs, and return its sandbox."""
        job_id = self.launch.job_id
        self._of_job.refresh()
        command.write_files()
        own = (self._work, temp, self._reports)
        self._sandbox.own(own, job_id)
        checkpoints = own_checkpoints(self.launch.checkpoints, self._sandbox, job_id)
        view = View(
            job_id=job_id,
            read_only=(*command.read_only, *(() if self._workload is None else (self._workload.place.directory,))),
            writable=own,
            shared=checkpoints,
            identity=self._of_job.visible_directory,
            secrets=secret_files(self.launch.secrets),
            home=self._work,
        )
        limits = self._sandbox.executor_limits(heap_mb=self.launch.memory_mb, cores=self.launch.cores)
        attachment = None if self._network is None else self._network.attach("executor")
        return self._sandbox.box(view, limits, network=attachment)

    async def _identify(self) -> None:
        """Get an identity and serve it to the job's code over the Workload API."""
        await self.renew_identity()
        server = WorkloadServer(
            WorkloadPlace(
                make_temp_dir() if self._place is None else self._place.workload, self._sandbox.uid(self._box_id)
            ),
            self.identity,
            self._spiffe_id,
            ask=self._ask_token,
            ask_keys=self._ask_keys,
            files=self.launch.token_files,
        )
        self._workload = server  # set before the start, so that it is cleaned up in any case
        await server.start()

    async def _open_network(self) -> None:
        if self._join is not None:
            self._network = await self._join(self)

    async def end_workload(self) -> None:
        """Stop serving tokens for this executor, and end the warm JVM if it has not been taken over."""
        if self._workload is not None:
            await self._workload.close()
        if self._waiting is not None and self._child is None:
            await self._waiting.end()

    async def lower_priority(self) -> None:
        """Let other processes have the CPU first while it starts, for at most ``GIVE_WAY_SECONDS``.

        Has no effect on a warm JVM, which has started already, and without CAP_SYS_NICE, which is needed to undo it.
        """
        child = self._child
        if child is None or self._waiting is not None or not can_return() or in_background():
            return
        await child.to_background()
        try:
            await asyncio.sleep(GIVE_WAY_SECONDS)
        finally:
            if child.running:
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    await child.to_foreground()

    def _place_reports(self, pid: int) -> None:
        place_reports(self.identity, pid, str(self._spiffe_id), self._reports)

    @property
    def _spiffe_id(self) -> SpiffeId:
        return SpiffeId.executor(self._trust_domain, self.launch.job_id, self.launch.executor_id)

    async def renew_identity(self) -> None:
        """Generate a new key and have its certificate signed. A running JVM reloads the files by itself."""

        async def sign(csr_pem: bytes) -> SignedChain:
            return await self._sign(CsrToSign(executor_id=self.launch.executor_id, csr_pem=csr_pem))

        await make_identity(self.identity, self._spiffe_id, sign)

    async def keep_renewed(self) -> None:
        """Renew the identity whenever it is due, until cancelled."""
        owner = f"executor {self.launch.executor_id} of job {self.launch.job_id}"
        renewing = keep_renewed(self.identity, self.renew_identity, owner)
        await asyncio.gather(renewing, self._of_job.keep_fresh())

    async def stop(self) -> None:
        """End the process with SIGTERM, then SIGKILL; wait for its end."""
        self._unwanted = True
        if self._child is not None:
            await self._child.stop(KILL_GRACE_SECONDS)

    def connections(self) -> Evidence:
        """The connections that the executor's JVM recorded."""
        return read_evidence(self._reports)

    def excess(self) -> str:
        """The resource limit that it has exceeded so far; empty if none."""
        return self._child.excess_so_far() if self._child is not None else ""

    def exit_report(self, ended: Exit) -> ExecutorExit:
        """How the executor ended, for the JobMaster and Spark."""
        code = ended.code if ended.code >= 0 else SIGNAL_EXIT_BASE - ended.code
        excess = self.excess()
        reason = excess or describe_exit(
            ended,
            memory_mb=self.launch.memory_mb,
            setting="--executor-memory",
            kernel_killed=self._kills.count > self._kills_before,
        )
        return ExecutorExit(
            executor_id=self.launch.executor_id,
            exit_code=code,
            by_application=bool(excess) or code in BLAMED_ON_APPLICATION,
            reason=reason,
            host=self._host,
        )

    def clean_up(self) -> None:
        """Clean up after its end: shorten and keep the logs; remove key, secrets, shuffle files and network."""
        self._leave()
        clean_executor_directory(self.directory)

    def _leave(self) -> None:
        """Close its network, end what is left in the directories of a warm JVM, and remove temporary directories."""
        release_resources(self._place, self._network or self.waiting_network)
        if self._place is None:
            for path in (self._temp, None if self._workload is None else self._workload.place.directory):
                if path is not None:
                    remove_temp_dir(path)


def clean_executor_directory(directory: Path) -> None:
    """Remove everything but the logs of an executor."""
    clear_untrusted(directory, keep=STREAMS)
    for name in STREAMS:
        shorten_log(directory / name)
