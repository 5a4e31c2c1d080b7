"""Rotates the proxy's access log: a large file is renamed, and the proxy opens a new one.

A renamed file is deleted once it is completely in the audit log (``AccessLogReader.drop_read``), which keeps the lines.
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
        """Reopen the log files by name. Raises :class:`SluiceError`."""
        ...


def make_access_log(path: Path) -> None:
    """Create the access log with mode 0600. The proxy would create it readable by everybody."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, SECRET_MODE))


class AccessRotation:
    """Rotates the access log of ``proxy`` at ``path``."""

    def __init__(self, path: Path, proxy: Reopening, *, max_bytes: int = MAX_ACCESS_BYTES) -> None:
        self._path = path
        self._proxy = proxy
        self._max_bytes = max_bytes
        self._renamed = False

    async def step(self) -> bool:
        """Rotate the log if it is large enough. Returns whether the proxy now writes a new file.

        Raises :class:`SluiceError` or :class:`OSError` if the proxy does not reopen its logs. It then still writes to
        the renamed file, and the next step asks it again.
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
    """Rotate the access log while the context is open."""
    rotation = AccessRotation(path, proxy)
    task = asyncio.create_task(repeat(rotation.step, LOOK_SECONDS, "cannot rotate the access log"))
    try:
        yield
    finally:
        await end_tasks(task)
