"""Spark's UI of jobs that have ended: TaskManagers show it, in a sandbox, from event logs in the history.

A hash of the job's id chooses the TaskManager, so that a new leader asks the same one without stored state.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection

from sluice.core import SluiceError
from sluice.runtime.ha import EntryDamaged, EntryMissing
from sluice.runtime.jobmanager.errors import UiNotFound, UiNotReady
from sluice.runtime.jobmanager.gateways import ResourceManagerInternalGateway
from sluice.runtime.jobmanager.history import EventLog, JobArchive
from sluice.runtime.messages import MAX_EVENT_LOG_CHUNK_BYTES, EndedUiState, EventLogPiece, UiPage, UiRequest

WAIT_SECONDS = 8.0
"""Seconds to wait for a page; after that the caller is told to ask again."""
ASK_AGAIN_SECONDS = 0.25
NOT_YET = UiPage(status=202)
_LOG = logging.getLogger(__name__)


class EndedJobUis:
    """Asks TaskManagers for pages, and gives them the event logs that they need.

    Args:
        monotonic: a monotonic clock, in seconds.
    """

    def __init__(
        self, archive: JobArchive, resource_manager: ResourceManagerInternalGateway, monotonic: Callable[[], float]
    ) -> None:
        self._archive = archive
        self._resource_manager = resource_manager
        self._monotonic = monotonic
        self._loading: dict[str, asyncio.Task[None]] = {}

    async def page(self, job_id: str, request: UiRequest) -> UiPage:
        """A page; :data:`NOT_YET` while the event log is read.

        Raises:
            JobNotFound: the job is not in the history.
            UiNotFound: its event log is not there, or cannot be read.
            UiNotReady: no TaskManager can show it now.
        """
        log = await self._archive.event_log(job_id)
        if not log.blocks:
            raise UiNotFound(f"job {job_id} has ended", "its event log was not kept, so there is no Spark UI of it")
        until = self._monotonic() + WAIT_SECONDS
        host = host_of(job_id, await self._resource_manager.ended_ui_hosts())
        while True:
            try:
                answer = await self._resource_manager.ended_ui_page(host, job_id, request)
            except SluiceError as error:
                raise UiNotReady(f"TaskManager {host} does not show the Spark UI now: {error}") from error
            if answer.state is EndedUiState.SHOWN and answer.page is not None:
                return answer.page
            if answer.state is EndedUiState.FAILED:
                raise UiNotFound(f"the Spark UI of job {job_id} cannot be shown: {answer.why}")
            if answer.state is EndedUiState.ABSENT:
                await self._load(job_id, host, log)
            if self._monotonic() >= until:
                return NOT_YET
            await asyncio.sleep(ASK_AGAIN_SECONDS)

    async def _load(self, job_id: str, host: str, log: EventLog) -> None:
        """Give the TaskManager the event log, once for all callers that wait for it."""
        task = self._loading.get(job_id)
        if task is None:
            task = self._loading[job_id] = asyncio.create_task(self._send(job_id, host, log))
            task.add_done_callback(lambda _: self._loading.pop(job_id, None))
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await asyncio.shield(task)
        except TimeoutError:
            return
        except (EntryDamaged, EntryMissing) as error:
            _LOG.error("the event log of job %s cannot be read: %s", job_id, error)
            raise UiNotFound(f"the event log of job {job_id} cannot be read any more", "restore it") from error
        except SluiceError as error:
            raise UiNotReady(f"the Spark UI of job {job_id} cannot be shown now: {error}", "try again later") from error

    async def _send(self, job_id: str, host: str, log: EventLog) -> None:
        sent = 0
        for number, entry in enumerate(log.blocks):
            block = await self._archive.read_events(entry)
            for start in range(0, len(block), MAX_EVENT_LOG_CHUNK_BYTES):
                data = block[start : start + MAX_EVENT_LOG_CHUNK_BYTES]
                last = number == len(log.blocks) - 1 and start + len(data) == len(block)
                piece = EventLogPiece(job_id=job_id, offset=sent, data=data, last=last)
                await self._resource_manager.load_ended_ui(host, piece)
                sent += len(data)


def host_of(job_id: str, hosts: Collection[str]) -> str:
    """The TaskManager that shows a job's UI: the same one while it is registered (rendezvous hashing).

    Raises:
        UiNotReady: there is none.
    """
    if not hosts:
        raise UiNotReady(
            "no TaskManager is there that could show the Spark UI of jobs that have ended",
            'start one with [isolation] level = "sandbox"',
        )
    return max(hosts, key=lambda name: hashlib.sha256(f"{job_id} {name}".encode()).digest())
