"""The endpoint of a TaskManager that shows Spark's UI of jobs that have ended, wherever they ran.

The leader has their event logs, and no sandbox to read them in. It sends one in pieces to a TaskManager when
somebody asks for a page, and asks that TaskManager from then on. A UI ends when nobody has asked for a while, or
when another one needs its place.
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
from sluice.runtime.node import kill_below
from sluice.runtime.rpc import RpcEndpoint
from sluice.runtime.taskmanager.ended_uis.ended_ui import UiPlaces
from sluice.runtime.taskmanager.errors import EndedUiRefused

MAX_UIS = 2
"""Shown at a time by one TaskManager: each is a JVM, beside the slots."""
IDLE_SECONDS = 600.0
"""After the last page."""
STALLED_SECONDS = 60.0
"""After the last piece of an event log whose end has not come, and after a failure: then it may be tried again."""
LOOK_SECONDS = 15.0
ENDED_UI_DIRECTORY = "ended-ui"
"""Below a TaskManager's directory."""
_BUSY = 503
_LOG = logging.getLogger(__name__)


class Ui(Protocol):
    """One UI; :class:`~sluice.runtime.taskmanager.ended_uis.ended_ui.EndedUi`."""

    places: UiPlaces
    why: str
    shown: bool

    def start(self) -> None:
        """Begin to read the event log, which is whole."""
        ...

    async def ask(self, request: UiRequest) -> UiPage:
        """A page."""
        ...

    async def end(self) -> None:
        """End it, and remove its files."""
        ...


@dataclass
class _Entry:
    """A UI that is loaded, read or shown; ``ui.why`` is set when it has failed."""

    ui: Ui
    used_at: float
    received: int = 0
    started: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def state(self) -> EndedUiState:
        """What it is now."""
        if self.ui.why:
            return EndedUiState.FAILED
        return EndedUiState.SHOWN if self.ui.shown else EndedUiState.LOADING


class EndedUis(RpcEndpoint):
    """At most :data:`MAX_UIS` UIs of jobs that have ended.

    Args:
        directory: below which their files are.
        make: a UI that has no event log yet, by job and places.
        monotonic: seconds of a clock that only goes forward.
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
        """End and remove what an earlier process of this name left behind; raises ``OrphansRemain``."""
        await asyncio.to_thread(_clean_up, self._directory)
        self._looking = asyncio.create_task(self._look(), name="idle Spark UIs")

    async def on_stop(self) -> None:
        """End all."""
        if self._looking is not None:
            await end_tasks(self._looking)
        for job_id in tuple(self._entries):
            await self._end(job_id)

    async def page(self, job_id: str, request: UiRequest) -> EndedUiAnswer:
        """A page, or why there is none."""
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
        if page.status == _BUSY:  # the first pages load many classes
            return EndedUiAnswer(state=EndedUiState.LOADING)
        return EndedUiAnswer(state=EndedUiState.SHOWN, page=page)

    async def load(self, piece: EventLogPiece) -> None:
        """Take a piece of an event log; the first one opens a place, the last one starts the UI."""
        check_job_id(piece.job_id)
        return self.deferred(self._load(piece))

    async def _load(self, piece: EventLogPiece) -> None:
        if piece.offset == 0:
            async with self._opening:
                entry = self._entries[piece.job_id] = await self._open(piece.job_id)
        else:
            found = self._entries.get(piece.job_id)
            if found is None:
                raise EndedUiRefused(f"the event log of job {piece.job_id} does not begin with its beginning")
            entry = found
        async with entry.lock:
            if entry.started or piece.offset != entry.received:
                raise EndedUiRefused(f"the event log of job {piece.job_id} comes twice", "ask again in a minute")
            if piece.offset + len(piece.data) > MAX_EVENT_LOG_BYTES:
                raise EndedUiRefused(f"an event log of more than {MAX_EVENT_LOG_BYTES} bytes", "it is not shown")
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
        """A place for another one; raises ``EndedUiRefused`` while all are being read."""
        if job_id in self._entries:
            if self._entries[job_id].state is not EndedUiState.FAILED and not self._stalled(self._entries[job_id]):
                raise EndedUiRefused(f"the event log of job {job_id} comes twice", "ask again in a minute")
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
        """End those that nobody has asked for."""
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
            _LOG.error("something of the Spark UI of job %s remains: %s", job_id, error)


def _clean_up(directory: Path) -> None:
    if directory.is_dir():
        kill_below(directory)
        clear_untrusted(directory, keep=())


def _append(path: Path, data: bytes) -> None:
    """Nothing of the job runs here yet, so the path is what it was made as."""
    with path.open("ab") as file:
        file.write(data)
