"""Where a shuffle is that is read while it is written, when its workers are drained in the middle of that.

A worker that has handed over says to whom, to everybody who comes. A successor that cannot be reached is no last word:
the worker itself is asked again, which finds another one as long as it is there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sluice.runtime.messages import OutputLocation, WorkerAddress
from sluice.runtime.shuffle.data_plane import Moved, ShuffleUnavailable

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
Locate = Callable[[int, Sequence[str]], Awaitable[Sequence[OutputLocation]]]
"""Where what these workers kept of a shuffle is now: ``ShuffleManagerLink.locate`` of
one job."""

TRIES = 20
"""How often a shuffle is looked for in a row."""
PAUSE_SECONDS = 1.0
"""Between these, from the third on."""
ROW_SECONDS = 60.0
"""Where something went well for so long, a new row begins."""


class Successors:
    """Who has taken over from the workers of one shuffle, for all of one client that write it, produce it or follow it.

    Args:
        shuffle: its number.
        locate: asked when a worker is gone; None: nobody is.
        clock: monotonic seconds.
    """

    def __init__(self, shuffle: int, locate: Locate | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._shuffle = shuffle
        self._locate = locate
        self._clock = clock
        self._places: dict[WorkerAddress, WorkerAddress] = {}

    def of(self, worker: WorkerAddress) -> WorkerAddress:
        """Who has what was ``worker``'s: itself, as far as is known."""
        return self._places.get(worker, worker)

    async def at(self, worker: WorkerAddress, act: Callable[[WorkerAddress], Awaitable[_T]]) -> _T:
        """``act`` where what was ``worker``'s is; again where it is then, when it has moved.

        Raises:
            ShuffleError: what ``act`` raised; :class:`ShuffleUnavailable` also when the shuffle is not to be found.
        """
        tries = 0
        while True:
            place, began = self.of(worker), self._clock()
            try:
                return await act(place)
            except ShuffleUnavailable as error:
                tries = 1 if self._clock() - began > ROW_SECONDS else tries + 1
                if tries > TRIES or not await self._looked_up(worker, place, error):
                    raise
                _LOG.info(
                    "shuffle %d of %s is looked for at %s: %s", self._shuffle, worker.name, self.of(worker), error
                )
            if tries > 2:  # a successor that is gone has to be noticed and replaced
                await asyncio.sleep(PAUSE_SECONDS)

    async def _looked_up(self, worker: WorkerAddress, place: WorkerAddress, error: ShuffleUnavailable) -> bool:
        """Whether there is somewhere else to look."""
        if isinstance(error, Moved):
            self._move(place, error.to)
            return True
        if self.of(worker) != place:
            return True  # another one of us has been told
        if place != worker:
            del self._places[worker]
            return True
        for found in await self._locate(self._shuffle, [worker.name]) if self._locate is not None else ():
            if found.pushed_to == worker.name != found.address.name:
                self._move(worker, found.address)
                return True
        return False

    def _move(self, place: WorkerAddress, to: WorkerAddress) -> None:
        """All that is at ``place`` is at ``to``."""
        self._places = {worker: to if each == place else each for worker, each in self._places.items()}
        self._places[place] = to
