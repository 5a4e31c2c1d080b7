"""The shuffles of one job: maps Spark's shuffle ids to numbers on the data plane.

Spark counts shuffles and map attempts from 0 in every SparkContext, and so in every driver attempt. On the data plane
each shuffle therefore has a number that is unique within the job, so data that a leftover executor of an earlier
attempt writes cannot mix with the data of a later one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Coroutine
from dataclasses import dataclass
from typing import Any

from sluice.core import ANY_PORT, SluiceError
from sluice.runtime.messages import OutputLocation, RunningDriver, ShuffleAllocation
from sluice.runtime.shuffle.control_plane import NoShuffleService, ShuffleManagerLink

_LOG = logging.getLogger(__name__)

ATTEMPT_SHIFT = 20
"""A number on the data plane consists of the attempt, and below it a counter of this many bits."""
MAX_SHUFFLES_OF_ATTEMPT = 1 << ATTEMPT_SHIFT
FIRST_NUMBER_OF_A_LATER_CONTEXT = (1 << ATTEMPT_SHIFT) + 1
"""From this number on, there may be earlier shuffles: only the first context of the first attempt has none."""
_ATTEMPTS = 1 << (32 - ATTEMPT_SHIFT)


WORKERS_KNOWN_SECONDS = 2.0
"""How long the list of workers is cached."""


@dataclass(slots=True)
class _Shuffle:
    number: int
    partitions: int
    allocation: asyncio.Task[ShuffleAllocation] | None = None
    """None when an earlier leader allocated it; the service still knows the answer."""


class ShuffleRelay:
    """The shuffles of one job, as its driver and the shuffle service see them.

    Args:
        link: the connection to the shuffle service; None when it is not used.
    """

    def __init__(self, link: ShuffleManagerLink | None, job_id: str) -> None:
        self._link = link
        self._job_id = job_id
        self._context: tuple[int, str] | None = None
        self._attempt = 0
        self._count = 0
        self._shuffles: dict[int, _Shuffle] = {}
        self._workers: tuple[tuple[str, int], ...] = ()
        self._workers_until = 0.0
        self._asking = asyncio.Lock()
        self._over = False

    @property
    def enabled(self) -> bool:
        """Whether the job's shuffles go through the service."""
        return self._link is not None

    def begin(self, attempt: int, app_id: str) -> Coroutine[Any, Any, None] | None:
        """Begin a SparkContext: earlier shuffles are over. Await the returned coroutine, if any, to release them.

        A repeated call for the same SparkContext does nothing.
        """
        if self._link is None or self._context == (attempt, app_id):
            return None
        if attempt != self._attempt:
            self._attempt, self._count = attempt, 0
        self._context = (attempt, app_id)
        self.close()
        first = self._number()
        return self._release_before(self._link, first) if first >= FIRST_NUMBER_OF_A_LATER_CONTEXT else None

    def resume(self, attempt: int, running: RunningDriver) -> None:
        """Take over the shuffles of a driver from an earlier leader, before its :meth:`begin`.

        The driver's report affects only its own job. The service is asked again where the shuffles are.
        """
        if self._link is None:
            return
        self._attempt, self._context = attempt, (attempt, running.app_id)
        mine = (attempt % _ATTEMPTS) << ATTEMPT_SHIFT
        for each in running.shuffles:
            if each.number >> ATTEMPT_SHIFT == mine >> ATTEMPT_SHIFT:
                self._shuffles[each.shuffle_id] = _Shuffle(each.number, each.partitions)
                self._count = max(self._count, each.number - mine + 1)
        self._count = max(self._count, running.shuffles_asked)  # each request may have used a number
        if running.shuffles_asked:
            self._link.keep(self._job_id)

    async def register(self, shuffle_id: int, partitions: int) -> ShuffleAllocation:
        """Allocate workers for Spark's shuffle ``shuffle_id``; the same ones until it is unregistered."""
        link = self._link
        if link is None or self._over:
            raise NoShuffleService(
                f"job {self._job_id} does not use the shuffle service", "it is ending" if self._over else ""
            )
        known = self._shuffles.get(shuffle_id)
        if known is None or _failed(known.allocation):
            known = self._shuffles[shuffle_id] = _Shuffle(self._next_number(), partitions)
        return await self._allocation(link, known)

    async def _allocation(self, link: ShuffleManagerLink, shuffle: _Shuffle) -> ShuffleAllocation:
        if shuffle.allocation is None:
            asked = link.allocate(self._job_id, shuffle.number, shuffle.partitions)
            shuffle.allocation = asyncio.ensure_future(asked)
        return await asyncio.shield(shuffle.allocation)

    async def locate(self, shuffle_id: int) -> tuple[OutputLocation, ...]:
        """Locate the outputs of a registered shuffle: at its workers, or at their successors."""
        shuffle = self._shuffles.get(shuffle_id)
        if self._link is None or shuffle is None:
            raise NoShuffleService(f"shuffle {shuffle_id} of job {self._job_id} is not registered")
        allocation = await self._allocation(self._link, shuffle)
        names = [worker.name for worker in allocation.workers]
        return await self._link.locate(self._job_id, shuffle.number, names)

    async def workers_on(self, port: int) -> tuple[str, ...]:
        """The hosts on which shuffle workers serve the data channel on ``port``, or :data:`ANY_PORT`.

        Empty while the service is unavailable.
        """
        if self._link is None:
            return ()
        async with self._asking:
            if time.monotonic() >= self._workers_until:
                try:
                    found = await self._link.overview()
                except SluiceError as error:
                    _LOG.info("cannot get the shuffle workers for job %s: %s", self._job_id, error)
                    return ()
                self._workers = tuple((each.host, each.port) for each in found.workers)
                self._workers_until = time.monotonic() + WORKERS_KNOWN_SECONDS
        return tuple(dict.fromkeys(host for host, its_port in self._workers if port in (its_port, ANY_PORT)))

    async def unregister(self, shuffle_id: int) -> None:
        """Release a shuffle that Spark no longer needs."""
        shuffle = self._shuffles.pop(shuffle_id, None)
        if shuffle is not None:
            await self._release(shuffle)

    async def workers_lost(self, shuffle_id: int, workers: Collection[str]) -> None:
        """Report workers of a shuffle that the job cannot reach; names of other workers are ignored."""
        shuffle = self._shuffles.get(shuffle_id)
        if self._link is None or shuffle is None:
            return
        if shuffle.allocation is not None and (not shuffle.allocation.done() or _failed(shuffle.allocation)):
            return
        allocation = await self._allocation(self._link, shuffle)
        named = {worker.name for worker in allocation.workers} & set(workers)
        if named:
            await self._link.workers_lost(self._job_id, sorted(named))

    async def release(self) -> None:
        """Release all shuffles of a job that is over."""
        self._over = True
        self.close()
        if self._link is not None:
            await self._link.release_job(self._job_id)

    def close(self) -> None:
        """Cancel pending requests without releasing anything: another leader may continue the job."""
        for shuffle in self._shuffles.values():
            if shuffle.allocation is not None:
                shuffle.allocation.cancel()
        self._shuffles.clear()

    def _number(self) -> int:
        return (self._attempt % _ATTEMPTS) << ATTEMPT_SHIFT | self._count

    def _next_number(self) -> int:
        if self._count >= MAX_SHUFFLES_OF_ATTEMPT:
            raise NoShuffleService(f"job {self._job_id} has had {MAX_SHUFFLES_OF_ATTEMPT} shuffles")
        number = self._number()
        self._count += 1
        return number

    async def _release_before(self, link: ShuffleManagerLink, first: int) -> None:
        try:
            await link.release_before(self._job_id, first)
        except SluiceError as error:
            _LOG.info("earlier shuffles of job %s stay until the job ends: %s", self._job_id, error)

    async def _release(self, shuffle: _Shuffle) -> None:
        if shuffle.allocation is not None:
            shuffle.allocation.cancel()
        if self._link is None:
            return
        try:
            await self._link.release_shuffle(self._job_id, shuffle.number)
        except SluiceError as error:
            _LOG.info("shuffle %d of job %s stays until the job ends: %s", shuffle.number, self._job_id, error)


def _failed(allocation: asyncio.Task[ShuffleAllocation] | None) -> bool:
    if allocation is None or not allocation.done():
        return False
    return allocation.cancelled() or allocation.exception() is not None
