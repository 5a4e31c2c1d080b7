"""Runs a process as a leader candidate: stand by, lead, lose leadership, stand by again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NoReturn

from sluice.core import end_tasks
from sluice.runtime.ha.errors import LeadershipLost, StorageUnavailable
from sluice.runtime.ha.leadership import LeaderElection, Leadership

_LOG = logging.getLogger(__name__)

FAILED_SECONDS = 5.0
"""Seconds that a process waits before it takes part in the election again after it failed to begin a term."""

Ready = Callable[[], None]
"""The callback for a leader that is ready to accept work."""

Lead = Callable[[AsyncExitStack, Leadership, Ready], Awaitable[None]]
"""Starts the leader's services and calls ``Ready`` when they accept work.

The services are entered into the stack, which is closed at the end of the term.
"""


@asynccontextmanager
async def run_terms(
    election: LeaderElection, lead: Lead, *, what: str, pause: float = FAILED_SECONDS
) -> AsyncIterator[asyncio.Task[NoReturn]]:
    """Take part in the election and run one term after another. Enters once this process leads or stands by.

    Args:
        election: decides who leads.
        lead: starts a term.
        what: the kind of process, for log messages.
        pause: seconds to wait before the next election when a term could not begin.

    Yields:
        A task that ends only with an error that keeps this process from leading. It does not end when leadership is
        lost, nor when the storage becomes unavailable after this process has led or stood by: the process then takes
        part in the election again.
    """
    ready = asyncio.Event()
    task = asyncio.create_task(_run(election, lead, ready, what, pause), name="terms")
    try:
        waiting = asyncio.create_task(ready.wait())
        try:
            await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await end_tasks(waiting)
        if task.done():
            await task
        yield task
    finally:
        await end_tasks(task)


async def _run(election: LeaderElection, lead: Lead, ready: asyncio.Event, what: str, failed_pause: float) -> NoReturn:
    def stand_by() -> None:
        if not ready.is_set():
            _LOG.info("standing by: another %s leads", what)
            ready.set()

    while True:
        leadership = await election.elect(stand_by)
        _LOG.info("leading, epoch %d", leadership.epoch)
        pause = 0.0
        try:
            why = await _term(leadership, lead, ready)
        except LeadershipLost as error:
            why = str(error)
        except StorageUnavailable as error:
            if not ready.is_set():  # the process is still starting: report the error to whoever starts it
                raise
            why, pause = f"this process resigned: {error}", failed_pause
        finally:
            await leadership.resign()
        _LOG.warning("not leading any more: %s", why)
        await asyncio.sleep(pause)


async def _term(leadership: Leadership, lead: Lead, ready: asyncio.Event) -> str:
    async with AsyncExitStack() as stack:
        lost = asyncio.create_task(leadership.lost())
        stack.push_async_callback(end_tasks, lost)
        await lead(stack, leadership, ready.set)
        return await lost
