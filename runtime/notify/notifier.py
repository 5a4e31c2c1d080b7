"""Collects events and sends them to each receiver: at least once, and rarely more often.

Events are collected anew in each step, so undelivered messages need no journal: the condition still holds, or the job
is still in the list. The delivery state of each receiver is stored durably before anything else is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import Counter as Counted
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from prometheus_client import Counter, Gauge

from sluice.core import REGISTRY, Clock, SluiceError, backoff_seconds, utc_now
from sluice.runtime.notify.config import NotifyConfig, Receiver
from sluice.runtime.notify.delivered import Delivered
from sluice.runtime.notify.events import Event
from sluice.runtime.notify.kinds import Kind
from sluice.runtime.notify.message import MAX_EVENTS, Message
from sluice.runtime.notify.senders import Sender, sender_of

_LOG = logging.getLogger(__name__)

MAX_WAITING = 200
"""Maximum number of waiting events of a kind per receiver; further ones are added later if they are still seen."""
FIRST_BACKOFF_SECONDS = 5.0
MAX_BACKOFF_SECONDS = 600.0

SENT = Counter(
    "sluice_notify_sent_total", "Notifications that the receiver has confirmed.", ["receiver"], registry=REGISTRY
)
FAILURES = Counter(
    "sluice_notify_failures_total",
    "Messages that the receiver did not confirm; they are sent again.",
    ["receiver"],
    registry=REGISTRY,
)
WAITING = Gauge(
    "sluice_notify_waiting", "Notifications that the receiver does not have yet.", ["receiver"], registry=REGISTRY
)

Source = Callable[[], Awaitable[Sequence[Event]]]
"""Returns the current events of one kind; raises :class:`SluiceError` or OSError when they cannot be determined."""


class Store(Protocol):
    """Stores the delivery state. It is durable, and readable by the next leader, when ``write`` returns."""

    async def read(self) -> bytes | None:
        """Return what was written last, or None."""
        ...

    async def write(self, data: bytes) -> None:
        """Store ``data`` durably."""
        ...


@dataclass
class _Line:
    """One receiver with its delivery state and its waiting events."""

    config: Receiver
    sender: Sender
    delivered: Delivered
    waiting: dict[str, Event] = field(default_factory=dict)
    failures: int = 0
    not_before: float = 0.0


class Notifier:
    """Sends the events of ``sources`` in the cluster named ``cluster`` to the receivers of ``config``."""

    def __init__(
        self,
        config: NotifyConfig,
        cluster: str,
        sources: Mapping[Kind, Source],
        store: Store,
        *,
        sender: Callable[[Receiver], Sender] = sender_of,
        clock: Clock = utc_now,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._config = config
        self._cluster = cluster
        wanted = {kind for each in config.receivers for kind in each.kinds}
        self._sources = {kind: source for kind, source in sources.items() if kind in wanted}
        self._store = store
        self._sender = sender
        self._clock = clock
        self._chance = chance
        self._begun = clock().timestamp()
        self._lines: list[_Line] | None = None
        self._unseen: set[Kind] = set()
        self._saved = False

    async def step(self) -> None:
        """Collect events once and send due messages.

        Raises:
            SluiceError, OSError: the delivery state cannot be read or stored; nothing more is sent until it can.
        """
        now = self._clock().timestamp()
        if self._lines is None:
            self._lines = await self._load()
        if not self._saved:
            await self._save(self._lines)
        seen = await self._look()
        for line in self._lines:
            self._gather(line, seen, now)
        try:
            await asyncio.gather(*(self._tell(line, now) for line in self._lines))
        except asyncio.CancelledError:
            # Save, so that the next process does not send again what receivers have confirmed.
            if not self._saved:
                with contextlib.suppress(SluiceError, OSError):
                    await self._save(self._lines)
            raise
        if not self._saved:
            await self._save(self._lines)

    async def _load(self) -> list[_Line]:
        """Load the delivery state. A new receiver gets one-time events from the start of this process on."""
        known: dict[str, Delivered] = {}
        data = await self._store.read()
        if data is not None:
            try:
                known = msgspec.json.decode(data, type=dict[str, Delivered])
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                _LOG.error("cannot read the delivery state of notifications, some may be sent again: %s", error)
        return [
            _Line(each, self._sender(each), known.get(each.name, Delivered(since=self._begun)))
            for each in self._config.receivers
        ]

    async def _save(self, lines: Sequence[_Line]) -> None:
        await self._store.write(msgspec.json.encode({line.config.name: line.delivered for line in lines}))
        self._saved = True

    async def _look(self) -> dict[Kind, Sequence[Event]]:
        """Collect the current events; kinds whose source fails are left out."""
        seen: dict[Kind, Sequence[Event]] = {}
        for kind, source in self._sources.items():
            try:
                seen[kind] = await source()
            except Exception as error:  # noqa: BLE001  one kind must not prevent notifications of the others
                if kind not in self._unseen:
                    expected = isinstance(error, SluiceError | OSError)
                    _LOG.warning("cannot collect notifications of %s now: %s", kind, error, exc_info=not expected)
                self._unseen.add(kind)
            else:
                self._unseen.discard(kind)
        return seen

    def _gather(self, line: _Line, seen: Mapping[Kind, Sequence[Event]], now: float) -> None:
        repeat = self._config.repeat_hours * 3600
        events = {each.key: each for kind in line.config.kinds for each in seen.get(kind, ())}
        for key, event in list(line.waiting.items()):
            # A condition that ended before it was sent is not sent.
            if not event.once and event.kind in seen and key not in events:
                del line.waiting[key]
        held = Counted(each.kind for each in line.waiting.values())
        for event in sorted(events.values(), key=lambda each: each.at):
            if not line.delivered.should_send(event, now, repeat):
                continue
            if event.key not in line.waiting:
                if held[event.kind] >= MAX_WAITING:
                    continue
                held[event.kind] += 1
            line.waiting[event.key] = event
        WAITING.labels(line.config.name).set(len(line.waiting))

    async def _tell(self, line: _Line, now: float) -> None:
        """Send the waiting events if a message is due."""
        name = line.config.name
        grouping = 0 <= now - line.delivered.last < self._config.group_minutes * 60
        if not line.waiting or grouping or now < line.not_before:
            return
        urgency = list(Kind)
        events = sorted(line.waiting.values(), key=lambda each: urgency.index(Kind(each.kind)))[:MAX_EVENTS]
        message = Message(self._cluster, events, now, more=len(line.waiting) - len(events))
        try:
            complaint = await line.sender.send(message)
        except Exception as error:  # noqa: BLE001  one receiver must not prevent notifications of the others
            line.failures += 1
            FAILURES.labels(name).inc()
            pause = backoff_seconds(line.failures, FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, self._chance)
            line.not_before = now + pause
            if isinstance(error, SluiceError | OSError):
                _LOG.error("notifications to %s: %s; trying again in %.0f s", name, error, pause)
            else:
                _LOG.exception("notifications to %s; trying again in %.0f s", name, pause)
            return
        if complaint:
            _LOG.error("notifications to %s: %s", name, complaint)
        if line.failures:
            _LOG.info("notifications to %s work again", name)
        line.failures, line.not_before = 0, 0.0
        line.delivered.record_confirmed(events, now, self._config.repeat_hours * 3600)
        for each in events:
            del line.waiting[each.key]
        SENT.labels(name).inc(len(events))
        WAITING.labels(name).set(len(line.waiting))
        self._saved = False
