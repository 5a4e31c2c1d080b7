"""Stores the last checkpoint in a file beside the log, so truncation before it is detected."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

from sluice.core import read_bounded, write_public
from sluice.gateway.audit_log.chain import MAX_LINE_BYTES, AuditRecord, Check, Checkpoint, parse_checkpoint
from sluice.gateway.audit_log.segments import CHECKPOINT, open_file


class CheckpointFile:
    """The checkpoint file of the log in ``directory``. Several processes may write it."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / CHECKPOINT

    def exists(self) -> bool:
        """Whether a checkpoint is stored."""
        return self._path.exists()

    def read(self, check: Check) -> Checkpoint | None:
        """The checkpoint, or None if there is none. Raises ``AuditLogError`` if ``check`` rejects it."""
        return parse_checkpoint(read_bounded(self._path, MAX_LINE_BYTES), check) if self.exists() else None

    def keep(self, line: bytes) -> None:
        """Store a checkpoint's line, unless a later one is already stored."""
        lock = open_file(self._path.with_name("checkpoint.lock"), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self.exists() or _sequence(read_bounded(self._path, MAX_LINE_BYTES)) < _sequence(line):
                write_public(self._path, line)
        finally:
            os.close(lock)


def last_checkpoint(data: bytes) -> int:
    """The offset of the last complete line that is a checkpoint; -1 if there is none."""
    end = data.rfind(b"\n")
    while end > 0:
        begin = data.rfind(b"\n", 0, end) + 1
        if data.startswith(b'{"event":"checkpoint"', begin):
            return begin
        end = begin - 1
    return -1


def _sequence(line: bytes) -> int:
    try:
        return msgspec.json.decode(line, type=AuditRecord).sequence
    except msgspec.MsgspecError:
        return 0
