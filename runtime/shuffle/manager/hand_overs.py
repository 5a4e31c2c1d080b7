"""Moves the data of drained workers to other workers, and durably records the successors.

The manager has no complete list of the shuffles of jobs that began under an earlier manager. It asks the workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from sluice.core import SluiceError
from sluice.runtime.ha import HaError
from sluice.runtime.rpc import RemotePeer
from sluice.runtime.shuffle.control_plane import HandOver, ShuffleWorkerGateway
from sluice.runtime.shuffle.manager.job_store import ShuffleJobStore
from sluice.runtime.shuffle.manager.jobs import Job, JobTable
from sluice.runtime.shuffle.manager.successor_choice import KeptShuffle, shuffles_on, successor
from sluice.runtime.shuffle.manager.workers import Worker, WorkerTable

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerLink:
    """The connection of a registered worker."""

    peer: RemotePeer
    gateway: ShuffleWorkerGateway


class HandOvers:
    """The hand-overs of one ShuffleManager, used by its mailbox and by tasks beside it.

    Args:
        jobs, workers, links: the manager's own tables, which change.
        store: the durable records.
        allow: tells a worker of a job; returns whether the worker accepted it.
    """

    def __init__(
        self,
        jobs: JobTable,
        workers: WorkerTable,
        links: Mapping[str, WorkerLink],
        store: ShuffleJobStore,
        allow: Callable[[str, Job], Awaitable[bool]],
    ) -> None:
        self._jobs = jobs
        self._workers = workers
        self._links = links
        self._store = store
        self._allow = allow
        self._under_way: set[str] = set()
        self._recording = asyncio.Lock()

    def due(self, worker: Worker) -> bool:
        """Whether a worker is drained and connected, and :meth:`advance` is not running for it."""
        return worker.drained and worker.name in self._links and worker.name not in self._under_way

    async def advance(self, worker: Worker) -> None:
        """Continue to hand over the data of a drained worker. Readers are sent to the successor when it has all of it.

        The manager repeats this at each check of the workers, because maps that were open at the time of the drain are
        committed later.
        """
        self._under_way.add(worker.name)
        try:
            left = await self._find_older_shuffles(worker)
            for kept in shuffles_on(worker.name, self._jobs.all):
                left += await self._hand_over_shuffle(worker.name, kept)
            worker.handed_over = left == 0
        finally:
            self._under_way.discard(worker.name)

    async def _find_older_shuffles(self, worker: Worker) -> int:
        """Ask a worker which shuffles of recovered jobs it keeps; returns for how many jobs it did not answer.

        A worker that has not sent a report yet counts as one job.
        """
        link, unanswered = self._links.get(worker.name), 0 if worker.reported else 1
        for kept in worker.report.jobs if link is not None else ():
            job = self._jobs.get(kept.job_id)
            if link is None or job is None or not job.recovered or not kept.bytes:
                continue
            numbers = await _kept_shuffles(link, job)
            unanswered += numbers is None
            if self._jobs.get(kept.job_id) is job:
                for number in numbers or ():
                    self._jobs.add_reported(job, number, worker.name)
        return unanswered

    async def _hand_over_shuffle(self, name: str, kept: KeptShuffle) -> int:
        """Hand over one shuffle; returns how many maps are left, or 1 if that is unknown."""
        to = successor(name, kept.shuffle, self._workers.candidates(kept.job.job_id), self._jobs.assigned)
        source, target = self._links.get(name), self._links.get(to)
        if source is None or target is None:
            return 1
        if kept.job.job_id not in self._workers.get(to).allowed and not await self._allow(to, kept.job):
            return 1
        try:
            await target.gateway.expect(kept.job.job_id, name)
            order = HandOver(job_id=kept.job.job_id, shuffle_number=kept.number, to=self._workers.address(to))
            left = await source.gateway.hand_over(order)
        except SluiceError as error:
            _LOG.warning("shuffle %d of job %s stays with %s: %s", kept.number, kept.job.job_id, name, error)
            return 1
        if left == 0 and self._workers.get(name).drained and kept.shuffle.successors.get(name) != to:
            try:
                await self.record(kept.job, kept.number, {name: to})
            except HaError as error:  # the worker must not be stopped: the next manager would not find its data
                _LOG.warning("the hand-over to %s from %s is not recorded yet: %s", to, name, error)
                return 1
            _LOG.info("shuffle %d of job %s moved from %s to %s", kept.number, kept.job.job_id, name, to)
        return left

    async def kept_before(self, job: Job, number: int) -> list[int]:
        """Return the shuffles of a job with lower numbers than ``number`` that workers report to keep."""
        links = tuple(self._links.values())
        kept = await asyncio.gather(*(_kept_shuffles(link, job) for link in links))
        return sorted({each for numbers in kept for each in numbers or () if each < number})

    async def record(self, job: Job, number: int, successors: Mapping[str, str] = MappingProxyType({})) -> None:
        """Store the successors of a shuffle together with the new ``successors``, which take effect when it is stored.

        Raises:
            HaError: the record could not be stored.
        """
        async with self._recording:
            shuffle = job.shuffles.get(number)
            if self._jobs.get(job.job_id) is not job:
                return  # :meth:`forget` removes the records of the job
            if shuffle is None:
                await self._store.forget(job.job_id, number)
                return
            whole = {**shuffle.successors, **successors}
            await self._store.note(job.job_id, number, replace(shuffle, successors=whole))
            shuffle.successors.update(successors)

    async def forget(self, job_id: str) -> None:
        """Remove the durable records of a job that has ended; raises :class:`HaError`."""
        async with self._recording:
            await self._store.remove(job_id)


async def _kept_shuffles(link: WorkerLink, job: Job) -> tuple[int, ...] | None:
    """Return the shuffles of a job that a worker has data of; None if it does not answer."""
    try:
        return await link.gateway.kept_shuffles(job.job_id)
    except SluiceError as error:
        _LOG.info("%s does not report what it keeps of job %s: %s", link.peer.identity, job.job_id, error)
        return None
