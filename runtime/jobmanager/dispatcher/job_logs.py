"""Reads logs of jobs from the TaskManagers on which their drivers and executors wrote them."""

from __future__ import annotations

import asyncio
import re

from sluice.runtime.jobmanager.errors import LogNotFound
from sluice.runtime.jobmanager.gateways import DriverLogRequest, ExecutorLogRequest, ResourceManagerInternalGateway
from sluice.runtime.jobmanager.views import JobDetail
from sluice.runtime.messages import DRIVER_LOGS, EventLogChunk, LogChunk

_EARLIER_LOG = re.compile(r"attempt-([1-9][0-9]{0,5})\.(driver\.[a-z]+)")
_EXECUTOR_LOG = re.compile(r"executor-([1-9][0-9]{0,8})\.(stdout|stderr)")


class JobLogs:
    """Reads logs through ``resource_manager``, which knows the TaskManagers."""

    def __init__(self, resource_manager: ResourceManagerInternalGateway) -> None:
        self._resource_manager = resource_manager

    async def names(self, detail: JobDetail) -> tuple[str, ...]:
        """The names of a job's logs."""
        executors = [each.id for each in detail.executors if each.state != "LAUNCHING"]
        earlier = [each.number for each in detail.attempts if each.number != detail.attempt]
        latest, *others = await asyncio.gather(
            self._driver_logs(detail, detail.attempt), *(self._driver_logs(detail, number) for number in earlier)
        )
        return (
            *latest,
            *(f"executor-{each}.{stream}" for each in executors for stream in ("stdout", "stderr")),
            *(f"attempt-{number}.{name}" for number, names in zip(earlier, others, strict=True) for name in names),
        )

    async def _driver_logs(self, detail: JobDetail, attempt: int) -> tuple[str, ...]:
        taskmanager = _driver_on(detail, attempt)
        return await self._resource_manager.driver_logs(taskmanager, detail.id, attempt) if taskmanager else ()

    async def read(self, detail: JobDetail, source: str, offset: int, limit: int) -> LogChunk:
        """A piece of one of :meth:`names`; raises ``LogNotFound``."""
        earlier = _EARLIER_LOG.fullmatch(source)
        attempt, name = (int(earlier[1]), earlier[2]) if earlier else (detail.attempt, source)
        if name in DRIVER_LOGS:
            taskmanager = _driver_on(detail, attempt)
            if not taskmanager:  # it waits for a slot, or never had one: there are no logs
                return LogChunk(data="", offset=offset, next_offset=offset, end=True)
            wanted = DriverLogRequest(
                taskmanager=taskmanager, job_id=detail.id, attempt=attempt, name=name, offset=offset, limit=limit
            )
            return await self._resource_manager.read_driver_log(wanted)
        match = _EXECUTOR_LOG.fullmatch(source)
        executor = next((each for each in detail.executors if match and each.id == int(match[1])), None)
        if match is None or executor is None:
            raise LogNotFound(f"job {detail.id} has no log {source[:80]!r}", "see the list of logs")
        request = ExecutorLogRequest(
            taskmanager=executor.taskmanager,
            job_id=detail.id,
            executor_id=executor.id,
            stream=match[2],
            offset=offset,
            limit=limit,
        )
        return await self._resource_manager.read_executor_log(request)

    async def read_events(self, detail: JobDetail, offset: int) -> EventLogChunk:
        """A piece of Spark's event log of the latest driver, once that has ended; raises ``LogNotFound``."""
        taskmanager = _driver_on(detail, detail.attempt)
        if not taskmanager:
            return EventLogChunk(data=b"", end=True)
        return await self._resource_manager.read_event_log(taskmanager, detail.id, detail.attempt, offset)


def _driver_on(detail: JobDetail, attempt: int) -> str:
    """The TaskManager that ran the driver of an attempt; empty when it never had a slot, or when that is unknown."""
    return next((each.taskmanager for each in detail.attempts if each.number == attempt), "")
