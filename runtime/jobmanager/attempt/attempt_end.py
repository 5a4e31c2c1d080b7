"""Ends an attempt: collects its last records, gives its slots back, and reports to the Dispatcher."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from sluice.core import SluiceError, end_tasks, in_time
from sluice.runtime.gateways import TaskExecutorGateway
from sluice.runtime.jobmanager.attempt.services import Driver, JobServices
from sluice.runtime.jobmanager.attempt.shuffle_relay import ShuffleRelay
from sluice.runtime.jobmanager.views import JobRecord
from sluice.runtime.messages import Evidence, ExecutorExcess
from sluice.runtime.node import from_log, merge
from sluice.runtime.rpc import MailboxFull, RpcTimeout

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

COLLECT_TIMEOUT_SECONDS = 5.0
"""How long to wait for TaskManagers to give evidence of an ended job, or to release it."""
RETRY_SECONDS = 1.0
"""Pause before a call to a busy Dispatcher or ResourceManager is repeated."""


class AttemptEnd:
    """Collects the records of an attempt, gives its slots back, and reports its end to the Dispatcher.

    Args:
        taskmanagers: those that have offered slots, by name; the attempt adds to them.
        driver_ends_within: the seconds to wait for the driver to end by itself; 0: no wait.
    """

    def __init__(
        self,
        job_id: str,
        services: JobServices,
        *,
        taskmanagers: Mapping[str, TaskExecutorGateway],
        driver: Driver,
        driver_ends_within: Callable[[], float],
        shuffle: ShuffleRelay,
    ) -> None:
        self._job_id = job_id
        self._services = services
        self._taskmanagers = taskmanagers
        self._driver = driver
        self._driver_ends_within = driver_ends_within
        self._shuffle = shuffle

    async def collect_connections(self) -> Evidence:
        """Mutual TLS connections of the job's driver and executors, from the TaskManagers that answer in time."""
        answers = await self._ask_taskmanagers(lambda gateway: gateway.connections(self._job_id))
        return merge(from_log(self._services.connections, self._job_id), *answers)

    async def collect_records(self) -> tuple[Evidence, tuple[ExecutorExcess, ...], Evidence]:
        """The evidence and excesses from the TaskManagers that answer in time, and the evidence that was seen here."""
        asked = self._ask_taskmanagers(lambda gateway: gateway.excesses(self._job_id))
        evidence, answers = await asyncio.gather(self.collect_connections(), asked)
        seen = from_log(self._services.connections, self._job_id)
        return evidence, tuple(each for answer in answers for each in answer), seen

    async def schedule_next_attempt(self, record: JobRecord, delay: float) -> None:
        """Give slots back, then have the Dispatcher begin the next attempt after ``delay`` seconds."""
        await self._give_back()
        await self.retry_while_busy(lambda: self._services.dispatcher.job_restarting(record, delay))

    async def end_job(self, record: JobRecord) -> None:
        """Give slots back without waiting for a durable result: the storage may be unavailable for long."""
        telling = asyncio.ensure_future(self.retry_while_busy(lambda: self._services.dispatcher.job_ended(record)))
        try:
            await self._give_back()
            await telling
        finally:
            await end_tasks(telling)
        await self._shuffle.release()
        await self.retry_while_busy(lambda: self._services.dispatcher.job_released(self._job_id))

    async def _give_back(self) -> None:
        """Give slots back after the driver's process has ended; if that takes too long, it is killed with its slot."""
        if self._driver.running and (seconds := self._driver_ends_within()):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._driver.ended()
        await self._ask_taskmanagers(lambda gateway: gateway.release_job(self._job_id))
        try:
            await self.retry_while_busy(lambda: self._services.resource_manager.release_job(self._job_id))
        except SluiceError as error:
            _LOG.warning("job %s: its slots could not be given back: %s", self._job_id, error)

    async def retry_while_busy(self, tell: Callable[[], Awaitable[_T]]) -> _T:
        """Repeat ``tell`` while the other side is busy and this process leads; returns the answer."""
        while True:
            try:
                return await tell()
            except (MailboxFull, RpcTimeout) as error:
                _LOG.warning("job %s: repeating a call: %s", self._job_id, error)
            await asyncio.sleep(RETRY_SECONDS)
            self._services.check_leadership()

    async def _ask_taskmanagers(self, ask: Callable[[TaskExecutorGateway], Coroutine[Any, Any, _T]]) -> list[_T]:
        """The answers of the TaskManagers of this job that answer in time."""
        return await in_time(COLLECT_TIMEOUT_SECONDS, *(ask(gateway) for gateway in self._taskmanagers.values()))
