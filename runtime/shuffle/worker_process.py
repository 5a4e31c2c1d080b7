"""The ShuffleWorker process: a worker, and its connection to the ShuffleManager."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from pki.connections import ConnectionLog
from pki.home import Home
from pki.identity import SpiffeId
from pki.tls import TlsIdentity
from runtime.addresses import (
    SHUFFLE_WORKER,
    ShuffleRegistration,
    publish_registration,
    withdraw_registration,
)
from runtime.rpc import RpcService
from runtime.shuffle.config import ShuffleConfig
from runtime.shuffle.finder import shuffle_manager_finder
from runtime.shuffle.worker.registration import ManagerLink, ServedWorker, WorkerEndpoint

_LOG = logging.getLogger(__name__)


@asynccontextmanager
async def registered_worker(
    home: Home, config: ShuffleConfig, identity: TlsIdentity, worker: ServedWorker, address: tuple[str, int]
) -> AsyncIterator[asyncio.Task[None]]:
    """Keep ``worker``, which serves the data channel at ``address``, registered at whoever manages shuffles.

    Yields the task that does so, which ends only with an error.
    """
    name = identity.spiffe_id.name
    async with AsyncExitStack() as stack:
        service = RpcService(identity, connections=ConnectionLog())
        stack.push_async_callback(service.close)
        endpoint = WorkerEndpoint(worker)
        await service.start(endpoint)

        def registered(manager: SpiffeId | None) -> None:
            if manager is None:
                withdraw_registration(home, name, SHUFFLE_WORKER)
            else:
                publish_registration(home, ShuffleRegistration(name=name, manager=str(manager), data=address))

        stack.callback(withdraw_registration, home, name, SHUFFLE_WORKER)
        link = ManagerLink(
            shuffle_manager_finder(service, home, config),
            endpoint,
            worker,
            name=name,
            address=address,
            version=importlib.metadata.version("sluice"),
            registered=registered,
        )
        linked: asyncio.Task[None] = asyncio.create_task(link.run(), name="shuffle manager link")
        stack.push_async_callback(_end, linked)
        yield linked


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
