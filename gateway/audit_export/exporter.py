"""Sends the audit log to one receiver in batches, until cancelled. Nothing else waits for it."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

from prometheus_client import Counter, Gauge

from sluice.core import REGISTRY, SluiceError, backoff_seconds
from sluice.gateway.audit_export.cursor import Cursor, CursorFile
from sluice.gateway.audit_export.reader import Batch, SignedRecords, signed_end
from sluice.gateway.audit_export.senders import Sender
from sluice.gateway.errors import AuditLogError

_LOG = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Pause between two checks for new signed records."""
FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 60.0

BEHIND = Gauge(
    "sluice_audit_export_behind_lines",
    "Signed lines of the audit log that the receiver does not have yet.",
    ["export"],
    registry=REGISTRY,
)
BEHIND_SINCE = Gauge(
    "sluice_audit_export_behind_since_seconds",
    "Time of the first of these lines, in seconds since the epoch; 0 if there is none.",
    ["export"],
    registry=REGISTRY,
)
SENT = Counter(
    "sluice_audit_export_sent_total", "Messages that the receiver has confirmed.", ["export"], registry=REGISTRY
)
FAILURES = Counter(
    "sluice_audit_export_failures_total",
    "Attempts that failed: the receiver did not confirm, or the log or the position could not be used.",
    ["export"],
    registry=REGISTRY,
)
REJECTED = Counter(
    "sluice_audit_export_rejected_total",
    "Messages that a collector rejected permanently; they are not sent again.",
    ["export"],
    registry=REGISTRY,
)
LOG_REFUSED = Gauge(
    "sluice_audit_export_log_refused",
    "1 while the audit log is not sent because it does not continue what was sent: replaced, truncated or damaged.",
    ["export"],
    registry=REGISTRY,
)
_GAUGES = (BEHIND, BEHIND_SINCE, LOG_REFUSED)

_T = TypeVar("_T")


class Exporter:
    """Sends the signed records of the log in ``directory`` with ``sender``, and stores the position in ``file``."""

    def __init__(
        self,
        name: str,
        directory: Path,
        file: CursorFile,
        sender: Sender,
        *,
        requests: bool = True,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._name = name
        self._directory = directory
        self._file = file
        self._sender = sender
        self._requests = requests
        self._sleep = sleep
        self._chance = chance
        self._records: SignedRecords | None = None
        self._batch: Batch | None = None
        self._cursor: Cursor | None = None
        self._saved: Cursor | None = None

    async def run(self) -> NoReturn:
        """Run until cancelled. If another process of this home already exports, wait until it ends."""
        while True:
            with self._file.lock() as acquired:
                if acquired:
                    await self._run()
            await self._sleep(POLL_SECONDS)

    async def _run(self) -> NoReturn:
        failures = 0
        try:
            for gauge in _GAUGES:
                gauge.labels(self._name).set(0)
            while True:
                try:
                    moved = await self.step()
                except (SluiceError, OSError) as error:
                    failures += 1
                    FAILURES.labels(self._name).inc()
                    pause = backoff_seconds(failures, FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS, self._chance)
                    _LOG.error("audit export %s: %s; retrying in %.0f s", self._name, error, pause)
                    await self._sleep(pause)
                else:
                    if failures:
                        _LOG.info("audit export %s works again", self._name)
                    failures = 0
                    if not moved:
                        await self._sleep(POLL_SECONDS)
        finally:
            # Another process may take over. This process's metrics and cached position would then be stale.
            for gauge in _GAUGES:
                gauge.remove(self._name)
            self._close()
            self._batch = self._cursor = self._saved = None

    async def step(self) -> bool:
        """Send one batch; returns whether there was one.

        Raises:
            SluiceError, OSError: the batch was not delivered, or the position was not stored. The next step retries.
        """
        try:
            # If the position cannot be stored, neither resend what was delivered nor send anything after it.
            await self._save()
            assert self._cursor is not None  # noqa: S101  read by _save
            if self._batch is None:
                self._batch = await self._read(self._cursor)
            if not self._batch.messages:
                self._batch = None
                return False
            rejected = await self._sender.send(self._batch.messages)
            SENT.labels(self._name).inc(len(self._batch.messages) - rejected)
            if rejected:
                REJECTED.labels(self._name).inc(rejected)
                _LOG.error("audit export %s: the collector permanently rejected %d messages", self._name, rejected)
            self._cursor, self._batch = self._batch.end, None
            await self._save()
            return True
        finally:
            await self._observe()

    async def _save(self) -> None:
        if self._cursor is None:
            self._cursor = self._saved = await _run_in_thread(self._file.read)
        elif self._saved != self._cursor:
            await _run_in_thread(partial(self._file.write, self._cursor))
            self._saved = self._cursor

    async def _read(self, cursor: Cursor) -> Batch:
        if self._records is None:
            self._records = SignedRecords(self._directory, cursor, requests=self._requests)
        try:
            batch = await _run_in_thread(self._records.read)
        except Exception as error:
            if isinstance(error, AuditLogError):
                LOG_REFUSED.labels(self._name).set(1)
            self._close()
            raise
        LOG_REFUSED.labels(self._name).set(0)
        return batch

    def _close(self) -> None:
        if self._records is not None:
            self._records.close()
            self._records = None

    async def _observe(self) -> None:
        """Update the metrics that say how far the receiver is behind."""
        try:
            end = await _run_in_thread(partial(signed_end, self._directory))
        except (SluiceError, OSError):
            return  # reading fails with the same error, and reports it
        arrived = 0 if self._cursor is None else self._cursor.lines
        behind = max(0, (0 if end is None else end.sequence) - arrived)
        since = 0.0
        if behind and end is not None:
            first = end.time if self._batch is None else self._batch.messages[0].record.time
            since = dt.datetime.fromisoformat(first).timestamp()
        BEHIND.labels(self._name).set(behind)
        BEHIND_SINCE.labels(self._name).set(since)


async def _run_in_thread(act: Callable[[], _T]) -> _T:
    """Run ``act`` in a thread. Cancellation takes effect only after it has finished, so nothing is left half done."""
    running = asyncio.ensure_future(asyncio.to_thread(act))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise
