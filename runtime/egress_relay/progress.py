"""Tracks which published resources the relay's Envoy has accepted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from sluice.core.xds import LISTENER, SECRET, SHORT_NAMES, Heard, Resources, SnapshotBoard, Subscription
from sluice.runtime.egress_relay.errors import RelayFailed

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class Progress:
    """Serves the snapshot board to one Envoy and remembers what Envoy has accepted.

    A cluster is ready once Envoy has accepted a response with its secrets.
    """

    board: SnapshotBoard
    _sent: frozenset[str] = frozenset()
    _accepted: frozenset[str] = frozenset()
    _rejected: str = ""
    _listening: bool | None = None
    _heard: asyncio.Event = field(default_factory=asyncio.Event)

    def check(self, kind: str, names: tuple[str, ...]) -> None:
        """Allow everything: only the relay's Envoy can connect."""

    def get(self, kind: str) -> Resources | None:
        """The published resources of a kind."""
        return self.board.get(kind)

    def change(self) -> Coroutine[Any, Any, object]:
        """Wait for the next publication."""
        return self.board.change()

    def sent(self, subscription: Subscription) -> None:
        """Note that a response was sent."""
        resources = self.board.get(subscription.kind)
        if subscription.kind == SECRET and resources is not None:
            self._sent = frozenset(subscription.names) & resources.by_name.keys()

    def heard(self, subscription: Subscription, heard: Heard) -> None:
        """Note that Envoy accepted or rejected the last response."""
        if heard is Heard.REJECTED:
            _LOG.error("the relay rejected its %s: %s", SHORT_NAMES[subscription.kind], subscription.rejected)
        if subscription.kind == LISTENER:
            self._listening = heard is Heard.ACCEPTED
        elif heard is Heard.REJECTED:
            self._rejected = subscription.rejected
        elif subscription.kind == SECRET:
            self._accepted, self._rejected = self._sent, ""
        heard_before, self._heard = self._heard, asyncio.Event()
        heard_before.set()

    def restarted(self) -> None:
        """Forget everything: a new Envoy starts without resources."""
        self._sent, self._accepted, self._rejected, self._listening = frozenset(), frozenset(), "", None

    async def listening(self) -> bool:
        """Wait until Envoy accepts or rejects its listener; return whether it accepted it."""
        while (listening := self._listening) is None:
            await self._heard.wait()
        if not listening:
            self._listening = None
        return listening

    async def wait_accepted(self, names: frozenset[str]) -> None:
        """Wait until Envoy has these secrets; raises :class:`RelayFailed` if it rejects its configuration."""
        while not names <= self._accepted:
            if self._rejected:
                raise RelayFailed(f"the relay rejected the identity of a job: {self._rejected}")
            await self._heard.wait()
