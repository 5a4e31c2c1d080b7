"""Reads an audit log while it is written, and filters its records."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from sluice.gateway.audit_log.chain import MAX_LINE_BYTES, AuditRecord, ChainReader, decode
from sluice.gateway.audit_log.segments import CURRENT, segments
from sluice.gateway.audit_log.traffic import TrafficReader
from sluice.gateway.audit_log.verification import told


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions on records; an empty one admits every record. ``*`` in a text matches any text."""

    principal: str = ""
    operation: str = ""
    decision: str = ""
    since: dt.datetime | None = None
    until: dt.datetime | None = None

    def admits(self, record: AuditRecord) -> bool:
        """Whether ``record`` meets every condition."""
        kind = record.kind if isinstance(record.kind, str) else ""
        texts = ((self.principal, record.principal), (self.operation, record.operation or kind))
        if any(want and not fnmatchcase(have, want) for want, have in texts):
            return False
        if self.decision and record.decision != self.decision:
            return False
        if self.since is None and self.until is None:
            return True
        when = moment_of(record)
        return (self.since is None or when >= self.since) and (self.until is None or when < self.until)


def moment_of(record: AuditRecord) -> dt.datetime:
    """When it happened: the proxy's word counts for what it decided, if it is a time at all."""
    if isinstance(record.at, str):
        try:
            moment = dt.datetime.fromisoformat(record.at)
            return moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment
        except ValueError:
            pass
    return dt.datetime.fromisoformat(record.time)


def follow(directory: Path, *, wait: Callable[[], None]) -> Iterator[AuditRecord | None]:
    """Every record from the beginning, then None once, then what is written later; ``wait`` is called in between.

    Each is checked against the chain, but for signatures. Ends only with an error, or with its consumer.
    """
    reader = _LogReader(directory)
    yield from reader.news()
    yield None
    while True:
        wait()
        yield from reader.news()


class _LogReader:
    """A position in the log: the file, and the offset in it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reader = ChainReader(None)
        self._traffic = TrafficReader(directory)
        self._inode = 0
        self._offset = 0

    def news(self) -> Iterator[AuditRecord]:
        """The records that were written since the last call."""
        for segment in segments(self._directory):
            if segment.last > self._reader.state.count:
                for number, raw in enumerate(segment.lines(), start=segment.first):
                    if number > self._reader.state.count:
                        yield from told(self._reader.take(raw), self._traffic)
        with contextlib.suppress(FileNotFoundError), (self._directory / CURRENT).open("rb") as file:
            yield from self._current(file)

    def _current(self, file: IO[bytes]) -> Iterator[AuditRecord]:
        """New records of the current segment, which may be closed at any moment."""
        inode = os.fstat(file.fileno()).st_ino
        if inode != self._inode:
            first = decode(file.readline(MAX_LINE_BYTES + 1).removesuffix(b"\n"))
            if first is None or first.sequence > self._reader.state.count + 1:
                return  # not whole yet, or a segment was closed meanwhile, which comes first
            self._inode, self._offset = inode, 0
        file.seek(self._offset)
        while (raw := file.readline(MAX_LINE_BYTES + 1)).endswith(b"\n"):
            self._offset += len(raw)
            yield from told(self._reader.take(raw), self._traffic)
