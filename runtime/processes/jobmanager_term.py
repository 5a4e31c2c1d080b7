"""The services of a JobManager's term as leader: ResourceManager, Dispatcher, and through it the JobMasters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from sluice.core import end_tasks
from sluice.pki.tls import ConnectionLog
from sluice.runtime.blob import BlobStore
from sluice.runtime.checkpoint import CheckpointPlaces
from sluice.runtime.config import LimitsConfig, Provider, RuntimeConfig
from sluice.runtime.gateways import EGRESS, RESOURCE_MANAGER
from sluice.runtime.ha import HaStorage, Leadership, check_storage
from sluice.runtime.jobmanager import (
    DISPATCHER,
    DispatcherGateway,
    EgressInternalGateway,
    ResourceManagerInternalGateway,
    ResourceProviderGateway,
)
from sluice.runtime.jobmanager.attempt import (
    AttemptSettings,
    JobIdentities,
    JobServices,
    JobTokens,
    Record,
    RemoteDrivers,
)
from sluice.runtime.jobmanager.dispatcher import Dispatcher, JobFeed, JobLimits
from sluice.runtime.jobmanager.egress import Ask as AskEgress, EgressEndpoint, EgressLedger, Exchange, without_gateway
from sluice.runtime.jobmanager.history import JobArchive
from sluice.runtime.jobmanager.pods import is_of_term, pod_provider
from sluice.runtime.jobmanager.secrets import KeyRing, SecretStore
from sluice.runtime.jobmanager.slots import Dedication, ProvisionLimits, ResourceManager
from sluice.runtime.jobmanager.store import CheckpointStore, HistoryStore, JobStore
from sluice.runtime.jobmanager.store.shuffle_secret import shuffle_secret
from sluice.runtime.rpc import RpcService
from sluice.runtime.shuffle.control_plane import Leader as ShuffleLeader, ShuffleManagerLink


@dataclass(frozen=True, slots=True)
class ProcessServices:
    """The services of a JobManager process that exist whether it leads or not."""

    config: RuntimeConfig
    service: RpcService
    blobs: BlobStore
    blob_address: tuple[str, int]
    connections: ConnectionLog
    drivers: RemoteDrivers
    identities: JobIdentities
    storage: HaStorage
    origin: str
    places: CheckpointPlaces
    secret_keys: KeyRing
    ask_egress: AskEgress = without_gateway
    egress: EgressLedger = field(default_factory=EgressLedger)
    find_shuffle_manager: ShuffleLeader | None = None
    tokens: JobTokens | None = None
    record: Record | None = None


@dataclass(frozen=True, slots=True)
class Gateways:
    """The proxies through which REST calls the endpoints of this term."""

    dispatcher: DispatcherGateway
    resource_manager: ResourceManagerInternalGateway
    feed: JobFeed
    egress: EgressInternalGateway
    secrets: SecretStore
    shuffle: ShuffleManagerLink | None = None


@asynccontextmanager
async def leader_services(process: ProcessServices, leadership: Leadership) -> AsyncIterator[Gateways]:
    """Run the services of a leader, with the jobs of its predecessor, for the duration of the block.

    Raises:
        StorageUnavailable: the HA storage cannot be read, or is not the one of this cluster.
        OrphansRemain: a process of an earlier leader does not end.
    """
    await check_storage(leadership.pointers, process.storage)
    settings, service = process.config.jobmanager, process.service
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_close_peers, service)
        shuffle = await stack.enter_async_context(shuffle_manager_link(process, leadership))
        resource_manager = ResourceManager(
            heartbeat_interval=settings.heartbeat_interval,
            heartbeat_timeout=settings.heartbeat_timeout,
            blob_address=process.blob_address,
            connections=process.connections,
            placement=process.config.resources.placement,
            max_slots_per_user=process.config.limits.max_slots_per_user,
            provision=_provision(process.config),
            scheduling=process.config.scheduling,
            dedication=_dedication(process.config, leadership.epoch),
        )
        await service.start(resource_manager)
        stack.push_async_callback(service.stop, resource_manager)
        slots = service.local(ResourceManagerInternalGateway, RESOURCE_MANAGER, token=resource_manager.fencing_token)
        if process.config.resources.provider is Provider.KUBERNETES:
            asked = service.local(ResourceProviderGateway, RESOURCE_MANAGER, token=resource_manager.fencing_token)
            provider = pod_provider(process.config, leadership.epoch, leadership.check, asked.provide)
            providing = asyncio.create_task(provider.run(), name="pods")
            stack.push_async_callback(end_tasks, providing)
        dispatcher_gateway = service.local(DispatcherGateway, DISPATCHER)
        feed = JobFeed()
        stack.callback(feed.close)
        secrets = SecretStore(leadership.pointers, process.storage, process.secret_keys, process.config.trust_domain)
        dispatcher = Dispatcher(
            store=JobStore(leadership.pointers, process.storage, epoch=leadership.epoch, origin=process.origin),
            history=HistoryStore(leadership.pointers, process.storage),
            archive=JobArchive(process.storage, process.config.history, leadership.check, time.time),
            term=leadership,
            blobs=process.blobs,
            resource_manager=slots,
            services=_services(process, slots, dispatcher_gateway, leadership, shuffle=shuffle, secrets=secrets),
            finished_jobs_kept=settings.finished_jobs_kept,
            lease=process.config.ha.lease,
            limits=_limits(process.config.limits),
            feed=feed,
            restart=process.config.restart,
            blob_quota=process.config.limits.max_blob_bytes_per_user,
            allow_conf=process.config.jobs.allow_conf,
            scheduling=process.config.scheduling,
        )
        await service.start(dispatcher)
        stack.push_async_callback(service.stop, dispatcher)
        exchange = Exchange(process.ask_egress)
        stack.push_async_callback(exchange.close)
        egress = EgressEndpoint(dispatcher_gateway, exchange, process.egress)
        await service.start(egress)
        stack.push_async_callback(service.stop, egress)
        outside = service.local(EgressInternalGateway, EGRESS)
        yield Gateways(dispatcher_gateway, slots, feed, outside, secrets, shuffle)


@asynccontextmanager
async def shuffle_manager_link(
    process: ProcessServices, leadership: Leadership
) -> AsyncIterator[ShuffleManagerLink | None]:
    """The connection to the shuffle service for this term; None when the service is not used."""
    settings, leader = process.config.shuffle, process.find_shuffle_manager
    if leader is None:
        yield None
        return
    link = ShuffleManagerLink(
        leader,
        await shuffle_secret(leadership.pointers),
        replicas=settings.replicas,
        allocation_timeout=settings.allocation_timeout,
    )
    renewing = asyncio.create_task(link.run(), name="shuffle leases")
    try:
        yield link
    finally:
        await end_tasks(renewing)
        await link.close()


def _provision(config: RuntimeConfig) -> ProvisionLimits | None:
    resources = config.resources
    if resources.provider is Provider.STANDALONE:
        return None
    size = config.taskmanager.total
    return ProvisionLimits(
        resources.min_taskmanagers,
        resources.max_taskmanagers,
        resources.taskmanager_idle_timeout,
        size,
        config.spark.driver_profile.multiplied(config.taskmanager.driver_slots),
    )


def _dedication(config: RuntimeConfig, epoch: int) -> Dedication | None:
    """Dedicate each pod to one job, unless pods are shared."""
    resources = config.resources
    if resources.provider is not Provider.KUBERNETES or config.pods.share:
        return None
    return Dedication(lambda name: is_of_term(name, config.ha.cluster, epoch))


def _limits(config: LimitsConfig) -> JobLimits:
    return JobLimits(
        running=config.max_running_jobs,
        per_user=config.max_jobs_per_user,
        queued=config.max_queued_jobs,
        queued_per_user=config.max_queued_jobs_per_user,
    )


def _services(
    process: ProcessServices,
    slots: ResourceManagerInternalGateway,
    dispatcher: DispatcherGateway,
    leadership: Leadership,
    *,
    shuffle: ShuffleManagerLink | None,
    secrets: SecretStore,
) -> JobServices:
    settings = process.config.jobmanager
    return JobServices(
        settings=AttemptSettings(
            driver_start_timeout=settings.driver_start_timeout,
            cancel_grace=settings.cancel_grace,
            failure_budget=settings.executor_failure_budget,
            slot_idle_timeout=process.config.resources.slot_idle_timeout,
            drain_timeout=process.config.resources.drain_timeout,
            spark_conf=dict(process.config.spark.conf),
            lease=process.config.ha.lease,
            seal=process.config.shuffle.seal,
        ),
        drivers=process.drivers,
        identities=process.identities,
        resource_manager=slots,
        dispatcher=dispatcher,
        blob_address=process.blob_address,
        connections=process.connections,
        checkpoints=CheckpointStore(leadership.pointers, process.storage),
        places=process.places,
        check_leadership=leadership.check,
        shuffle=shuffle,
        tokens=process.tokens,
        secrets=secrets,
        record=process.record,
    )


async def _close_peers(service: RpcService) -> None:
    """Close all connections at the end of the term, so that TaskManagers and drivers look for the next leader."""
    # At the same time: each peer that cannot be reached takes a second or two.
    await asyncio.gather(*(peer.close("this JobManager does not lead any more") for peer in service.peers()))
