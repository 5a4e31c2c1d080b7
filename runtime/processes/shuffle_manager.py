"""The ShuffleManager process: it takes part in the leader election, and manages shuffles while it leads."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec

from sluice.core import Home, MetricsRegistry, collecting
from sluice.pki import Role
from sluice.pki.tls import ConnectionLog, TlsIdentity
from sluice.pki.trust import reporting
from sluice.runtime.config import RuntimeConfig
from sluice.runtime.ha import (
    EmbeddedElection,
    HaConfig,
    LeaderElection,
    LeaderEndpoint,
    LeaderInformation,
    Leadership,
    Ready,
    make_election,
    origin_of,
    run_terms,
)
from sluice.runtime.node import (
    SHUFFLE_MANAGER,
    ShuffleManagerAddress,
    publish_shuffle_listener,
    publish_shuffle_manager,
    require_reachable,
    withdraw_registration,
    withdraw_shuffle_manager,
)
from sluice.runtime.rpc import RpcService
from sluice.runtime.shuffle import ShuffleConfig
from sluice.runtime.shuffle.control_plane import ShuffleMisconfigured
from sluice.runtime.shuffle.manager import ShuffleJobStore, ShuffleManager

_LOG = logging.getLogger(__name__)

_DIRECTORY = "shuffle-ha"
_SUFFIX = "-shuffle"


def shuffle_ha(config: HaConfig, shuffle: ShuffleConfig) -> HaConfig:
    """Derive the configuration of the ShuffleManagers' own election, in which JobManagers cannot take part.

    Raises:
        ShuffleMisconfigured: ``shuffle.manager_names`` is missing.
    """
    if config.mode == "zookeeper" and not shuffle.manager_names:
        raise ShuffleMisconfigured(
            "ha.mode is 'zookeeper' without shuffle.manager_names", 'list all of them, as in ["shuffle-manager-1"]'
        )
    return msgspec.structs.replace(
        config,
        zookeeper_root=f"{config.zookeeper_root}{_SUFFIX}",
        cluster=f"{config.cluster}{_SUFFIX}" if config.mode == "kubernetes" else config.cluster,
        jobmanagers=shuffle.manager_names,
    )


async def run_shuffle_manager(home: Home, config: RuntimeConfig, name: str) -> None:
    """Run a ShuffleManager, leading or standing by, until cancelled.

    Its identity must exist at ``home.identity(Role.SHUFFLE_MANAGER, name)``.

    Raises:
        StoreError: there is no usable identity, or an address is in use.
        AddressUnusable: other machines cannot connect to ``config.shuffle.host``.
        HaError: it can neither lead nor stand by.
    """
    async with shuffle_manager(home, config, name) as node:
        await node.terms


@asynccontextmanager
async def shuffle_manager(
    home: Home, config: RuntimeConfig, name: str, *, election: LeaderElection | None = None
) -> AsyncIterator[ShuffleManagerNode]:
    """A running ShuffleManager, entered once it leads or stands by.

    ``election`` is by default that of ``config.ha``, under separate names (see :func:`shuffle_ha`).
    """
    settings = config.shuffle
    require_reachable(settings.host, "shuffle.host")
    home.create()
    identity = TlsIdentity(home.identity(Role.SHUFFLE_MANAGER, name))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(reporting(identity, "shuffle-manager"))
        elected_by = election or _election(config, home, identity)
        stack.push_async_callback(elected_by.close)
        metrics = MetricsRegistry()
        stack.enter_context(collecting(metrics))
        service = RpcService(identity, connections=ConnectionLog(), metrics=metrics)
        stack.push_async_callback(service.close)
        rpc = await service.listen(settings.host, settings.manager_port)
        await service.start(LeaderEndpoint(elected_by.leader))
        address = ShuffleManagerAddress(name=name, rpc=rpc, pid=os.getpid())
        stack.callback(withdraw_registration, home, name, SHUFFLE_MANAGER)
        publish_shuffle_listener(home, address)
        node = ShuffleManagerNode(home, settings, service, address)
        node.terms = await stack.enter_async_context(run_terms(elected_by, node.lead, what="ShuffleManager"))
        yield node
        _LOG.info("ShuffleManager %s stops", identity.spiffe_id)


def _election(config: RuntimeConfig, home: Home, identity: TlsIdentity) -> LeaderElection:
    if config.ha.mode == "embedded":
        return EmbeddedElection(home.root / _DIRECTORY)
    return make_election(shuffle_ha(config.ha, config.shuffle), home, identity)


@dataclass
class ShuffleManagerNode:
    """A running ShuffleManager. :meth:`lead` starts what it runs in each term."""

    home: Home
    config: ShuffleConfig
    service: RpcService
    address: ShuffleManagerAddress
    terms: asyncio.Task[NoReturn] = field(init=False)

    async def lead(self, stack: AsyncExitStack, leadership: Leadership, ready: Ready) -> None:
        """Begin a term: start the leader's services."""
        stack.push_async_callback(self._close_peers)
        manager = ShuffleManager(self.config, ShuffleJobStore(leadership.pointers))
        await self.service.start(manager)
        stack.push_async_callback(self.service.stop, manager)
        stack.callback(withdraw_shuffle_manager, self.home, os.getpid())
        await leadership.publish(self._information(leadership))
        publish_shuffle_manager(self.home, self.address)
        _LOG.info("ShuffleManager %s is ready: rpc %s:%d", self.service.spiffe_id, *self.address.rpc)
        ready()

    async def _close_peers(self) -> None:
        """Close all connections at the end of the term, so that workers and JobManagers look for the next leader."""
        # At the same time: each peer that cannot be reached takes a second or two.
        closing = (peer.close("this ShuffleManager does not lead any more") for peer in self.service.peers())
        await asyncio.gather(*closing)

    def _information(self, leadership: Leadership) -> LeaderInformation:
        return LeaderInformation(
            name=self.address.name,
            epoch=leadership.epoch,
            origin=origin_of(self.home),
            rpc=(self.config.host, self.address.rpc[1]),
            rest="",
        )
