"""The audit log as a file: appended to before the answer is given, by one process at a time.

A record is in the kernel when :meth:`AuditLog.append` returns, so that killing the process loses
nothing; it is flushed to disk when the log is closed.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from gateway.audit_chain import MAX_LINE_BYTES, AuditRecord, ChainState, digest_of, seal, verify
from gateway.errors import AuditLogError
from pki.files import SECRET_MODE, make_private_directory
from pki.home import Home


def audit_file(home: Home) -> Path:
    """Where the decisions about ``home``'s cluster are written."""
    return home.gateway / "audit.jsonl"


class AuditLog:
    """The end of an audit log, ready to be continued."""

    def __init__(self, path: Path) -> None:
        """Open or create ``path``, take its lock, and find where the chain stands."""
        make_private_directory(path.parent)
        self._path = path
        try:
            self._descriptor = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, SECRET_MODE
            )
        except OSError as error:
            raise AuditLogError(f"cannot open {path}: {error.strerror}") from error
        try:
            self._lock()
            self._state, torn = self._read_end()
            if torn:
                self._write(b"\n")
                self.append(_recovered())
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def state(self) -> ChainState:
        """How far the chain goes."""
        return self._state

    def append(self, record: AuditRecord) -> None:
        """Write ``record`` at the end; ``time``, ``sequence`` and ``previous`` are filled in here.

        Raises :class:`AuditLogError` when it cannot be written: then nothing may be allowed.
        """
        line, state = seal(msgspec.structs.replace(record, time=_now()), self._state)
        if len(line) > MAX_LINE_BYTES:
            raise AuditLogError(f"an audit record of {len(line)} bytes is larger than {MAX_LINE_BYTES}")
        self._write(line)
        self._state = state

    def close(self) -> None:
        """Flush to disk and let go of the file."""
        os.fsync(self._descriptor)
        os.close(self._descriptor)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AuditLogError(
                f"another process is writing {self._path}", "one auth service per home; see `sluice status`"
            ) from error

    def _write(self, data: bytes) -> None:
        """All of ``data`` or nothing: a part that got into the file is taken back, so that the chain goes on."""
        size = os.fstat(self._descriptor).st_size
        try:
            written = os.write(self._descriptor, data)
        except OSError as error:
            raise AuditLogError(
                f"cannot write {self._path}: {error.strerror}", "check the space on the disk"
            ) from error
        if written != len(data):
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, size)
            raise AuditLogError(f"cannot write all of a record to {self._path}", "check the space on the disk")

    def _read_end(self) -> tuple[ChainState, bool]:
        """Count and digest of what is there, and whether the last line lacks its newline."""
        count, digest, torn = 0, ChainState().digest, False
        for count, raw in enumerate(_lines(self._path), start=1):  # noqa: B007  the last number is used after the loop
            torn = not raw.endswith(b"\n")
            digest = digest_of(raw.removesuffix(b"\n"))
        return ChainState(count, digest), torn


def verify_file(path: Path) -> ChainState:
    """Check the whole log at ``path``; raises :class:`AuditLogError` naming the first line that does not fit."""
    return verify(_lines(path))


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                if len(line) > MAX_LINE_BYTES:
                    raise AuditLogError(f"{path} has a line of more than {MAX_LINE_BYTES} bytes")
                yield line
    except OSError as error:
        raise AuditLogError(f"cannot read {path}: {error.strerror}") from error


def _recovered() -> AuditRecord:
    return AuditRecord(event="recovered", sequence=0, time="", previous="", reason="the line before was cut short")


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
