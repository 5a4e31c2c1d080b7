"""Publishes routes, policy, keys and revocations to Envoy when they change; invalid input is not published."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from sluice.core import CachedFile, EgressConfig, SluiceError, end_tasks, make_private_directory, repeat, write_secret
from sluice.core.xds import SHORT_NAMES, SnapshotBoard
from sluice.gateway.authz import PolicyFile, RouteTable
from sluice.gateway.config import GatewayConfig
from sluice.gateway.credentials import AccessTokenKeys, Revocations, RevocationSet
from sluice.gateway.envoy_config import (
    NO_EGRESS,
    SOURCE,
    Collector,
    EdgeInputs,
    Grants,
    edge_documents,
    edge_resources,
    extension_resources,
    load_source,
)
from sluice.gateway.upstreams import Upstreams
from sluice.gateway.xds import XdsService, XdsStatus

_LOG = logging.getLogger(__name__)

POLL_SECONDS = 0.1
"""Polling interval of the files. It is the larger part of the delay from a revocation to the first refusal."""
EXPIRY_SECONDS = 30.0
"""How often expired revocations are removed."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of the configuration; each is read again when its file changes."""

    routes: CachedFile[RouteTable]
    policy: PolicyFile
    keys: AccessTokenKeys
    revocations: Revocations


class EdgePublisher:
    """Publishes changes of the sources on ``board``.

    Use: :meth:`refresh` once, which raises when a source is invalid at the start; then :meth:`run`.
    """

    def __init__(
        self,
        board: SnapshotBoard,
        status: XdsStatus,
        sources: Sources,
        inputs: EdgeInputs,
        *,
        copy: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``inputs`` has the constant parts; the rest comes from ``sources``. ``copy`` is a file for operators."""
        self._board = board
        self._status = status
        self._sources = sources
        self._inputs = inputs
        self._copy = copy
        self._clock = clock
        self._built: EdgeInputs | None = None
        self._revoked: RevocationSet | None = None
        self._jwks: Mapping[str, object] = {}
        self._expired_at = 0.0

    def refresh(self) -> None:
        """Publish changes; raises :class:`~sluice.core.errors.SluiceError` when a source is invalid."""
        self._refresh_edge()
        self._refresh_revocations()

    async def run(self) -> None:
        """Publish changes until cancelled."""
        await repeat(self._look, POLL_SECONDS, "cannot publish changes to Envoy")

    def _look(self) -> None:
        for what, refresh in (("configuration", self._refresh_edge), ("revocations", self._refresh_revocations)):
            try:
                refresh()
            except (SluiceError, OSError) as error:
                if self._status.document.refused.get(what) != str(error):
                    _LOG.error("the new %s is invalid and not sent to Envoy: %s", what, error)
                self._status.refused(what, str(error))
            else:
                self._status.accepted_input(what)

    def _refresh_edge(self) -> None:
        policy = self._sources.policy.get()
        if self._sources.policy.rejected:
            self._status.refused("policy", self._sources.policy.rejected)
        else:
            self._status.accepted_input("policy")
        published = self._sources.routes.get().routes
        inputs = replace(
            self._inputs,
            routes=published,
            grants=Grants(policy.operations_by_role(), policy.digest),
        )
        if inputs == self._built:
            return
        documents = edge_documents(inputs)
        changed = self._board.publish(edge_resources(documents))
        self._built = inputs
        if changed:
            # For operators and `sluice audit`; Envoy keeps its configuration in memory only.
            make_private_directory(self._copy.parent)
            write_secret(self._copy, msgspec.json.encode({SHORT_NAMES[kind]: documents[kind] for kind in documents}))
            _LOG.info("sent Envoy a new configuration: %s", ", ".join(kind.rpartition(".")[2] for kind in changed))

    def _refresh_revocations(self) -> None:
        current, jwks, now = self._sources.revocations.current(), self._sources.keys.jwks(), self._clock()
        if current is self._revoked and jwks == self._jwks and now < self._expired_at + EXPIRY_SECONDS:
            return
        revoked = [(each.kind, each.id) for each in current.unexpired(now)]
        self._board.publish(extension_resources(jwks, revoked))
        self._revoked, self._jwks, self._expired_at = current, jwks, now


@contextlib.asynccontextmanager
async def publishing(
    service: XdsService,
    config: GatewayConfig,
    trust_domain: str,
    upstreams: Upstreams,
    sources: Sources,
    *,
    copy: Path,
    collector: Collector | None = None,
    egress: EgressConfig | None = None,
) -> AsyncIterator[None]:
    """Publish the configuration from ``sources`` while the context lasts, and write it to ``copy`` for operators.

    Envoy's spans go to ``collector``. ``egress`` are the egress settings of jobs; None means no egress gateway.

    Raises :class:`~sluice.core.errors.SluiceError` when a source is invalid at the start.
    """
    inputs = EdgeInputs(
        config=config,
        trust_domain=trust_domain,
        upstreams=upstreams,
        listener_source=load_source(SOURCE),
        routes=(),
        grants=Grants({}),
        collector=collector,
        egress=egress or NO_EGRESS,
    )
    publisher = EdgePublisher(service.board, service.status, sources, inputs, copy=copy)
    publisher.refresh()
    running = asyncio.create_task(publisher.run())
    try:
        yield
    finally:
        await end_tasks(running)
