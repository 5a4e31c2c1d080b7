"""The endpoint of a TaskManager that shows the Spark UI of ended jobs, wherever they ran.

The leader has their event logs, but no sandbox to read them in. When a user requests a page, it sends the log in
pieces to a TaskManager, and requests pages from that TaskManager from then on. A UI stops when it has been idle for a
while, or when another UI needs its place.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sluice.core import SluiceError, clear_untrusted, end_tasks
from sluice.runtime.blob import check_job_id
from sluice.runtime.config import MAX_EVENT_LOG_BYTES
from sluice.runtime.gateways import ENDED_UI, EndedUiGateway
from sluice.runtime.messages import EndedUiAnswer, EndedUiState, EventLogPiece, UiPage, UiRequest
from sluice.runtime.node import kill_processes_below
from sluice.runtime.rpc import RpcEndpoint
from sluice.runtime.taskmanager.ended_uis.ended_ui import UiPlaces
from sluice.runtime.taskmanager.errors import EndedUiRefused

MAX_UIS = 2
"""Maximum number of UIs of one TaskManager at a time. Each is a JVM that uses memory beside the slots."""
IDLE_SECONDS = 600.0
"""How long after its last page a UI is stopped."""
STALLED_SECONDS = 60.0
"""How long after a failure, or after the last piece of an incomplete event log, loading may be tried again."""
LOOK_SECONDS = 15.0
ENDED_UI_DIRECTORY = "ended-ui"
"""Name below a TaskManager's directory."""
_BUSY = 503
_LOG = logging.getLogger(__name__)


class Ui(Protocol):
    """One UI; see :class:`~sluice.runtime.taskmanager.ended_uis.ended_ui.EndedUi`."""

    places: UiPlaces
    why: str
    shown: bool

    def start(self) -> None:
        """Start to read the event log, which is complete."""
        ...

    async def ask(self, request: UiRequest) -> UiPage:
        """Return a page."""
        ...

    async def end(self) -> None:
        """Stop it and remove its files."""
        ...


@dataclass
class _Entry:
    """A UI that receives its event log, reads it or shows it. ``ui.why`` is set if it failed."""

    ui: Ui
    used_at: float
    received: int = 0
    started: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def state(self) -> EndedUiState:
        """The current state of the UI."""
        if self.ui.why:
            return EndedUiState.FAILED
        return EndedUiState.SHOWN if self.ui.shown else EndedUiState.LOADING


class EndedUis(RpcEndpoint):
    """At most :data:`MAX_UIS` UIs of ended jobs.


    Args:
        directory: contains their files.
        make: creates a UI without an event log, for a job id and its directories.
        monotonic: monotonic clock, in seconds.
    """

    def __init__(
        self,
        directory: Path,
        make: Callable[[str, UiPlaces], Ui],
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(ENDED_UI, EndedUiGateway)
        self._directory = directory
        self._make = make
        self._monotonic = monotonic
        self._entries: dict[str, _Entry] = {}
        self._opening = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None

    async def on_start(self) -> None:
        """Kill processes and remove files that an earlier process of this name left; raises ``OrphansRemain``."""
        await asyncio.to_thread(_clean_up, self._directory)
        self._looking = asyncio.create_task(self._look(), name="idle Spark UIs")

    async def on_stop(self) -> None:
        """Stop all UIs."""
        if self._looking is not None:
            await end_tasks(self._looking)
        for job_id in tuple(self._entries):
            await self._end(job_id)

    async def page(self, job_id: str, request: UiRequest) -> EndedUiAnswer:
        """A page, or the reason why there is none."""
        check_job_id(job_id)
        return self.deferred(self._page(job_id, request))

    async def _page(self, job_id: str, request: UiRequest) -> EndedUiAnswer:
        entry = self._entries.get(job_id)
        if entry is None:
            return EndedUiAnswer(state=EndedUiState.ABSENT)
        if entry.started and not entry.ui.why:
            entry.used_at = self._monotonic()
        if entry.state is not EndedUiState.SHOWN:
            return EndedUiAnswer(state=entry.state, why=entry.ui.why)
        page = await entry.ui.ask(request)
        if page.status == _BUSY:  # the first pages are slow: they load many classes
            return EndedUiAnswer(state=EndedUiState.LOADING)
        return EndedUiAnswer(state=EndedUiState.SHOWN, page=page)

    async def load(self, piece: EventLogPiece) -> None:
        """Receive a piece of an event log. The first piece creates the UI, the last one starts it."""
        check_job_id(piece.job_id)
        return self.deferred(self._load(piece))

    async def _load(self, piece: EventLogPiece) -> None:
        if piece.offset == 0:
            async with self._opening:
                entry = self._entries[piece.job_id] = await self._open(piece.job_id)
        else:
            found = self._entries.get(piece.job_id)
            if found is None:
                raise EndedUiRefused(f"the first piece of the event log of job {piece.job_id} is missing")
            entry = found
        async with entry.lock:
            if entry.started or piece.offset != entry.received:
                raise EndedUiRefused(
                    f"the event log of job {piece.job_id} is being received already", "ask again in a minute"
                )
            if piece.offset + len(piece.data) > MAX_EVENT_LOG_BYTES:
                raise EndedUiRefused(
                    f"the event log has more than {MAX_EVENT_LOG_BYTES} bytes", "it is too large to show"
                )
            try:
                await asyncio.to_thread(_append, entry.ui.places.event_log, piece.data)
            except OSError as error:
                raise EndedUiRefused(f"the event log cannot be stored here: {error.strerror}") from error
            entry.received += len(piece.data)
            entry.used_at = self._monotonic()
            if piece.last:
                entry.started = True
                entry.ui.start()

    async def _open(self, job_id: str) -> _Entry:
        """Make room for one more UI; raises ``EndedUiRefused`` while all others are loading."""
        if job_id in self._entries:
            if self._entries[job_id].state is not EndedUiState.FAILED and not self._stalled(self._entries[job_id]):
                raise EndedUiRefused(
                    f"the event log of job {job_id} is being received already", "ask again in a minute"
                )
            await self._end(job_id)
        while len(self._entries) >= MAX_UIS:
            ready = [each for each in self._entries.items() if each[1].state is not EndedUiState.LOADING]
            if not ready:
                raise EndedUiRefused(
                    f"the Spark UIs of {MAX_UIS} other jobs are being prepared here", "ask again in a minute"
                )
            await self._end(min(ready, key=lambda each: each[1].used_at)[0])
        places = await asyncio.to_thread(UiPlaces.make, self._directory / job_id)
        return _Entry(self._make(job_id, places), self._monotonic())

    def _stalled(self, entry: _Entry) -> bool:
        waits = bool(entry.ui.why) or not entry.started
        return waits and self._monotonic() - entry.used_at > STALLED_SECONDS

    async def trim(self) -> None:
        """Stop the UIs that are idle or stalled."""
        async with self._opening:
            for job_id, entry in tuple(self._entries.items()):
                if self._stalled(entry) or self._monotonic() - entry.used_at > IDLE_SECONDS:
                    await self._end(job_id)

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.trim()

    async def _end(self, job_id: str) -> None:
        entry = self._entries.pop(job_id)
        ending: Awaitable[None] = asyncio.ensure_future(entry.ui.end())
        try:
            await asyncio.shield(ending)
        except SluiceError as error:
            _LOG.error("the Spark UI of job %s was not removed completely: %s", job_id, error)


def _clean_up(directory: Path) -> None:
    if directory.is_dir():
        kill_processes_below(directory)
        clear_untrusted(directory, keep=())


def _append(path: Path, data: bytes) -> None:
    """Append to the file. No process of the job runs here yet, so nothing can have replaced the path."""
    with path.open("ab") as file:
        file.write(data)
