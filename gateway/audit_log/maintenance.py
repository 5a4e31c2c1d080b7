"""Background tasks of the audit log: checkpoints, flushing, compression, and reading the access log."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator

from sluice.core import Home, end_tasks, repeat
from sluice.gateway.audit_log.access_log_reader import AccessLogReader, access_file
from sluice.gateway.audit_log.log import AuditLog

_UNSIGNED = "cannot sign and flush the audit log"
_NOT_COPIED = "cannot copy the access log into the audit log"
MAINTENANCE_SECONDS = 1.0
ACCESS_POLL_SECONDS = 0.5


@contextlib.asynccontextmanager
async def maintaining(home: Home, log: AuditLog) -> AsyncIterator[None]:
    """Maintain ``log`` and copy the access log of ``home`` into it while the context is open."""
    tail = AccessLogReader(access_file(home), log)
    tasks = [
        asyncio.create_task(repeat(functools.partial(asyncio.to_thread, log.maintain), MAINTENANCE_SECONDS, _UNSIGNED)),
        asyncio.create_task(repeat(functools.partial(_copy_access_log, tail), ACCESS_POLL_SECONDS, _NOT_COPIED)),
    ]
    try:
        yield
    finally:
        await end_tasks(*tasks)


async def _copy_access_log(tail: AccessLogReader) -> None:
    """Copy until nothing is left, then delete the rotated files that were copied."""
    await asyncio.to_thread(tail.step)
    while tail.behind:
        await asyncio.to_thread(tail.step)
    await asyncio.to_thread(tail.drop_read)
