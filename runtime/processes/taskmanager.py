"""The TaskManager process, which runs drivers and executors in slots."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from sluice.core import EgressMode, Home, MetricsRegistry, collecting, egress_mode, end_tasks, make_private_directory
from sluice.pki import Role, SpiffeId
from sluice.pki.tls import ConnectionLog, TlsIdentity
from sluice.pki.trust import reporting
from sluice.runtime.config import Provider, RuntimeConfig
from sluice.runtime.egress import EgressJournal, EgressReporter, UnsentRows, reporting_egress
from sluice.runtime.gateways import EGRESS, EgressGateway
from sluice.runtime.messages import TaskManagerRegistration
from sluice.runtime.node import (
    Address,
    Diagnostics,
    Leader,
    LeaderDiscovery,
    LeaderLink,
    Registration,
    capture_log_tail,
    forbid_core_dumps,
    publish_registration,
    require_reachable,
    withdraw_registration,
)
from sluice.runtime.processes.job_networks import job_networks
from sluice.runtime.rpc import RpcService
from sluice.runtime.sandbox import Sandbox
from sluice.runtime.taskmanager import (
    AGENT,
    ENDED_UI_DIRECTORY,
    EndedUi,
    EndedUis,
    ExecutorLauncher,
    Networks,
    RegisteringTaskManager,
    SpareAgent,
    SparkExecutorLauncher,
    TaskExecutor,
    TaskManagerShape,
    WarmProcesses,
    objection,
)
from sluice.runtime.warm import WarmConfig

_LOG = logging.getLogger(__name__)
UNSENT_ROWS = "egress-rows.jsonl"
"""File in a TaskManager's work directory with egress rows that it could not deliver before it ended."""


async def run_taskmanager(home: Home, config: RuntimeConfig, name: str, *, jobmanagers: Sequence[Address] = ()) -> bool:
    """Run a TaskManager until it is cancelled, or drained and told to leave. Then end the processes in its slots.

    Returns True when it was told to leave.

    Its identity must exist at ``home.identity(Role.TASKMANAGER, name)``. Each time it connects, it asks the JobManagers
    at ``jobmanagers`` for the leader; by default it uses the address published in ``home``.

    Raises:
        StoreError: there is no usable identity.
        JavaNotFound: there is no Java for drivers and executors.
        SandboxUnavailable: this machine does not support the configured isolation of jobs.
        EgressMisconfigured: this machine cannot control the outbound connections of jobs as configured.
        AddressUnusable: other machines cannot connect to ``config.taskmanager.host``.
    """
    async with taskmanager(home, config, name, jobmanagers=jobmanagers) as link:
        await link
    return True


@asynccontextmanager
async def taskmanager(
    home: Home,
    config: RuntimeConfig,
    name: str,
    *,
    jobmanagers: Sequence[Address] = (),
    launcher: ExecutorLauncher | None = None,
    argv: Sequence[str] = AGENT,
) -> AsyncIterator[asyncio.Task[None]]:
    """A running TaskManager. Yields the task that keeps it connected, which ends when it leaves, or with an error.

    Args:
        home: the home of the process.
        config: settings of the runtime.
        name: process name.
        jobmanagers: addresses of JobManagers; by default the leader published in ``home``.
        launcher: composes the command lines of executors; by default for Spark.
        argv: the command line of a driver agent.
    """
    settings = config.taskmanager
    require_reachable(settings.host, "taskmanager.host")
    identity = TlsIdentity(home.identity(Role.TASKMANAGER, name))
    profile = settings.profile
    forbid_core_dumps()  # it holds secrets of jobs
    total = settings.total
    spark = launcher or SparkExecutorLauncher(vector_api=config.spark.vector_api)
    await asyncio.to_thread(spark.prepare)
    mode = egress_mode(config.egress, config.isolation.level)
    own = mode is not EgressMode.OFF
    sandbox = await asyncio.to_thread(Sandbox.prepare, config.isolation, private=[home.root], own_networks=own)
    connections = ConnectionLog()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(reporting(identity, "taskmanager"))
        metrics = MetricsRegistry()
        stack.enter_context(collecting(metrics))
        service = RpcService(identity, connections=connections, metrics=metrics)
        stack.push_async_callback(service.close)
        place = LeaderDiscovery(addresses=tuple(jobmanagers), jobmanagers=config.ha.jobmanagers, home=str(home.root))
        shape = TaskManagerShape(
            name=name,
            host=settings.host,
            trust_domain=config.trust_domain,
            python=sys.executable,
            slots=settings.slots,
            profile=profile,
            total=total,
            driver_slots=settings.driver_slots,
            driver_profile=config.spark.driver_profile,
            work=make_private_directory(home.work(name)),
            leader=place,
        )
        leader = place.finder(service)

        def registered(jobmanager_id: SpiffeId | None) -> None:
            if jobmanager_id is None:
                withdraw_registration(home, name)
            else:
                registration = Registration(
                    name=name, jobmanager=str(jobmanager_id), isolation=sandbox.level, egress=mode
                )
                publish_registration(home, registration)

        stack.callback(withdraw_registration, home, name)
        slots_changed = asyncio.Event()
        unsent = UnsentRows(home.work(name) / UNSENT_ROWS)
        journal = EgressJournal(unsent=unsent)
        journal.restore(await asyncio.to_thread(unsent.load))
        # The executor's endpoint exists before the first report.
        outside = EgressReporter(
            journal,
            lambda: executor.egress(),  # noqa: PLW0108
            enforce=mode is EgressMode.ENFORCE,
            grace=config.egress.grace,
        )
        networks = job_networks(stack, home, config, name, sandbox, journal, outside, mode)
        warm = _warm_processes(stack, metrics, config.warm, shape.work, sandbox, networks, spark)
        executor = TaskExecutor(
            shape,
            spark,
            sandbox,
            connections,
            slots_changed.set,
            argv=argv,
            event_log_bytes=config.history.max_ui_bytes if config.history.days else 0,
            networks=networks,
            warm=warm,
            spare=_spare_agent(stack, config, shape, argv, networks, spark),
        )
        registrant = RegisteringTaskManager(
            executor,
            TaskManagerRegistration(
                name=name,
                host=settings.host,
                slots=settings.slots,
                profile=profile,
                python=sys.executable,
                version=importlib.metadata.version("sluice"),
                total=total,
                isolation=sandbox.level,
                egress=mode,
                driver_slots=settings.driver_slots,
                driver_profile=config.spark.driver_profile,
            ),
            fence_after=config.fence_after,
        )
        link = LeaderLink(leader, registrant, report_now=slots_changed, registered=registered)
        await service.start(executor)
        stack.push_async_callback(_report_last_connections, service, leader, executor, outside, unsent)
        await _serve_diagnostics_and_uis(stack, service, config, shape, sandbox, spark)
        linked = asyncio.create_task(_until_left(link, executor), name="jobmanager link")
        stack.push_async_callback(end_tasks, linked)
        await stack.enter_async_context(reporting_egress(outside))
        offered = (settings.slots, settings.driver_slots, sandbox, mode)
        told = "TaskManager %s offers %d slots, and %d for drivers; isolation: %s; egress: %s"
        _LOG.info(told, identity.spiffe_id, *offered)
        yield linked
        _LOG.info("TaskManager %s stops", identity.spiffe_id)


async def _serve_diagnostics_and_uis(  # noqa: PLR0917  # its dependencies
    stack: AsyncExitStack,
    service: RpcService,
    config: RuntimeConfig,
    shape: TaskManagerShape,
    sandbox: Sandbox,
    launcher: ExecutorLauncher,
) -> None:
    """Serve diagnostics until ``stack`` is closed, and the Spark UIs of ended jobs if Spark is installed here."""
    await service.start(Diagnostics(f"taskmanager/{shape.name}", stack.enter_context(capture_log_tail())))
    if not isinstance(launcher, SparkExecutorLauncher):
        return
    memory_mb = config.history.ui_memory_mb
    uis = EndedUis(
        make_private_directory(shape.work / ENDED_UI_DIRECTORY),
        lambda job_id, places: EndedUi(job_id, places, spark=launcher.spark, sandbox=sandbox, memory_mb=memory_mb),
        time.monotonic,
    )
    await service.start(uis)
    stack.push_async_callback(service.stop, uis)


async def _report_last_connections(
    service: RpcService, leader: Leader, executor: TaskExecutor, outside: EgressReporter, unsent: UnsentRows
) -> None:
    """End all processes, and report their last outbound connections; the leader link has ended already.

    Without a JobManager, as when the whole cluster stops, the next process of this name reports them.
    """
    await service.stop(executor)

    async def find() -> EgressGateway:
        return (await leader.dial()).gateway(EgressGateway, EGRESS)

    unsent.replace(await outside.flush(find))
    await asyncio.to_thread(unsent.close)


def _warm_processes(  # noqa: PLR0917  # its dependencies
    stack: AsyncExitStack,
    metrics: MetricsRegistry,
    config: WarmConfig,
    work: Path,
    sandbox: Sandbox,
    networks: Networks | None,
    launcher: ExecutorLauncher,
) -> WarmProcesses | None:
    """Run the pool of warm processes until ``stack`` is closed; None when warm processes are off or not possible."""
    if config.jvms == 0 or not isinstance(launcher, SparkExecutorLauncher):
        return None
    why = objection(sandbox, networks)
    if why or networks is None:
        _LOG.warning("no warm JVMs on this TaskManager: %s", why)
        return None
    warm = WarmProcesses(config, work, sandbox, networks, launcher)
    stack.callback(metrics.register(warm.pool.samples))
    stack.push_async_callback(end_tasks, asyncio.create_task(warm.run(), name="warm JVMs"))
    return warm


def _spare_agent(  # noqa: PLR0917  # its dependencies
    stack: AsyncExitStack,
    config: RuntimeConfig,
    shape: TaskManagerShape,
    argv: Sequence[str],
    networks: Networks | None,
    launcher: ExecutorLauncher,
) -> SpareAgent | None:
    """Keep a driver agent started until ``stack`` is closed; None where it would be of no use.

    A pod belongs to one job, so its TaskManager starts at most one driver, and soon.
    """
    in_pod = config.resources.provider is Provider.KUBERNETES
    if in_pod or not shape.driver_slots or not isinstance(launcher, SparkExecutorLauncher):
        return None
    spare = SpareAgent(argv, shape.work, networked=networks is not None)
    stack.push_async_callback(end_tasks, asyncio.create_task(spare.run(), name="spare driver agent"))
    return spare


async def _until_left(link: LeaderLink, executor: TaskExecutor) -> None:
    """Keep the link up until this TaskManager is drained and told to leave."""
    keeping = asyncio.create_task(link.run())
    leaving = asyncio.create_task(executor.left.wait())
    try:
        await asyncio.wait({keeping, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            keeping.result()
    finally:
        await end_tasks(keeping, leaving)
