"""The audit log as the auth service writes it: in a thread, so that a lock or a slow disk holds up no other answer.

Whoever waits for a record waits for its own: :meth:`AuditWriter.append` returns when the record is in the kernel, or
raises, and then the request is refused. Records that come in while the thread writes go into the log together, in the
order in which they came. A record stands for a decision; whether its answer was still wanted when it had been written,
Envoy's access log says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from sluice.gateway.audit_log.chain import AuditRecord
from sluice.gateway.audit_log.log import MAX_BATCH_RECORDS, AuditLog, RecordTooLarge, SignedRecord
from sluice.gateway.errors import AuditLogError

MAX_WAITING_RECORDS = 4096
"""Records that wait to be written; beyond that requests are refused at once."""

_T = TypeVar("_T")


class AuditWriter:
    """Writes to one :class:`~sluice.gateway.audit_log.log.AuditLog` for the tasks of an event loop."""

    def __init__(self, log: AuditLog, *, limit: int = MAX_WAITING_RECORDS) -> None:
        self.log = log
        self._limit = limit
        self._waiting: list[tuple[AuditRecord, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="audit-log")

    async def append(self, record: AuditRecord) -> None:
        """Append a record; it is in the log on return. Raises :class:`AuditLogError`, also for too many waiting."""
        if len(self._waiting) >= self._limit:
            raise AuditLogError(
                f"{len(self._waiting)} audit records wait to be written", "is the disk slow, or the log locked?"
            )
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((record, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await written

    async def append_all(self, records: Sequence[AuditRecord]) -> None:
        """Append records that no request waits for; they are in the log on return. Raises :class:`AuditLogError`."""
        for begin in range(0, len(records), MAX_BATCH_RECORDS):
            batch = records[begin : begin + MAX_BATCH_RECORDS]
            await self._beside(partial(self.log.append_all, batch))

    async def event(self, kind: str, principal: str, detail: Mapping[str, object] | str = "") -> SignedRecord:
        """Record an administrative act, signed at once. Raises :class:`AuditLogError`."""
        return await self._beside(lambda: self.log.event(kind, principal, detail))

    async def close(self) -> None:
        """Write what waits, and end the thread; the log stays open."""
        if self._writing is not None:
            await self._writing
        self._thread.shutdown(wait=False)

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MAX_BATCH_RECORDS], self._waiting[MAX_BATCH_RECORDS:]
                try:
                    await self._write_batch(batch)
                except RecordTooLarge:
                    # One that can never be written takes nobody else's with it.
                    for each in batch:
                        await self._write_one(each)
        finally:
            self._writing = None

    async def _write_one(self, entry: tuple[AuditRecord, asyncio.Future[None]]) -> None:
        try:
            await self._write_batch([entry])
        except RecordTooLarge as error:
            _settle(entry[1], error)

    async def _write_batch(self, batch: list[tuple[AuditRecord, asyncio.Future[None]]]) -> None:
        problem: Exception | None = None
        try:
            await self._beside(lambda: self.log.append_all([record for record, _ in batch]))
        except RecordTooLarge:
            raise
        except Exception as error:  # noqa: BLE001  whatever it was: nobody who waits is left waiting
            problem = error
        for _, written in batch:
            _settle(written, problem)

    async def _beside(self, act: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, act)


def _settle(written: asyncio.Future[None], problem: Exception | None) -> None:
    if written.done():  # whoever waited has gone
        return
    if problem is None:
        written.set_result(None)
        return
    told = problem if isinstance(problem, AuditLogError) else AuditLogError(f"cannot write the audit log: {problem}")
    # Each gets an exception of its own: it is raised in several tasks, and each adds its traceback.
    own = AuditLogError(told.what, told.remedy)
    own.__cause__ = problem
    written.set_exception(own)
