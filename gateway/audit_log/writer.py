"""Writes the audit log for the auth service, in a thread, so a lock or a slow disk does not delay other requests.

A caller waits only for its own record: :meth:`AuditWriter.append` returns when the record is in the kernel, or raises,
and then the request is refused. Records that arrive during a write are written together, in order of arrival. A record
stands for a decision. Whether the client still waited for the answer is only in Envoy's access log.
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
"""Maximum number of records that wait to be written. Further requests are refused at once."""

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
        """Append a record; it is in the log on return. Raises :class:`AuditLogError`, also if too many records wait."""
        if len(self._waiting) >= self._limit:
            raise AuditLogError(
                f"{len(self._waiting)} audit records wait to be written",
                "check whether the disk is slow or the log is locked",
            )
        written = asyncio.get_running_loop().create_future()
        self._waiting.append((record, written))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        await written

    async def append_all(self, records: Sequence[AuditRecord]) -> None:
        """Append records for which no request waits; they are in the log on return. Raises :class:`AuditLogError`."""
        for begin in range(0, len(records), MAX_BATCH_RECORDS):
            batch = records[begin : begin + MAX_BATCH_RECORDS]
            await self._in_thread(partial(self.log.append_all, batch))

    async def event(self, kind: str, principal: str, detail: Mapping[str, object] | str = "") -> SignedRecord:
        """Record an administrative act, signed at once. Raises :class:`AuditLogError`."""
        return await self._in_thread(lambda: self.log.event(kind, principal, detail))

    async def close(self) -> None:
        """Write the waiting records and end the thread. The log stays open."""
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
                    # A record that is too large must not make the others of its batch fail.
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
            await self._in_thread(lambda: self.log.append_all([record for record, _ in batch]))
        except RecordTooLarge:
            raise
        except Exception as error:  # noqa: BLE001  every waiting caller must be answered
            problem = error
        for _, written in batch:
            _settle(written, problem)

    async def _in_thread(self, act: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, act)


def _settle(written: asyncio.Future[None], problem: Exception | None) -> None:
    if written.done():  # the caller was cancelled
        return
    if problem is None:
        written.set_result(None)
        return
    told = problem if isinstance(problem, AuditLogError) else AuditLogError(f"cannot write the audit log: {problem}")
    # One exception per caller: each task that raises it adds its own traceback.
    own = AuditLogError(told.what, told.remedy)
    own.__cause__ = problem
    written.set_exception(own)
