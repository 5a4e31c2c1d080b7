"""The authority's side of a long poll: clients wait for changed trust anchors and CRLs. No HTTP.

An identity has one place to wait; a new request takes it over from the earlier one. So a peer whose connection broke
can wait again, and nobody can take the places of others.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from sluice.core import PkiError, end_tasks
from sluice.pki.ca.protocol import TRUST_WAIT_SECONDS, TrustAnswer, TrustSide
from sluice.pki.errors import RateLimited

_LOG = logging.getLogger(__name__)

MAX_WAITERS = 2048
"""Most waiting identities; more are told to come back, soon enough to learn of a revocation in time."""
COME_BACK_SECONDS = 2.0
LOOK_SECONDS = 0.5
"""How often to check for a change while somebody waits."""


class View(enum.Enum):
    """Which part of the trust a requester gets."""

    MEMBER = "member"
    GATEWAY = "gateway"


ReadTrust = Callable[[], Awaitable[tuple[TrustSide, TrustSide | None]]]
"""Reads the internal side, and the edge's when there is one."""


@dataclass(frozen=True, slots=True)
class _Rendered:
    """An answer, encoded once for all requesters."""

    answer: TrustAnswer
    body: bytes
    unchanged: bytes

    @classmethod
    def of(cls, internal: TrustSide, edge: TrustSide | None) -> _Rendered:
        content = msgspec.json.encode([internal, edge])
        version = hashlib.sha256(content).hexdigest()
        answer = TrustAnswer(version=version, internal=internal, edge=edge)
        return cls(answer, msgspec.json.encode(answer), msgspec.json.encode(TrustAnswer(version=version)))


@dataclass(eq=False, slots=True)
class _Waiter:
    view: View
    known: str
    woken: asyncio.Event


class TrustWatch:
    """Answers trust requests at once if something is new, else after the next change; belongs to one event loop."""

    def __init__(
        self,
        read: ReadTrust,
        *,
        wait_seconds: float = TRUST_WAIT_SECONDS,
        look_seconds: float = LOOK_SECONDS,
        max_waiters: int = MAX_WAITERS,
    ) -> None:
        self._read = read
        self._wait_seconds = wait_seconds
        self._look_seconds = look_seconds
        self._max_waiters = max_waiters
        self._rendered: dict[View, _Rendered] = {}
        self._waiters: dict[str, _Waiter] = {}
        self._looking: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """The number of waiting requests."""
        return len(self._waiters)

    async def poll(self, who: str, view: View, known: str) -> bytes:
        """The answer for ``who`` as JSON: at once if ``known`` is not the current version, else after a change.

        Raises:
            RateLimited: too many wait already.
        """
        await self._look()
        if self._rendered[view].answer.version != known:
            return self._rendered[view].body
        if (earlier := self._waiters.pop(who, None)) is not None:
            earlier.woken.set()
        elif len(self._waiters) >= self._max_waiters:
            raise RateLimited("too many wait for news already", COME_BACK_SECONDS)
        waiter = self._waiters[who] = _Waiter(view, known, asyncio.Event())
        if self._looking is None:
            self._looking = asyncio.create_task(self._look_while_somebody_waits())
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._wait_seconds):
                    await waiter.woken.wait()
        finally:
            if self._waiters.get(who) is waiter:
                del self._waiters[who]
        rendered = self._rendered[view]
        return rendered.unchanged if rendered.answer.version == known else rendered.body

    async def close(self) -> None:
        """Answer the waiting clients, and stop."""
        for waiter in self._waiters.values():
            waiter.woken.set()
        if self._looking is not None:
            await end_tasks(self._looking)

    async def _look_while_somebody_waits(self) -> None:
        complaint = ""
        try:
            while self._waiters:
                await asyncio.sleep(self._look_seconds)
                try:
                    await self._look()
                except (PkiError, OSError) as error:
                    if str(error) != complaint:
                        _LOG.error("cannot read the trusted authorities: %s", error)
                    complaint = str(error)
        finally:
            self._looking = None

    async def _look(self) -> None:
        internal, edge = await self._read()
        for view, seen in ((View.MEMBER, None), (View.GATEWAY, edge)):
            before = self._rendered.get(view)
            if before is None or (before.answer.internal, before.answer.edge) != (internal, seen):
                self._rendered[view] = _Rendered.of(internal, seen)
        for waiter in self._waiters.values():
            if self._rendered[waiter.view].answer.version != waiter.known:
                waiter.woken.set()
