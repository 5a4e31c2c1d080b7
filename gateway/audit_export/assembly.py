"""Starts the configured exports of a home's audit log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from sluice.core import Home, end_tasks, repeat
from sluice.gateway.audit_export.cursor import CursorFile
from sluice.gateway.audit_export.exporter import POLL_SECONDS, Exporter
from sluice.gateway.audit_export.senders import create_sender
from sluice.gateway.audit_log import audit_directory
from sluice.gateway.config import AuditExportConfig


def cursor_path(home: Home, name: str) -> Path:
    """The file with the position of export ``name``. It is not beside the log, so a replaced log is detected."""
    return home.gateway / "audit-export" / f"{name}.json"


@contextlib.asynccontextmanager
async def exporting(home: Home, exports: tuple[AuditExportConfig, ...]) -> AsyncIterator[None]:
    """Export the audit log of ``home`` to each of ``exports`` while the context is open.

    Raises :class:`StoreError` for CA files that cannot be used. Later failures are retried.
    """
    directory = audit_directory(home)
    exporters = [
        Exporter(
            each.name, directory, CursorFile(cursor_path(home, each.name)), create_sender(each), requests=each.requests
        )
        for each in exports
    ]
    tasks = [
        asyncio.create_task(repeat(each.run, POLL_SECONDS, "the audit log is not exported"), name="audit-export")
        for each in exporters
    ]
    try:
        yield
    finally:
        await end_tasks(*tasks)
