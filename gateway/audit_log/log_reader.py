"""Reads an audit log while it is being written, and filters its records."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from sluice.core import ChainState
from sluice.gateway.audit_log.chain import MAX_LINE_BYTES, AuditRecord, ChainReader, Check, decode
from sluice.gateway.audit_log.segments import CURRENT, segments
from sluice.gateway.audit_log.traffic import TrafficReader
from sluice.gateway.audit_log.verification import expand_access_record


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions on records. An empty condition matches every record. ``*`` in a text matches any characters."""

    principal: str = ""
    operation: str = ""
    decision: str = ""
    since: dt.datetime | None = None
    until: dt.datetime | None = None

    def admits(self, record: AuditRecord) -> bool:
        """Whether ``record`` meets all conditions."""
        kind = record.kind if isinstance(record.kind, str) else ""
        texts = ((self.principal, record.principal), (self.operation, record.operation or kind))
        if any(want and not fnmatchcase(have, want) for want, have in texts):
            return False
        if self.decision and record.decision != self.decision:
            return False
        if self.since is None and self.until is None:
            return True
        when = event_time(record)
        return (self.since is None or when >= self.since) and (self.until is None or when < self.until)


def event_time(record: AuditRecord) -> dt.datetime:
    """When the event happened: the proxy's time of the request if it is valid, else the time of the record."""
    if isinstance(record.at, str):
        try:
            moment = dt.datetime.fromisoformat(record.at)
            return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment
        except ValueError:
            pass
    return dt.datetime.fromisoformat(record.time)


def follow(directory: Path, *, wait: Callable[[], None]) -> Iterator[AuditRecord | None]:
    """All existing records, then None once, then new ones as they are written. Calls ``wait`` between two reads.

    Each record is checked against the chain, but signatures are not verified. The generator ends only with an error or
    when it is closed.
    """
    reader, traffic = LineReader(directory), TrafficReader(directory)

    def new_records() -> Iterator[AuditRecord]:
        for _, record in reader.read_new():
            yield from expand_access_record(record, traffic)

    yield from new_records()
    yield None
    while True:
        wait()
        yield from new_records()


class LineReader:
    """Reads the lines of a log after a given state of its chain, and later the new ones."""

    def __init__(self, directory: Path, state: ChainState | None = None, check: Check | None = None) -> None:
        """Start after ``state``. If ``check`` is None, signatures are not verified."""
        self._directory = directory
        self._reader = ChainReader(check, state)
        self._inode = 0
        self._offset = 0

    @property
    def state(self) -> ChainState:
        """The state of the chain after the last line that was read."""
        return self._reader.state

    def read_new(self, until: int | None = None) -> Iterator[tuple[bytes, AuditRecord]]:
        """Lines written since the last call, each with its record, up to line ``until``.

        Raises :class:`AuditLogError` with the number of the first line that does not continue the chain.
        """
        last = sys.maxsize if until is None else until
        for segment in segments(self._directory):
            if segment.last > self.state.count < last:
                for number, raw in enumerate(segment.lines(), start=segment.first):
                    if number > self.state.count:
                        yield raw, self._reader.take(raw)
                    if self.state.count >= last:
                        return
        with contextlib.suppress(FileNotFoundError), (self._directory / CURRENT).open("rb") as file:
            yield from self._current(file, last)

    def _current(self, file: IO[bytes], last: int) -> Iterator[tuple[bytes, AuditRecord]]:
        """New lines of the current segment, which a writer may close at any moment."""
        inode = os.fstat(file.fileno()).st_ino
        if inode != self._inode:
            first = decode(file.readline(MAX_LINE_BYTES + 1).removesuffix(b"\n"))
            if first is None or first.sequence > self.state.count + 1:
                return  # incomplete, or a segment was closed meanwhile and must be read first
            file.seek(0)
            for _ in range(self.state.count + 1 - first.sequence):  # skip lines before the given state
                if not file.readline(MAX_LINE_BYTES + 1):
                    break
            self._inode, self._offset = inode, file.tell()
        file.seek(self._offset)
        while self.state.count < last and (raw := file.readline(MAX_LINE_BYTES + 1)).endswith(b"\n"):
            self._offset += len(raw)
            yield raw, self._reader.take(raw)
