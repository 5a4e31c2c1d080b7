"""The life of a process that may lead: it stands by, leads, loses the lead, and stands by again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NoReturn

from pki.tasks import end_tasks
from runtime.ha.leadership import LeaderElection, Leadership

_LOG = logging.getLogger(__name__)

Ready = Callable[[], None]
"""To be called once a leader takes work."""

Lead = Callable[[AsyncExitStack, Leadership, Ready], Awaitable[None]]
"""Enters what a leader runs into the stack, which is left when the term is over, and says when it takes work."""


@asynccontextmanager
async def terms(election: LeaderElection, lead: Lead, *, what: str) -> AsyncIterator[asyncio.Task[NoReturn]]:
    """One term after the other; entered once the process leads, or stands by for another one that does.

    Args:
        election: decides who leads.
        lead: begins a term.
        what: the kind of process, for the log.

    Yields:
        A task that ends only with what keeps this process from leading.
    """
    ready = asyncio.Event()
    task = asyncio.create_task(_run(election, lead, ready, what), name="terms")
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


async def _run(election: LeaderElection, lead: Lead, ready: asyncio.Event, what: str) -> NoReturn:
    def stand_by() -> None:
        if not ready.is_set():
            _LOG.info("standing by: another %s leads", what)
            ready.set()

    while True:
        leadership = await election.elect(stand_by)
        _LOG.info("leading, epoch %d", leadership.epoch)
        try:
            why = await _term(leadership, lead, ready)
        finally:
            await leadership.resign()
        _LOG.warning("not leading any more: %s", why)


async def _term(leadership: Leadership, lead: Lead, ready: asyncio.Event) -> str:
    async with AsyncExitStack() as stack:
        lost = asyncio.create_task(leadership.lost())
        stack.push_async_callback(end_tasks, lost)
        await lead(stack, leadership, ready.set)
        return await lost
