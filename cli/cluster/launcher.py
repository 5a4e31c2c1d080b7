"""``sluice up``: the whole cluster on this machine, under one supervising process.

The launcher starts the online authority, gets identities from it, starts each process as ``sluice run …``, waits
until the cluster accepts jobs, restarts processes that end by themselves, renews certificates at half-life, and stops
everything in order. Its children die with it, however it ends (see :mod:`sluice.runtime.node.child_process`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

import aiohttp
import psutil

from sluice.cli.cluster import comebacks
from sluice.cli.cluster.environment import authority_environment, common_environment, member_environment
from sluice.cli.cluster.identities import (
    ca_address,
    ca_names,
    issue_due,
    jobmanager_names,
    prepare_authorities,
    refresh_lists,
    shuffle_manager_names,
    shuffle_worker_names,
    taskmanager_names,
)
from sluice.cli.cluster.provision import provide_forever, read_health
from sluice.cli.cluster.records import (
    ClusterRecord,
    ProcessRecord,
    end_survivors,
    launcher_lock,
    read_record,
    write_record,
)
from sluice.cli.cluster.supervision import Member, Supervisor, unfailing
from sluice.cli.config import Configuration
from sluice.cli.errors import EXIT_NO, CommandError
from sluice.cli.published_routes import publish_routes
from sluice.core import EgressMode, Home, SluiceError, egress_mode, make_private_directory
from sluice.gateway import auth_names, envoy_names, require_free_port
from sluice.gateway.connect import connect_socket
from sluice.gateway.service import auth_announcement, envoy_announcement
from sluice.runtime import Provider
from sluice.runtime.node import ChildProcess
from sluice.runtime.sandbox import Sandbox

_LOG = logging.getLogger(__name__)

READY_TIMEOUT_SECONDS = 90.0
STOP_GRACE_SECONDS = 20.0
RENEWAL_CHECK_SECONDS = 60.0
LOG_TAIL_BYTES = 4000

Report = Callable[[str], None]


@dataclass
class Launcher:
    """One cluster on this machine."""

    home: Home
    configuration: Configuration
    config_file: Path | None
    report: Report
    _members: list[Member] = field(default_factory=list)
    _ready_at: float = 0.0
    _started_at: float = 0.0
    _archiving: ChildProcess | None = None
    _java_home: str = ""

    def __post_init__(self) -> None:
        """Use the defaults of a whole cluster, because this starts all of it."""
        self.configuration = self.configuration.embedded()
        self.report = unfailing(self.report)

    @property
    def ready(self) -> bool:
        """Whether the cluster has accepted jobs since its start."""
        return self._ready_at > 0

    async def run(self, on_ready: Callable[[], None], stop: asyncio.Event) -> None:
        """Start everything, call ``on_ready``, supervise until ``stop`` is set, then stop everything."""
        self.home.create()
        with launcher_lock(self.home):
            self._clear_leftovers()
            self._started_at = time.time()
            try:
                await self._start()
                self._ready_at = time.time()
                self._write_record()
                on_ready()
                await self._make_class_archive()
                await self._supervise(stop)
            finally:
                if self._archiving is not None:
                    await self._archiving.stop(0)
                await self._stop_all()
                self._forget()

    def _clear_leftovers(self) -> None:
        record = read_record(self.home)
        if record is not None:
            ended = end_survivors(record)
            if ended:
                self.report(f"ended {ended} processes that an earlier launcher had left running")
        for name in ("endpoints", comebacks.COMEBACKS, "cluster.json"):
            path = self.home.run / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for part in (self.home, *self._more_envoys()):
            for socket in part.sockets.glob("*.sock"):
                socket.unlink(missing_ok=True)
        for part in self._more_envoys():
            shutil.rmtree(part.run / "endpoints", ignore_errors=True)
        make_private_directory(self.home.run / "endpoints")

    def _forget(self) -> None:
        (self.home.run / "cluster.json").unlink(missing_ok=True)
        shutil.rmtree(self.home.run / "endpoints", ignore_errors=True)
        for part in (*self._more_envoys(), self.home):
            part.remove_socket_directory()

    def _more_envoys(self) -> list[Home]:
        """The directories of further Envoys."""
        return [self.home.envoy(name) for name in envoy_names(self.configuration.gateway)[1:]]

    async def _start(self) -> None:
        from sluice.runtime.spark import ensure_plugin, find_spark
        from sluice.runtime.spark.jvm import find_spark_java

        # One for the life of this cluster: a job's JVMs must not use two.
        self._java_home = str((await asyncio.to_thread(find_spark_java, find_spark())).home)
        gateway = self.configuration.gateway
        if gateway.envoys > 1:
            # They share the port with each other, and would share it with those of another cluster.
            require_free_port(gateway.host, gateway.port)
        # First, because without it no TaskManager would start; and here the user sees the remedy.
        isolation = self.configuration.isolation
        own = egress_mode(self.configuration.egress, isolation.level) is not EgressMode.OFF
        await asyncio.to_thread(Sandbox.prepare, isolation, own_networks=own)
        for line in prepare_authorities(self.home, self.configuration):
            self.report(line)
        authorities = self._authorities()
        self._members += authorities
        for member in authorities:
            await self._start_member(member)
            self._write_record()
        self.report("compiling the Spark plugin (cached after the first time)")
        await asyncio.to_thread(ensure_plugin)
        for member in authorities:
            await self._wait_for_ca(member)
        publish_routes(self.home)
        count = {
            Provider.STANDALONE: self.configuration.taskmanager.count,
            Provider.PROCESS: self.configuration.resources.min_taskmanagers,
            Provider.KUBERNETES: 0,
        }[self.configuration.resources.provider]
        plan = [
            *self._shuffle_service(),
            *self._jobmanagers(),
            *self._auth_services(),
            Member("connect", ("connect",)),
            *(Member(name, ("taskmanager", "--name", name)) for name in taskmanager_names(count)),
            *self._envoys(),
        ]
        self._members += plan
        await self._issue_due()
        self.report(f"starting {', '.join(member.name for member in plan)}")
        for member in plan:
            await self._start_member(member)
            self._write_record()
        await self._wait_ready(count)

    def _authorities(self) -> list[Member]:
        """A single one is named after its role; several have their own names."""
        names = ca_names(self.configuration.ca.count)
        if len(names) == 1:
            return [Member("ca", ("ca",))]
        return [Member(name, ("ca", "--name", name)) for name in names]

    def _jobmanagers(self) -> list[Member]:
        """A single one is named after its role; several have their own names."""
        names = jobmanager_names(self.configuration.jobmanager.count)
        if len(names) == 1:
            return [Member("jobmanager", ("jobmanager",))]
        return [Member(name, ("jobmanager", "--name", name)) for name in names]

    def _auth_services(self) -> list[Member]:
        """A single one is named after its role; several have their own names."""
        names = auth_names(self.configuration.gateway)
        if len(names) == 1:
            return [Member("auth", ("auth",))]
        return [Member(name, ("auth", "--name", name)) for name in names]

    def _envoys(self) -> list[Member]:
        first, *more = envoy_names(self.configuration.gateway)
        return [Member(first, ("envoy",)), *(Member(name, ("envoy", "--name", name)) for name in more)]

    def _shuffle_service(self) -> list[Member]:
        """Managers before workers, so that these register at once."""
        shuffle = self.configuration.shuffle
        managers = (Member(name, ("shuffle-manager", "--name", name)) for name in shuffle_manager_names(shuffle))
        workers = (Member(name, ("shuffle-worker", "--name", name)) for name in shuffle_worker_names(shuffle))
        return [*managers, *workers]

    async def _start_member(self, member: Member) -> None:
        # -P: never import from the working directory (the home has a folder pki)
        argv = [sys.executable, "-P", "-m", "sluice.cli.main", "run", *member.arguments, "--home", str(self.home.root)]
        if self.config_file is not None:
            argv += ["--config", str(self.config_file)]
        environment = member_environment(member.arguments[0], self.home, self.configuration, self._java_home)
        if member.arguments[:2] == ("ca", "--name"):
            number = ca_names(self.configuration.ca.count).index(member.name) + 1
            environment |= authority_environment(self.configuration, number)
        with _open_log(self.log_of(member.name)) as log:
            member.child = await ChildProcess.start(
                argv, env=environment, cwd=self.home.root, stdout=log, stderr=asyncio.subprocess.STDOUT
            )
        member.started_at = time.monotonic()

    async def _make_class_archive(self) -> None:
        """Make the archive of Spark's classes if missing, at idle priority; until then jobs run without."""
        from sluice.runtime.spark import find_preferred_java, find_spark
        from sluice.runtime.spark.jvm import has_aot_caches, has_class_archive

        if not self.configuration.spark.make_class_archive:
            return
        java = await asyncio.to_thread(find_preferred_java)
        if self.configuration.spark.vector_api and has_aot_caches(java):
            return  # no JVM could use it
        if await asyncio.to_thread(has_class_archive, java, find_spark()):
            return
        log = self.log_of("class-archive")
        self.report(f"making an archive of Spark's classes in the background, see {log}")
        with _open_log(log) as file:
            self._archiving = await ChildProcess.start(
                [sys.executable, "-P", "-m", "sluice.runtime.spark.training", "--background"],
                env=common_environment(str(java.home)),
                cwd=self.home.root,
                stdout=file,
                stderr=asyncio.subprocess.STDOUT,
            )

    def log_of(self, name: str) -> Path:
        """The log file of the member ``name``."""
        return self.home.logs / f"{name}.log"

    def _write_record(self) -> None:
        children = []
        for member in self._members:
            if member.child is not None and member.child.running:
                with contextlib.suppress(psutil.Error):
                    children.append(ProcessRecord.of(member.name, member.child.pid))
        write_record(
            self.home,
            ClusterRecord(
                ProcessRecord.of("launcher", os.getpid()),
                tuple(children),
                ready=self.ready,
                started_at=self._started_at,
                ready_at=self._ready_at,
            ),
        )

    async def _wait_ready(self, taskmanagers: int) -> None:
        """Poll until every part answers; if one ends, raise an error with the tail of its log."""
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        missing = "the JobManager"
        while time.monotonic() < deadline:
            await self._check_alive()
            missing = await self._missing(taskmanagers)
            if not missing:
                return
            await asyncio.sleep(0.05)
        raise CommandError(
            f"{missing} did not come up within {READY_TIMEOUT_SECONDS:.0f} s",
            f"see {self.home.logs}",
            exit_code=EXIT_NO,
        )

    async def _wait_for_ca(self, ca: Member) -> None:
        """Wait for the CA, because the others get their identities from it."""
        deadline = time.monotonic() + READY_TIMEOUT_SECONDS
        while ca.child is not None and ca_address(self.home, ca.child.pid) is None:
            await self._check_alive()
            if time.monotonic() > deadline:
                raise CommandError(
                    f"the CA did not come up within {READY_TIMEOUT_SECONDS:.0f} s",
                    f"see {self.log_of(ca.name)}",
                    exit_code=EXIT_NO,
                )
            await asyncio.sleep(0.02)

    async def _check_alive(self) -> None:
        for member in self._members:
            if member.child is not None and not member.child.running:
                ended = await member.child.wait()
                raise CommandError(f"{member.name} did not start: {ended}", self._tail(member.name), exit_code=EXIT_NO)

    async def _missing(self, taskmanagers: int) -> str:
        if not (self.home.run / "endpoints" / "jobmanager.json").exists():
            return "the JobManager"
        try:
            registered = (await read_health(self.home)).get("taskmanagers", 0)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, SluiceError):
            return "the REST endpoint"
        if registered < taskmanagers:
            return f"{taskmanagers - registered} of {taskmanagers} TaskManagers"
        gateway = self.configuration.gateway
        for number in range(1, gateway.auth_services + 1):
            if not auth_announcement(self.home, gateway, number).exists():
                return "the auth service" if gateway.auth_services == 1 else f"the auth service auth-{number}"
        endpoints = self.home.run / "endpoints"
        announced = {
            **{
                f"the ShuffleWorker {name}": endpoints / f"shuffle-worker-{name}.json"
                for name in shuffle_worker_names(self.configuration.shuffle)
            },
            "the relay for Spark Connect": connect_socket(self.home),
            **{
                "Envoy" if gateway.envoys == 1 else f"Envoy {name}": envoy_announcement(self.home, name)
                for name in envoy_names(gateway)
            },
        }
        return next((name for name, path in announced.items() if not path.exists()), "")

    def _tail(self, name: str) -> str:
        path = self.log_of(name)
        with contextlib.suppress(OSError), path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()[-12:]
            return f"the end of {path}:\n  " + "\n  ".join(lines)
        return f"see {path}"

    async def _supervise(self, stop: asyncio.Event) -> None:
        supervisor = Supervisor(
            self._members, self._start_member, self._write_record, self.report, partial(comebacks.take, self.home)
        )

        async def start(name: str) -> None:
            supervisor.watch(await self._add_taskmanager(name, supervisor))

        loops = [("renewing identities", self._renew_forever)]
        if self.configuration.resources.provider is Provider.PROCESS:
            loops.append(("starting TaskManagers", lambda: provide_forever(self.home, self._names, start)))
        await supervisor.run(stop, *loops)

    def _names(self) -> set[str]:
        return {member.name for member in self._members if member.arguments[0] == "taskmanager"}

    async def _add_taskmanager(self, name: str, supervisor: Supervisor) -> Member:
        """Add a TaskManager that jobs need: issue its identity, then start its process."""
        member = Member(name, ("taskmanager", "--name", name))
        self._members.append(member)
        try:
            await self._issue_due()
            await self._start_member(member)
        except BaseException:
            self._members.remove(member)
            raise
        supervisor.write_record()
        self.report(f"started {name}: jobs lack slots")
        return member

    async def _issue_due(self) -> None:
        names = sorted(self._names())
        for line in await asyncio.to_thread(issue_due, self.home, self.configuration, names):
            self.report(line)

    async def _renew_forever(self) -> None:
        while True:
            await asyncio.sleep(RENEWAL_CHECK_SECONDS)
            try:
                renewed = await asyncio.to_thread(refresh_lists, self.home, self.configuration)
                await self._issue_due()
            except (SluiceError, OSError):
                _LOG.exception("cannot renew identities now; the old ones stay, trying again")
                continue
            for line in renewed:
                self.report(line)

    async def _stop_all(self) -> None:
        """Stop the gateway first, so that no requests come in; then the JobManager, so that jobs end; the CA last."""
        waves: list[list[Member]] = [[], [], [], []]
        for member in self._members:
            waves[{"envoy": 0, "jobmanager": 1, "ca": 3}.get(member.arguments[0], 2)].append(member)
        for wave in waves:
            stopping = [member.child.stop(STOP_GRACE_SECONDS) for member in wave if member.child is not None]
            for outcome in await asyncio.gather(*stopping, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    _LOG.error("a process could not be stopped", exc_info=outcome)


def _open_log(path: Path) -> BinaryIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "ab")


async def run_until_signal(launcher: Launcher, on_ready: Callable[[], None], stop: asyncio.Event | None = None) -> None:
    """Run ``launcher`` until SIGINT or SIGTERM, or ``stop`` is set.

    A second signal does not interrupt the orderly stop.
    """
    stop = stop or asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    run = asyncio.create_task(launcher.run(on_ready, stop))
    interrupted = asyncio.create_task(stop.wait())
    await asyncio.wait({run, interrupted}, return_when=asyncio.FIRST_COMPLETED)
    if not run.done() and not launcher.ready:
        run.cancel()  # interrupted before the cluster was ready: the start itself must end
    interrupted.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await run
