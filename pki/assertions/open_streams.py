"""Ends streams whose credential is no longer valid: checks all open streams several times a second.

The gateway decides only before a stream begins, and a query may run for hours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Set as AbstractSet
from dataclasses import dataclass, field

import msgspec

from sluice.core import SluiceError, repeat
from sluice.pki.assertions.principal import Credential, CredentialKind, Jti
from sluice.pki.assertions.tokens import Assertion

_LOG = logging.getLogger(__name__)

CHECK_SECONDS = 0.2
"""Seconds between two checks: a revocation ends streams within this plus the time of a check."""
MAX_CHECKED = 4096
"""Holders in one question to the auth service of another machine."""
MAX_QUESTION_BYTES = MAX_CHECKED * 1024


class StreamHolder(msgspec.Struct, frozen=True, order=True, kw_only=True, forbid_unknown_fields=True):
    """What can be revoked of a stream's caller: its name, its credential, and its access token.

    Also sent between a JobManager and the auth service.
    """

    principal: str
    kind: CredentialKind
    credential: str
    id: Jti

    @classmethod
    def of(cls, who: Assertion) -> StreamHolder:
        """The holder of an admitted caller's stream."""
        credential = who.principal.credential
        return cls(principal=who.name, kind=credential.kind, credential=credential.id, id=who.id or Jti(""))

    def as_credential(self) -> Credential:
        """The credential: kind and id together."""
        return Credential(self.kind, self.credential)


Holders = AbstractSet[StreamHolder]
CheckHolders = Callable[[Holders], Awaitable[Holders]]
"""Those of the given holders whose credentials are valid; raises :class:`SluiceError` when that is unknown."""


class StreamEnded(SluiceError):
    """The stream was ended because its credential is no longer valid."""

    def __init__(self) -> None:
        super().__init__("the credential is not valid any more", "sign in again, or create another token")


@dataclass
class OpenStreams:
    """The streams that are open now.

    Attributes:
        check: decides whose streams stay open.
    """

    check: CheckHolders
    _open: dict[asyncio.Task[object], StreamHolder] = field(default_factory=dict)
    _ending: set[asyncio.Task[object]] = field(default_factory=set)

    @contextlib.contextmanager
    def entered(self, who: Assertion) -> Iterator[None]:
        """Register the current task as a stream of ``who``; raises :class:`StreamEnded` if the stream was ended."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("streams are served by tasks")
        self._open[task] = StreamHolder.of(who)
        try:
            yield
        except asyncio.CancelledError:
            if task in self._ending:
                task.uncancel()
                raise StreamEnded from None
            raise
        finally:
            del self._open[task]
            self._ending.discard(task)

    def of(self, name: str) -> int:
        """The number of open streams of the principal ``name``."""
        return sum(holder.principal == name for holder in self._open.values())

    def __len__(self) -> int:
        return len(self._open)

    async def end_invalid(self) -> int:
        """End the streams of all holders whose credential is not valid; returns how many."""
        holders = frozenset(self._open.values())
        if not holders:
            return 0
        try:
            valid = await self.check(holders)
        except (SluiceError, OSError) as error:
            _LOG.error("ending all %d streams: cannot check their credentials: %s", len(self._open), error)
            valid = frozenset()
        invalid = holders - valid
        ended = [task for task, holder in self._open.items() if holder in invalid and task not in self._ending]
        for task in ended:
            self._ending.add(task)
            task.cancel()
        return len(ended)

    async def watch(self) -> None:
        """Check until cancelled."""
        await repeat(self._check_and_log, CHECK_SECONDS, "the credentials of open streams are not checked")

    async def _check_and_log(self) -> None:
        if ended := await self.end_invalid():
            _LOG.warning("ended %d streams: their credential is revoked or has expired", ended)
