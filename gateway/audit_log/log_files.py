"""A consistent snapshot of the files of an audit log, for a copy that passes verification."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sluice.gateway.audit_log.keys import SIGNING_KEY, SIGNING_REFERENCE, VERIFICATION_KEY
from sluice.gateway.audit_log.segments import CHECKPOINT, CURRENT, LOCK, open_file, segments, take_lock
from sluice.gateway.audit_log.traffic import traffic_files
from sluice.gateway.errors import AuditLogError


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of the snapshot: the first ``size`` bytes of ``descriptor``.

    A closed segment no longer changes and has no descriptor (-1). ``path`` is its name before compression.
    """

    path: Path
    descriptor: int = -1
    size: int = 0


@contextlib.contextmanager
def log_files(directory: Path) -> Iterator[list[LogFile]]:
    """A snapshot of the log in ``directory``, which may be written at the same time. Empty if there is no log.

    Raises :class:`AuditLogError` if a writer does not release its lock, or a file cannot be read.
    """
    if not (directory / LOCK).exists():
        yield []
        return
    found: list[LogFile] = []
    try:
        lock = open_file(directory / LOCK, os.O_RDONLY)
        try:
            take_lock(lock, fcntl.LOCK_SH, directory)
            found += [LogFile(each.path) for each in segments(directory)]
            traffic = traffic_files(directory)
            found += [LogFile(path) for path in traffic[:-1]]
            growing = [
                directory / name for name in (CURRENT, CHECKPOINT, SIGNING_KEY, SIGNING_REFERENCE, VERIFICATION_KEY)
            ]
            found += [_opened(path) for path in (*growing, *traffic[-1:]) if path.exists()]
        except OSError as error:
            raise AuditLogError(f"cannot read the audit log in {directory}: {error.strerror}") from error
        finally:
            os.close(lock)
        yield found
    finally:
        for each in found:
            if each.descriptor >= 0:
                os.close(each.descriptor)


def _opened(path: Path) -> LogFile:
    descriptor = open_file(path, os.O_RDONLY)
    return LogFile(path, descriptor, os.fstat(descriptor).st_size)
