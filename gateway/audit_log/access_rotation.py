"""Keeps the proxy's access log small: a file that is large enough is renamed, and the proxy begins another.

What was renamed is deleted once it is in the audit log to its end (``AccessLogReader.drop_read``):
the lines are kept there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Protocol

from sluice.core import SECRET_MODE, end_tasks, repeat

MAX_ACCESS_BYTES = 64 << 20
LOOK_SECONDS = 2.0


class Reopening(Protocol):
    """A proxy that can reopen its log files."""

    async def reopen_logs(self) -> None:
        """Write to the files that have the logs' names now; raises :class:`SluiceError`."""
        ...


def make_access_log(path: Path) -> None:
    """The proxy would create it readable by everybody."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, SECRET_MODE))


class AccessRotation:
    """Rotates the log at ``path`` of ``proxy``."""

    def __init__(self, path: Path, proxy: Reopening, *, max_bytes: int = MAX_ACCESS_BYTES) -> None:
        self._path = path
        self._proxy = proxy
        self._max_bytes = max_bytes
        self._renamed = False

    async def step(self) -> bool:
        """Look once; returns whether the proxy writes another file now.

        Raises :class:`SluiceError` or :class:`OSError` when it does not: it goes on with the renamed one, and is asked
        again the next time.
        """
        if not self._renamed:
            with contextlib.suppress(FileNotFoundError):
                if self._path.stat().st_size >= self._max_bytes:
                    self._path.rename(self._path.with_name(f"{self._path.name}.{time.time_ns()}"))
                    self._renamed = True
        if not self._renamed:
            return False
        make_access_log(self._path)
        await self._proxy.reopen_logs()
        self._renamed = False
        return True


@contextlib.asynccontextmanager
async def rotating(path: Path, proxy: Reopening) -> AsyncIterator[None]:
    """Within it, the access log is rotated."""
    rotation = AccessRotation(path, proxy)
    task = asyncio.create_task(repeat(rotation.step, LOOK_SECONDS, "the access log is not rotated"))
    try:
        yield
    finally:
        await end_tasks(task)
