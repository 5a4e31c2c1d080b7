"""Whether who was let in may stay: looked at several times a second for every stream that is open.

Envoy asks before a stream begins and never again; a query may run for hours.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pki.assertions import Asserted
from pki.errors import SluiceError

_LOG = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
"""A revocation cuts streams within this and the time that a look takes."""

Standing = Callable[[Asserted], bool]
"""Whether the credential that somebody came with is still good; raises :class:`SluiceError` when nobody can tell."""


class Cut(Exception):
    """The stream was ended because its credential is not good any more."""


@dataclass
class OpenStreams:
    """The streams that are open now.

    Attributes:
        standing: decides about one principal.
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

    def look(self) -> int:
        """Cut the streams of all that may not stay; how many."""
        verdicts: dict[Asserted, bool] = {}
        for who in set(self._open.values()):
            try:
                verdicts[who] = self.standing(who)
            except (SluiceError, OSError) as error:
                _LOG.error("streams of %s end, nobody can tell whether it may stay: %s", who.principal, error)
                verdicts[who] = False
        ended = [task for task, who in self._open.items() if not verdicts[who] and task not in self._cut]
        for task in ended:
            self._cut.add(task)
            task.cancel()
        return len(ended)

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if ended := self.look():
                _LOG.warning("%d streams were cut: their credential is revoked or has expired", ended)
