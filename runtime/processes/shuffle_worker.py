"""The ShuffleWorker process: a worker with its connection to the ShuffleManager."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from sluice.core import (
    Home,
    MetricsRegistry,
    StoreError,
    collecting,
    end_tasks,
    make_private_directory,
    read_bounded,
    read_secret,
    write_public,
    write_secret,
)
from sluice.pki import Role, SpiffeId
from sluice.pki.tls import ConnectionLog, TlsIdentity, serving_engine
from sluice.pki.trust import reporting
from sluice.runtime.node import (
    SHUFFLE_WORKER,
    LeaderLink,
    ShuffleRegistration,
    publish_registration,
    require_reachable,
    withdraw_registration,
)
from sluice.runtime.rpc import RpcService
from sluice.runtime.shuffle import ShuffleConfig, shuffle_manager_finder
from sluice.runtime.shuffle.worker import (
    SECRET_BYTES,
    RegisteringWorker,
    ServedWorker,
    ShuffleWorker,
    WorkerConfig,
    WorkerEndpoint,
)

_LOG = logging.getLogger(__name__)

MAX_PORT_BYTES = 16


async def run_shuffle_worker(home: Home, config: ShuffleConfig, name: str) -> None:
    """Run a ShuffleWorker until cancelled. Committed data stays on its disks for the next start.

    Its identity must exist at ``home.identity(Role.SHUFFLE_WORKER, name)``.

    Raises:
        StoreError: there is no usable identity.
        ShuffleError: the address is in use, or no directory can be used.
        AddressUnusable: other machines cannot connect to ``config.host``.
    """
    require_reachable(config.host, "shuffle.host")
    identity = TlsIdentity(home.identity(Role.SHUFFLE_WORKER, name))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(reporting(identity, "shuffle-worker"))
        worker = ShuffleWorker(worker_config(home, config, name), identity)
        address = await worker.start(config.host, config.worker_port or last_port(home, config.host, name))
        stack.push_async_callback(worker.stop)
        remember_port(home, name, address[1])
        _LOG.info("ShuffleWorker %s serves the data channel at %s:%d", identity.spiffe_id, *address)
        linked = await stack.enter_async_context(registered_worker(home, config, identity, worker, address))
        await linked


def _port_file(home: Home, name: str) -> Path:
    return make_private_directory(home.shuffle) / f"{name}.port"


def remember_port(home: Home, name: str, port: int) -> None:
    """Store the port for the next start of this worker."""
    write_public(_port_file(home, name), b"%d" % port)


def last_port(home: Home, host: str, name: str) -> int:
    """Return the worker's last port if it is free, so that readers still find its data; otherwise 0 (any port)."""
    try:
        port = int(read_bounded(_port_file(home, name), MAX_PORT_BYTES))
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except (StoreError, ValueError, OverflowError, OSError):
        return 0
    return port


def worker_config(home: Home, config: ShuffleConfig, name: str) -> WorkerConfig:
    """The resources of worker ``name``, with a folder of its own in each directory."""
    roots = [Path(each).expanduser() for each in config.directories] or [home.shuffle]
    return WorkerConfig(
        directories=tuple(make_private_directory(root / name) for root in roots),
        memory_bytes=config.memory_mb << 20,
        metadata_bytes=config.metadata_mb << 20,
        max_connections=config.max_connections,
        reserved_disk_bytes=config.disk_reserve_mb << 20,
        spare_bytes=config.spare_mb << 20,
        job_quota_bytes=config.job_quota_mb << 20,
        policy=config.policy,
        layout=config.layout,
        engine=serving_engine(),
        at_rest_secret=_at_rest_secret(home, name) if config.encrypt_at_rest else b"",
    )


def _at_rest_secret(home: Home, name: str) -> bytes:
    """The encryption secret of worker ``name``, generated at its first start."""
    path = make_private_directory(home.shuffle) / f"{name}.secret"
    if not path.exists():
        write_secret(path, os.urandom(SECRET_BYTES))
    return read_secret(path, SECRET_BYTES)


@asynccontextmanager
async def registered_worker(
    home: Home, config: ShuffleConfig, identity: TlsIdentity, worker: ServedWorker, bound: tuple[str, int]
) -> AsyncIterator[asyncio.Task[None]]:
    """Keep ``worker``, which serves the data channel at ``bound``, registered with the leading ShuffleManager.

    Executors connect to ``config.host``, as a host name stays when addresses change.

    Yields the task that keeps it registered, which ends only with an error.
    """
    name = identity.spiffe_id.name
    async with AsyncExitStack() as stack:
        metrics = MetricsRegistry()
        stack.enter_context(collecting(metrics))
        service = RpcService(identity, connections=ConnectionLog(), metrics=metrics)
        stack.push_async_callback(service.close)
        endpoint = WorkerEndpoint(worker)
        await service.start(endpoint)

        def registered(manager: SpiffeId | None) -> None:
            if manager is None:
                withdraw_registration(home, name, SHUFFLE_WORKER)
            else:
                publish_registration(home, ShuffleRegistration(name=name, manager=str(manager), data=bound))

        stack.callback(withdraw_registration, home, name, SHUFFLE_WORKER)
        registrant = RegisteringWorker(
            endpoint,
            worker,
            name=name,
            address=(config.host, bound[1]),
            version=importlib.metadata.version("sluice"),
        )
        link = LeaderLink(shuffle_manager_finder(service, home, config), registrant, registered=registered)
        linked: asyncio.Task[None] = asyncio.create_task(link.run(), name="shuffle manager link")
        stack.push_async_callback(end_tasks, linked)
        yield linked
