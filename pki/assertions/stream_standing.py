"""Whether who was let in may stay: looked at several times a second for every stream that is open.

The gateway decides before a stream begins and never again; a query may run for hours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import msgspec

from sluice.core.errors import SluiceError
from sluice.core.tasks import repeat
from sluice.pki.assertions.credential import CredentialKind
from sluice.pki.assertions.tokens import Asserted

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
"""A revocation cuts streams within this and the time that a look takes."""

Standing = Callable[[AbstractSet[Asserted]], Awaitable[AbstractSet[Asserted]]]
"""Whose credentials are still good, of these; raises :class:`SluiceError` when nobody can tell."""


MAX_ASKED = 4096
"""Holders in one question to the auth service of another machine."""
MAX_QUESTION_BYTES = MAX_ASKED * 1024


class Holder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who came with which credential: what can be revoked of :class:`~sluice.pki.assertions.tokens.Asserted`."""

    principal: str
    kind: CredentialKind
    credential: str
    id: str

    @classmethod
    def of(cls, who: Asserted) -> Holder:
        """That of somebody who was let in."""
        return cls(principal=who.principal, kind=who.credential.kind, credential=who.credential.id, id=who.id)


class Cut(SluiceError):
    """The stream was ended because its credential is not good any more."""

    def __init__(self) -> None:
        super().__init__("the credential is not good any more", "sign in again, or make another token")


@dataclass
class OpenStreams:
    """The streams that are open now.

    Attributes:
        standing: decides who may stay.
    """

    standing: Standing
    _open: dict[asyncio.Task[object], Asserted] = field(default_factory=dict)
    _cut: set[asyncio.Task[object]] = field(default_factory=set)

    @contextlib.contextmanager
    def entered(self, who: Asserted) -> Iterator[None]:
        """The current task serves a stream of ``who`` meanwhile; raises :class:`Cut` when it had to end."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("streams are served by tasks")
        self._open[task] = who
        try:
            yield
        except asyncio.CancelledError:
            if task in self._cut:
                task.uncancel()
                raise Cut from None
            raise
        finally:
            del self._open[task]
            self._cut.discard(task)

    def of(self, principal: str) -> int:
        """How many are open for ``principal``."""
        return sum(who.principal == principal for who in self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    async def look(self) -> int:
        """Cut the streams of all that may not stay; how many."""
        everybody = frozenset(self._open.values())
        if not everybody:
            return 0
        try:
            stay = await self.standing(everybody)
        except (SluiceError, OSError) as error:
            _LOG.error("%d streams end, nobody can tell whether they may stay: %s", len(self._open), error)
            stay = frozenset()
        gone = everybody - stay
        ended = [task for task, who in self._open.items() if who in gone and task not in self._cut]
        for task in ended:
            self._cut.add(task)
            task.cancel()
        return len(ended)

    async def watch(self) -> None:
        """Look until cancelled."""
        await repeat(self._look_and_tell, LOOK_SECONDS, "nobody looks after the streams that are open")

    async def _look_and_tell(self) -> None:
        if ended := await self.look():
            _LOG.warning("%d streams were cut: their credential is revoked or has expired", ended)
