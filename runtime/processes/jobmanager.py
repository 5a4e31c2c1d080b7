"""The JobManager process: the services that run during its whole life, and its terms as a leader."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NoReturn

from sluice.core import Home, MetricsRegistry, PkiError, SluiceError, collecting, end_tasks, utc_now
from sluice.pki import PkiConfig, Role
from sluice.pki.assertions import AssertionKeys, CheckHolders, OpenStreams, assertion_keys_file
from sluice.pki.ca import needing_attention, read_cas
from sluice.pki.enrolment import Locate, OnlineIssuer, OnlineTokens
from sluice.pki.issuing import Issuer
from sluice.pki.jwt import AskForToken
from sluice.pki.tls import ConnectionLog, TlsIdentity
from sluice.pki.trust import reporting
from sluice.runtime.blob import BlobServer, BlobStore, sweeping
from sluice.runtime.checkpoint import CheckpointPlaces
from sluice.runtime.config import Provider, RuntimeConfig
from sluice.runtime.gateways import RESOURCE_MANAGER
from sluice.runtime.ha import (
    LeaderElection,
    LeaderEndpoint,
    LeaderInformation,
    Leadership,
    Ready,
    make_election,
    make_storage,
    origin_of,
    run_terms,
)
from sluice.runtime.jobmanager import DISPATCHER
from sluice.runtime.jobmanager.attempt import JobIdentities, JobTokens, Record, RemoteDrivers
from sluice.runtime.jobmanager.dispatcher import ClusterDiagnostics, ConnectSessions
from sluice.runtime.jobmanager.egress import Ask as AskEgress, without_gateway
from sluice.runtime.jobmanager.pods import check_pods
from sluice.runtime.jobmanager.secrets import KeyRing, keys_directory
from sluice.runtime.node import (
    JobManagerAddress,
    forbid_core_dumps,
    listening_jobmanager,
    publish_jobmanager,
    require_reachable,
    withdraw_jobmanager,
)
from sluice.runtime.processes.jobmanager_term import Gateways, ProcessServices, leader_services
from sluice.runtime.processes.notifications import ClusterEvents, run_notifier
from sluice.runtime.receipts import Prove, ReceiptIssuer
from sluice.runtime.rest import (
    ArtifactStores,
    AuthService,
    Cluster,
    ClusterFacts,
    Streams,
    Term,
    TrustFacts,
    check_nothing,
    fetch_forever,
    read_summary,
    remote_ask_egress,
    remote_ask_for_token,
    remote_check_holders,
    remote_prove,
    remote_record,
)
from sluice.runtime.rest.trust_facts import trust_facts
from sluice.runtime.rest_server import RestServer, RestSwitch, make_application
from sluice.runtime.rpc import RpcEndpoint, RpcService
from sluice.runtime.shuffle import shuffle_manager_finder

_LOG = logging.getLogger(__name__)

REST_SOCKET = "rest.sock"
ESSENTIAL_ENDPOINTS = frozenset({DISPATCHER, RESOURCE_MANAGER})
"""Endpoints whose failure ends the process. The next leader, or the restarted process, recovers the durable state."""
AGENT_SHARE_OF_GRACE = 0.8
"""Share of the cancel grace that a driver agent gives its JVM and Python, so that it ends before it is killed."""

AuthAddresses = Sequence[tuple[str, int]]
"""Host and port of each auth service on other machines; they are equivalent."""


async def run_jobmanager(
    home: Home,
    config: RuntimeConfig,
    pki: PkiConfig,
    name: str,
    *,
    locate_ca: Locate | None = None,
    auth: AuthAddresses | None = None,
    check_streams: CheckHolders | None,
    ask_tokens: AskForToken | None = None,
    ask_egress: AskEgress | None = None,
    record: Record | None = None,
    prove: Prove | None = None,
) -> None:
    """Run a JobManager, leading or standing by, until cancelled. Its jobs are left to the next leader.

    Its identity must exist at ``home.identity(Role.JOBMANAGER, name)``. For the arguments see :func:`jobmanager`.

    Raises:
        StoreError: there is no usable identity, or an address is in use.
        AddressUnusable: other machines cannot connect to ``config.jobmanager.host``.
        HaError: it can neither lead nor stand by.
        PodsMisconfigured: it cannot create pods for TaskManagers.
        EndpointFailed: the Dispatcher or the ResourceManager failed unexpectedly.
    """
    node = jobmanager(
        home,
        config,
        pki,
        name,
        locate_ca=locate_ca,
        auth=auth,
        check_streams=check_streams,
        ask_tokens=ask_tokens,
        ask_egress=ask_egress,
        record=record,
        prove=prove,
    )
    async with node as running:
        await running.wait()


async def _check(config: RuntimeConfig) -> None:
    """Raise if the configuration would make the JobManager useless, before it creates anything."""
    require_reachable(config.jobmanager.host, "jobmanager.host")
    if config.resources.provider is Provider.KUBERNETES:
        await asyncio.to_thread(check_pods, config)


@asynccontextmanager
async def jobmanager(
    home: Home,
    config: RuntimeConfig,
    pki: PkiConfig,
    name: str,
    *,
    issuer: Issuer | None = None,
    locate_ca: Locate | None = None,
    auth: AuthAddresses | None = None,
    election: LeaderElection | None = None,
    check_streams: CheckHolders | None = None,
    ask_tokens: AskForToken | None = None,
    ask_egress: AskEgress | None = None,
    record: Record | None = None,
    prove: Prove | None = None,
) -> AsyncIterator[JobManagerNode]:
    """A running JobManager, entered once it accepts work or stands by.

    Args:
        home: the home of the process.
        config: settings of the runtime.
        pki: settings of the PKI.
        name: process name.
        issuer: signs the identities of jobs; by default the online authority.
        locate_ca: finds the online authority; by default its announcement in ``home``.
        auth: addresses of the auth service on other machines, which serves the gateway's public keys; None: an auth
            service in ``home`` writes the keys there.
        election: the leader election; by default the one of ``config.ha``.
        check_streams: decides whose event streams may stay open; by default it asks the auth service at ``auth``.
            Without one, the streams of all admitted callers stay open.
        ask_tokens: decides which tokens jobs get; by default it asks the auth service at ``auth``. Without one, jobs
            get none.
        ask_egress: records and decides outbound connections of jobs; by default it asks the auth service at ``auth``.
            Without one, no connection is allowed, and only REST shows the attempts.
        record: writes to the audit log; by default through the auth service at ``auth``. Without one, jobs get no
            secrets.
        prove: records receipts in the audit log and returns the proof; by default through the auth service at
            ``auth``. Without one, no receipts are issued.
    """
    settings = config.jobmanager
    await _check(config)
    forbid_core_dumps()  # it holds secrets of jobs
    home.create()
    identity = TlsIdentity(home.identity(Role.JOBMANAGER, name))
    connections = ConnectionLog()
    store = BlobStore(home.blobs, settings.max_blob_bytes)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(reporting(identity, "jobmanager"))
        elected_by = election or make_election(config.ha, home, identity)
        stack.push_async_callback(elected_by.close)
        storage = await asyncio.to_thread(make_storage, config.ha, home)
        blobs = BlobServer(identity, store, connections)
        stack.push_async_callback(blobs.close)
        blob_address = await blobs.start(settings.host, settings.blob_port)
        metrics = MetricsRegistry()
        stack.enter_context(collecting(metrics))
        fatal: asyncio.Future[NoReturn] = asyncio.get_running_loop().create_future()
        service = RpcService(identity, connections=connections, metrics=metrics, on_failure=_failure_handler(fatal))
        stack.push_async_callback(service.close)
        rpc_address = await service.listen(settings.host, settings.rpc_port)
        await service.start(LeaderEndpoint(elected_by.leader))
        locate = locate_ca or (lambda: read_cas(home))
        asked = ask_tokens or (None if auth is None else remote_ask_for_token(AuthService(identity, auth)))
        tokens = None if asked is None else JobTokens(asked, OnlineTokens(identity, locate), config.trust_domain)
        identities = JobIdentities(
            issuer or OnlineIssuer(identity, locate),
            config.trust_domain,
            timedelta(hours=pki.job_hours),
        )
        places = CheckpointPlaces.of(config.streaming, home.root)
        drivers = RemoteDrivers(
            checkpoints=places.checkpoints.location,
            executor_cores=config.taskmanager.slot_cores,
            executor_memory_mb=config.taskmanager.slot_memory_mb,
            driver_memory_mb=config.spark.driver_memory_mb,
            start_timeout=settings.driver_start_timeout,
            stop_grace=settings.cancel_grace * AGENT_SHARE_OF_GRACE,
            lease=config.ha.lease,
            allow_conf=config.jobs.allow_conf,
        )
        process = ProcessServices(
            config=config,
            service=service,
            blobs=store,
            blob_address=blob_address,
            connections=connections,
            drivers=drivers,
            identities=identities,
            storage=storage,
            origin=origin_of(home),
            places=places,
            ask_egress=ask_egress or _egress_question(identity, auth),
            secret_keys=KeyRing(keys_directory(home, config.secrets.keys), makes_keys=not elected_by.across_machines),
            record=record or (None if auth is None else remote_record(AuthService(identity, auth))),
            find_shuffle_manager=shuffle_manager_finder(service, home, config.shuffle)
            if config.shuffle.enabled
            else None,
            tokens=tokens,
        )
        facts = ClusterFacts(
            sluice_version=importlib.metadata.version("sluice"),
            spark_version=importlib.metadata.version("pyspark"),
            jobmanager=str(identity.spiffe_id),
            trust_domain=config.trust_domain,
        )
        keys_file = assertion_keys_file(home)
        if auth is not None:
            fetching = asyncio.create_task(
                fetch_forever(AuthService(identity, auth), keys_file), name="fetch-assertion-keys"
            )
            stack.callback(fetching.cancel)
        streams = _streams(stack, check_streams or _stream_check(identity, auth))
        switch = RestSwitch(identity, process.origin, elected_by.leader)
        stack.push_async_callback(switch.close)
        rest = RestServer(make_application(switch.serve, AssertionKeys(keys_file).keys), home.sockets / REST_SOCKET)
        stack.push_async_callback(rest.close)
        await rest.prepare()
        rest_address = None
        if settings.rest_host:
            rest_address = await rest.listen(
                identity,
                settings.rest_host,
                settings.rest_port,
                jobmanagers=config.ha.jobmanagers,
                connections=connections,
            )
        address = JobManagerAddress(
            name=name,
            rpc=rpc_address,
            blob=blob_address,
            rest=str(rest.path),
            rest_tls=rest_address,
            pid=os.getpid(),
        )
        node = JobManagerNode(
            home,
            identity,
            process,
            rest,
            switch,
            facts,
            address,
            streams,
            elected_by.standbys,
            fatal,
            _receipts(identity, prove, auth),
        )
        node.terms = await stack.enter_async_context(run_terms(elected_by, node.lead, what="JobManager"))
        stack.enter_context(listening_jobmanager(home, address))
        yield node
        _LOG.info("JobManager %s stops", identity.spiffe_id)


@dataclass
class JobManagerNode:
    """A running JobManager. :meth:`lead` starts what it runs in each term."""

    home: Home
    identity: TlsIdentity
    process: ProcessServices
    rest: RestServer
    switch: RestSwitch
    facts: ClusterFacts
    address: JobManagerAddress
    streams: Streams
    standbys: Callable[[], Awaitable[tuple[str, ...] | None]]
    fatal: asyncio.Future[NoReturn]
    receipts: ReceiptIssuer | None
    terms: asyncio.Task[NoReturn] = field(init=False)

    async def wait(self) -> None:
        """Wait for an error that keeps the process from leading, and raise it (see :func:`run_jobmanager`)."""
        await asyncio.wait({self.terms, self.fatal}, return_when=asyncio.FIRST_COMPLETED)
        await (self.fatal if self.fatal.done() else self.terms)

    async def lead(self, stack: AsyncExitStack, leadership: Leadership, ready: Ready) -> None:
        """Begin a term: start the leader's services."""
        gateways = await stack.enter_async_context(leader_services(self.process, leadership))
        await stack.enter_async_context(sweeping(self.process.blobs.uploads))
        stack.enter_context(self.switch.leading(self._cluster(gateways, leadership)))
        await self.rest.open_socket()
        stack.push_async_callback(self.rest.close_socket)
        stack.callback(withdraw_jobmanager, self.home, os.getpid())
        await leadership.publish(self._information(leadership))
        publish_jobmanager(self.home, self.address)
        config = self.process.config
        events = ClusterEvents(
            home=self.home,
            anchor=lambda: self.identity.material.anchors[0],
            jobs=gateways.dispatcher.jobs,
            metrics=self._diagnostics().metrics,
            overview=None if gateways.shuffle is None else gateways.shuffle.overview,
        )
        await stack.enter_async_context(run_notifier(config.notify, config.trust_domain, events, leadership.pointers))
        rpc, blob = self.address.rpc, self.address.blob
        _LOG.info("JobManager %s is ready: rpc %s:%d, blob %s:%d", self.facts.jobmanager, *rpc, *blob)
        ready()

    def _cluster(self, gateways: Gateways, leadership: Leadership) -> Cluster:
        config = self.process.config
        return Cluster(
            gateways.dispatcher,
            gateways.resource_manager,
            self.process.blobs,
            self.facts,
            ConnectSessions(gateways.dispatcher, self.process.blobs, config.connect),
            default_executors=config.spark.executors,
            leader=Term(self.address.name, leadership.epoch, int(time.time() * 1000)),
            config=config,
            diagnostics=self._diagnostics(),
            artifacts=ArtifactStores(config.jobmanager.artifact_stores),
            feed=gateways.feed,
            streams=self.streams,
            egress=gateways.egress,
            receipts=self.receipts,
            secrets=gateways.secrets,
            shuffle=gateways.shuffle,
            trust=self._trust,
            standbys=self.standbys,
        )

    def _diagnostics(self) -> ClusterDiagnostics:
        return ClusterDiagnostics(self.home, f"jobmanager/{self.address.name}", self.process.service.peers)

    def _trust(self) -> TrustFacts:
        loaded = self.identity.material
        return trust_facts(
            str(loaded.spiffe_id), loaded.leaf, loaded.anchors, read_summary(self.home), _refused_renewals(self.home)
        )

    def _information(self, leadership: Leadership) -> LeaderInformation:
        return LeaderInformation(
            name=self.address.name,
            epoch=leadership.epoch,
            origin=self.process.origin,
            rpc=self.address.rpc,
            rest=self.address.rest,
            rest_tls=self.address.rest_tls,
        )


def _refused_renewals(home: Home) -> tuple[str, ...]:
    """Descriptions of renewals that the online authority of this home has refused; empty where there is none."""
    try:
        return tuple(each.describe() for each in needing_attention(home, utc_now()))
    except PkiError as error:
        return (f"refused renewals cannot be read: {error.what}",)


def _stream_check(identity: TlsIdentity, auth: AuthAddresses | None) -> CheckHolders:
    return check_nothing if auth is None else remote_check_holders(AuthService(identity, auth))


def _egress_question(identity: TlsIdentity, auth: AuthAddresses | None) -> AskEgress:
    return without_gateway if auth is None else remote_ask_egress(AuthService(identity, auth))


def _receipts(identity: TlsIdentity, prove: Prove | None, auth: AuthAddresses | None) -> ReceiptIssuer | None:
    prove = prove or (None if auth is None else remote_prove(AuthService(identity, auth)))
    return None if prove is None else ReceiptIssuer(identity, prove)


def _streams(stack: AsyncExitStack, check_streams: CheckHolders) -> Streams:
    """The event streams of this process, watched until ``stack`` is closed."""
    opened = OpenStreams(check_streams)
    stack.push_async_callback(end_tasks, asyncio.create_task(opened.watch(), name="watch-streams"))
    return Streams(opened)


class EndpointFailed(SluiceError):
    """An essential endpoint of this process failed, so its state cannot be relied on."""


def is_fatal(endpoint: str, error: BaseException) -> bool:
    """Return whether a failure of ``endpoint`` ends the process.

    It does when it is a bug in the Dispatcher or the ResourceManager. Failed calls, disk errors and cancellation are
    not, and the failure of a JobMaster affects only its job.
    """
    own = isinstance(error, Exception) and not isinstance(error, SluiceError | OSError)
    return own and endpoint in ESSENTIAL_ENDPOINTS


def _failure_handler(fatal: asyncio.Future[NoReturn]) -> Callable[[RpcEndpoint, BaseException], None]:
    def failed(endpoint: RpcEndpoint, error: BaseException) -> None:
        if is_fatal(endpoint.name, error) and not fatal.done():
            _LOG.critical("the failure of endpoint %s ends this process: %s", endpoint.name, type(error).__name__)
            fatal.set_exception(
                EndpointFailed(
                    f"endpoint {endpoint.name} failed: {type(error).__name__}",
                    "the log has the traceback; jobs continue under the next leader",
                )
            )
            fatal.exception()  # mark as retrieved, even if nobody waits

    return failed
