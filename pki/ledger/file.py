"""The ledger as a file: one writer at a time, and a record is on the disk before :meth:`Ledger.append` returns."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from sluice.core import (
    SECRET_MODE,
    ChainState,
    Disk,
    NotAppended,
    append_whole,
    make_private_directory,
    rfc3339,
    sync_directory,
)
from sluice.pki.errors import LedgerError
from sluice.pki.ledger.generations import Generations
from sluice.pki.ledger.records import MAX_LINE_BYTES, NOTED_KINDS, LedgerRecord, read_chain, seal, state_after, verify
from sluice.pki.ledger.successions import Successions


class Ledger:
    """The end of a ledger, ready to be continued.

    Opening verifies the whole chain. Bytes after the last newline are what a crash left of a record whose
    certificate never left the process: they are dropped, and a ``recovered`` record says so (unless the very repair is
    killed between the two).

    Raises:
        LedgerError: another process writes it, it is damaged, or it cannot be written.
    """

    def __init__(self, path: Path, *, clock: Callable[[], dt.datetime], disk: Disk | None = None) -> None:
        make_private_directory(path.parent)
        self._path = path
        self._clock = clock
        self._disk = disk or Disk()
        self._state = ChainState()
        self._used_tokens: set[str] = set()
        self._noted: set[str] = set()
        self.generations = Generations()
        """Which certificate of each process is the newest."""
        self.successions = Successions()
        """Who was attested under a name before the one that has it now."""
        self._broken = False
        try:
            self._descriptor = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, SECRET_MODE
            )
        except OSError as error:
            raise LedgerError(f"cannot open {path}: {error.strerror or error}") from error
        try:
            self._lock()
            self._recover()
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def state(self) -> ChainState:
        """How far the chain goes."""
        return self._state

    def token_used(self, identifier: str) -> bool:
        """Whether a certificate was issued for the join token with this id."""
        return identifier in self._used_tokens

    def append(self, record: LedgerRecord) -> LedgerRecord:
        """Put ``record`` on the disk and return it sealed; ``time`` is filled in here.

        Raises:
            LedgerError: it is not on the disk; what it records must not happen. When not even that is sure (a
                failed fsync), the ledger takes nothing more until it is opened anew.
        """
        return self.append_all([record])[0]

    def append_all(self, records: Sequence[LedgerRecord]) -> list[LedgerRecord]:
        """As :meth:`append`, for several at once: they are flushed together."""
        if self._broken:
            raise LedgerError(f"{self._path} could not be flushed to disk", "repair the disk and start the CA again")
        time, state = rfc3339(self._clock()), self._state
        lines, sealed = [], []
        for record in records:
            line, each = seal(msgspec.structs.replace(record, time=time), state)
            state = state_after(each)
            lines.append(line)
            sealed.append(each)
        if lines:
            self._write(b"".join(lines))
        for each in sealed:
            self._take(each)
        return sealed

    def was_noted(self, certificate: str) -> bool:
        """Whether a certificate with this fingerprint, signed without the online authority, is recorded."""
        return certificate in self._noted

    def close(self) -> None:
        """Let go of the file; everything is on the disk already."""
        os.close(self._descriptor)

    def _write(self, line: bytes) -> None:
        try:
            append_whole(self._disk, self._descriptor, line, end=os.fstat(self._descriptor).st_size)
        except NotAppended as error:
            self._broken = not error.repaired or not self._synced()
            raise LedgerError(f"cannot write {self._path}: {error}", "check the space on the disk") from error
        try:
            self._disk.sync(self._descriptor)
        except OSError as error:
            # After a failed fsync nobody knows what is on the disk: it must not be tried again (fsync(2), NOTES).
            self._broken = True
            raise LedgerError(f"cannot flush {self._path}: {error.strerror or error}", "check the disk") from error

    def _synced(self) -> bool:
        try:
            self._disk.sync(self._descriptor)
        except OSError:
            return False
        return True

    def _take(self, record: LedgerRecord) -> None:
        self._state = state_after(record)
        self.generations.take(record)
        self.successions.take(record)
        if record.token:
            self._used_tokens.add(record.token)
        if record.kind in NOTED_KINDS:
            self._noted.add(record.certificate)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LedgerError(f"another process is writing {self._path}", "run one CA per home") from error

    def _recover(self) -> None:
        size = os.fstat(self._descriptor).st_size
        sync_directory(self._path.parent)
        with _opened(self._path) as file:
            whole = _Whole(file)
            for record in read_chain(whole):
                self._take(record)
        # A crash of the machine may have left records in memory only that a reader has seen: now they are on the disk.
        self._flush(None)
        if whole.end < size:
            self._flush(whole.end)
            self.append(
                LedgerRecord(
                    event="recovered",
                    dropped_bytes=size - whole.end,
                    dropped_sha256=hashlib.sha256(whole.torn).hexdigest(),
                )
            )

    def _flush(self, size: int | None) -> None:
        try:
            if size is not None:
                self._disk.truncate(self._descriptor, size)
            self._disk.sync(self._descriptor)
        except OSError as error:
            raise LedgerError(f"cannot repair {self._path}: {error.strerror or error}") from error


class _Whole:
    """The whole lines of a ledger; ``end`` is where they end, ``torn`` what is left after them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.end = 0
        self.torn = b""

    def __iter__(self) -> Iterator[bytes]:
        while line := self._file.readline(MAX_LINE_BYTES + 1):
            if not line.endswith(b"\n"):
                if len(line) > MAX_LINE_BYTES:
                    raise LedgerError(f"the ledger has a line of more than {MAX_LINE_BYTES} bytes", "restore a copy")
                self.torn = line
                return
            self.end += len(line)
            yield line


def ledger_path(pki: Path) -> Path:
    """Where the ledger of the authorities below ``pki`` is."""
    return pki / "ca" / "ledger.jsonl"


def read_ledger(path: Path) -> Iterator[LedgerRecord]:
    """The records of a ledger, checked; a record that is being written at this moment is left out."""
    with _opened(path) as file:
        yield from read_chain(_Whole(file))


def verify_ledger(path: Path, *, known: ChainState | None = None) -> ChainState:
    """Check the ledger at ``path`` without taking its lock; see :func:`sluice.pki.ledger.records.verify`."""
    with _opened(path) as file:
        return verify(_Whole(file), known=known)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except OSError as error:
        raise LedgerError(f"cannot read {path}: {error.strerror or error}", "has `sluice run ca` ever run?") from error
    with file:
        yield file
