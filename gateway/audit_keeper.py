"""What runs beside the auth service for the audit log: checkpoints, flushing, compressing, and the access log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

from gateway.access_tail import AccessTail, access_file
from gateway.audit_log import AuditLog
from pki.errors import SluiceError
from pki.home import Home
from pki.tasks import end_tasks

_LOG = logging.getLogger(__name__)

MAINTENANCE_SECONDS = 1.0
ACCESS_POLL_SECONDS = 0.5


@contextlib.asynccontextmanager
async def keeping(home: Home, log: AuditLog) -> AsyncIterator[None]:
    """Within it, ``log`` is looked after and has the access log of ``home`` taken over into it."""
    tail = AccessTail(access_file(home), log)
    tasks = [asyncio.create_task(_maintain(log)), asyncio.create_task(_follow(tail))]
    try:
        yield
    finally:
        await end_tasks(*tasks)


async def _maintain(log: AuditLog) -> None:
    while True:
        await asyncio.sleep(MAINTENANCE_SECONDS)
        try:
            await asyncio.to_thread(log.maintain)
        except (SluiceError, OSError) as error:
            _LOG.error("the audit log is not signed and flushed: %s", error)


async def _follow(tail: AccessTail) -> None:
    while True:
        try:
            await asyncio.to_thread(tail.step)
            if not tail.behind:
                await asyncio.to_thread(tail.drop_read)
        except SluiceError as error:
            _LOG.error("the access log is not taken over into the audit log: %s", error)
            tail.behind = False
        if not tail.behind:
            await asyncio.sleep(ACCESS_POLL_SECONDS)
