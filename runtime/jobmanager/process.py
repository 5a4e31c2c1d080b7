"""The JobManager process: everything it runs, started in order and stopped in the opposite one."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path

from pki.assertion_keys import AssertionKeys, assertion_keys_file
from pki.ca.address import CaAddress, read_ca
from pki.ca.client import OnlineIssuer
from pki.config import PkiConfig
from pki.connections import ConnectionLog
from pki.home import Home
from pki.identity import Role
from pki.in_use_reporter import reporting
from pki.issuer import Issuer
from pki.tls import TlsIdentity
from runtime.addresses import JobManagerAddress, publish_jobmanager, require_reachable, withdraw_jobmanager
from runtime.blob.server import BlobServer
from runtime.blob.store import BlobStore
from runtime.config import RuntimeConfig
from runtime.gateways import RESOURCE_MANAGER
from runtime.jobmanager.connect_sessions import ConnectSessions
from runtime.jobmanager.dispatcher import Dispatcher
from runtime.jobmanager.driver_attempt import DriverArgv, DriverHost
from runtime.jobmanager.gateways import DISPATCHER, DispatcherGateway, ResourceManagerInternalGateway
from runtime.jobmanager.job_master import JobServices
from runtime.jobmanager.job_records import JobRecords
from runtime.jobmanager.resource_manager import ResourceManager
from runtime.rest.assertion_keys import fetch_forever
from runtime.rest.handlers import ClusterFacts, Handlers
from runtime.rest.server import RestServer, make_application
from runtime.rpc import RpcService

_LOG = logging.getLogger(__name__)

REST_SOCKET = "rest.sock"
AGENT_SHARE_OF_GRACE = 0.8
"""A driver agent gives its JVM and Python this share of the grace, to be done itself before it is killed."""


def driver_argv(spec: Path) -> Sequence[str]:
    """The real driver agent; ``-P`` keeps a job's files off its module path."""
    return (sys.executable, "-P", "-m", "runtime.spark.driver_main", str(spec))


async def run_jobmanager(
    home: Home,
    config: RuntimeConfig,
    pki: PkiConfig,
    name: str,
    *,
    locate_ca: Callable[[], CaAddress] | None = None,
    auth: tuple[str, int] | None = None,
) -> None:
    """Run a JobManager until cancelled; then end its jobs and stop.

    Its identity is at ``home.identity(Role.JOBMANAGER, name)``, prepared before. ``locate_ca`` says where the online
    authority is; by default it is announced in ``home``. ``auth`` is where the auth service of another machine is,
    which tells the gateway's public keys; without it they are in ``home``.

    Raises:
        StoreError: there is no usable identity, or an address is taken.
        AddressUnusable: others could not connect to ``config.jobmanager.host``.
    """
    async with jobmanager(home, config, pki, name, locate_ca=locate_ca, auth=auth):
        await asyncio.Event().wait()


@asynccontextmanager
async def jobmanager(
    home: Home,
    config: RuntimeConfig,
    pki: PkiConfig,
    name: str,
    *,
    issuer: Issuer | None = None,
    locate_ca: Callable[[], CaAddress] | None = None,
    auth: tuple[str, int] | None = None,
    argv: DriverArgv = driver_argv,
) -> AsyncIterator[JobManagerAddress]:
    """A running JobManager; yields its addresses once it takes work.

    Args:
        issuer: who signs the identities of jobs; by default the online authority.
        locate_ca: where that is; by default as announced in ``home``.
        auth: where the gateway's public keys are asked for; None: an auth service of ``home`` writes them there.
        argv: the command of a driver agent.
    """
    settings = config.jobmanager
    require_reachable(settings.host, "jobmanager.host")
    home.create()
    identity = TlsIdentity(home.identity(Role.JOBMANAGER, name))
    connections = ConnectionLog()
    store = BlobStore(home.blobs, settings.max_blob_bytes)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(reporting(identity, "jobmanager"))
        blobs = BlobServer(identity, store, connections)
        stack.push_async_callback(blobs.close)
        blob_address = await blobs.start(settings.host, settings.blob_port)
        service = RpcService(identity, connections=connections)
        stack.push_async_callback(service.close)
        rpc_address = await service.listen(settings.host, settings.rpc_port)

        resource_manager = ResourceManager(
            heartbeat_interval=settings.heartbeat_interval,
            heartbeat_timeout=settings.heartbeat_timeout,
            blob_address=blob_address,
            connections=connections,
        )
        await service.start(resource_manager)
        slots = service.local(ResourceManagerInternalGateway, RESOURCE_MANAGER, token=resource_manager.fencing_token)
        services = JobServices(
            driver_host=DriverHost(
                jobs=home.jobs,
                issuer=issuer
                or OnlineIssuer(identity, locate_ca or (lambda: read_ca(home)), algorithm=pki.key_algorithm),
                trust_domain=config.trust_domain,
                identity_lifetime=timedelta(hours=pki.job_hours),
                jobmanager_name=name,
                jobmanager_address=rpc_address,
                host=settings.host,
                executor_cores=config.taskmanager.slot_cores,
                executor_memory_mb=config.taskmanager.slot_memory_mb,
                driver_memory_mb=config.spark.driver_memory_mb,
                start_timeout=settings.driver_start_timeout,
                stop_grace=settings.cancel_grace * AGENT_SHARE_OF_GRACE,
                argv=argv,
            ),
            resource_manager=slots,
            dispatcher=service.local(DispatcherGateway, DISPATCHER),
            blob_address=blob_address,
            connections=connections,
            spark_defaults=dict(config.spark.conf),
            failure_budget=settings.executor_failure_budget,
            driver_start_timeout=settings.driver_start_timeout,
            cancel_grace=settings.cancel_grace,
        )
        dispatcher = Dispatcher(
            records=JobRecords(home.jobs),
            blobs=store,
            jobs=home.jobs,
            resource_manager=slots,
            services=services,
            finished_jobs_kept=settings.finished_jobs_kept,
        )
        await service.start(dispatcher)
        stack.push_async_callback(service.stop, dispatcher)

        facts = ClusterFacts(
            sluice_version=importlib.metadata.version("sluice"),
            spark_version=importlib.metadata.version("pyspark"),
            jobmanager=str(identity.spiffe_id),
            trust_domain=config.trust_domain,
        )
        sessions = ConnectSessions(services.dispatcher, store, home.jobs, config.connect)
        handlers = Handlers(
            services.dispatcher, slots, store, facts, sessions, default_executors=config.spark.executors
        )
        keys_file = assertion_keys_file(home)
        if auth is not None:
            fetching = asyncio.create_task(fetch_forever(identity, *auth, keys_file), name="fetch-assertion-keys")
            stack.callback(fetching.cancel)
        application = make_application(handlers, AssertionKeys(keys_file).keys)
        rest = RestServer(application, home.sockets / REST_SOCKET)
        stack.push_async_callback(rest.close)
        await rest.start()
        rest_address = None
        if settings.rest_host:
            rest_address = await rest.listen(identity, settings.rest_host, settings.rest_port, connections=connections)

        address = JobManagerAddress(
            name=name,
            rpc=rpc_address,
            blob=blob_address,
            rest=str(rest.path),
            rest_tls=rest_address,
            pid=os.getpid(),
        )
        stack.callback(withdraw_jobmanager, home, os.getpid())
        publish_jobmanager(home, address)
        _LOG.info("JobManager %s is ready: rpc %s:%d, blob %s:%d", identity.spiffe_id, *rpc_address, *blob_address)
        yield address
        _LOG.info("JobManager %s stops", identity.spiffe_id)
