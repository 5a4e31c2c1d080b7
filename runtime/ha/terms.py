"""The life of a process that may lead: it stands by, leads, loses the lead, and stands by again."""

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
"""How long a process that could not begin to lead leaves it to others."""

Ready = Callable[[], None]
"""To be called once a leader takes work."""

Lead = Callable[[AsyncExitStack, Leadership, Ready], Awaitable[None]]
"""Enters what a leader runs into the stack, which is left when the term is over, and says when it takes work."""


@asynccontextmanager
async def terms(
    election: LeaderElection, lead: Lead, *, what: str, pause: float = FAILED_SECONDS
) -> AsyncIterator[asyncio.Task[NoReturn]]:
    """One term after the other; entered once the process leads, or stands by for another one that does.

    Args:
        election: decides who leads.
        lead: begins a term.
        pause: seconds for which a term that could not begin is left to others.

    Yields:
        A task that ends only with what keeps this process from leading. That the leadership is lost does not, whenever
        that happens, nor that the storage is away when it has led or stood by before: then it stands by.
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
            if not ready.is_set():  # nobody relies on this process yet, and whoever starts it wants to know
                raise
            why, pause = f"the leadership is given back: {error}", failed_pause
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
