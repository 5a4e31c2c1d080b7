"""How far the relay's Envoy follows what is published for it."""

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
    """Serves the board to one Envoy, and remembers what it has accepted.

    A cluster is used once its secrets have arrived: an accepted answer with them says so.
    """

    board: SnapshotBoard
    _sent: frozenset[str] = frozenset()
    _taken: frozenset[str] = frozenset()
    _rejected: str = ""
    _listening: bool | None = None
    _heard: asyncio.Event = field(default_factory=asyncio.Event)

    def check(self, kind: str, names: tuple[str, ...]) -> None:
        """Everything is for the one Envoy that was let in."""

    def get(self, kind: str) -> Resources | None:
        """What is published."""
        return self.board.get(kind)

    def change(self) -> Coroutine[Any, Any, object]:
        """Waits for the next publication."""
        return self.board.change()

    def sent(self, subscription: Subscription) -> None:
        """An answer has left."""
        resources = self.board.get(subscription.kind)
        if subscription.kind == SECRET and resources is not None:
            self._sent = frozenset(subscription.names) & resources.by_name.keys()

    def heard(self, subscription: Subscription, heard: Heard) -> None:
        """Envoy has accepted or rejected the last answer."""
        if heard is Heard.REJECTED:
            _LOG.error("the relay rejected its %s: %s", SHORT_NAMES[subscription.kind], subscription.rejected)
        if subscription.kind == LISTENER:
            self._listening = heard is Heard.ACCEPTED
        elif heard is Heard.REJECTED:
            self._rejected = subscription.rejected
        elif subscription.kind == SECRET:
            self._taken, self._rejected = self._sent, ""
        heard_before, self._heard = self._heard, asyncio.Event()
        heard_before.set()

    def restarted(self) -> None:
        """Another Envoy begins with nothing."""
        self._sent, self._taken, self._rejected, self._listening = frozenset(), frozenset(), "", None

    async def listening(self) -> bool:
        """Wait until Envoy has accepted or rejected its listener; whether it has accepted it."""
        while (listening := self._listening) is None:
            await self._heard.wait()
        if not listening:
            self._listening = None
        return listening

    async def taken(self, names: frozenset[str]) -> None:
        """Wait until Envoy has these secrets; raises :class:`RelayFailed` when it rejects what it is given."""
        while not names <= self._taken:
            if self._rejected:
                raise RelayFailed(f"the relay rejected the identity of a job: {self._rejected}")
            await self._heard.wait()
