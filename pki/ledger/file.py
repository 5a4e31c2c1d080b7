"""The ledger as a file: its writers take turns, and a record is on the disk before :meth:`Ledger.append` returns.

Several authorities of one home append to it. The one that has the turn (:mod:`sluice.pki.ledger.turns`) first reads
what the others have appended, so that it decides with all issued certificates in mind.
"""

from __future__ import annotations

import contextlib
import datetime as dt
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
from sluice.pki.ledger.turns import TURN_PATIENCE_SECONDS, Turns


class Ledger:
    """The end of a ledger, ready to be continued; for one thread.

    Opening verifies the whole chain. Bytes after the last newline are an incomplete record from a crash, whose
    certificate never left the process. The next process with the turn, starting or running, drops them and adds a
    ``recovered`` record (unless the repair is killed between the two).

    Raises:
        LedgerError: another process keeps the turn, it is damaged, or it cannot be written.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], dt.datetime],
        disk: Disk | None = None,
        patience: float = TURN_PATIENCE_SECONDS,
    ) -> None:
        make_private_directory(path.parent)
        self._path = path
        self._clock = clock
        self._disk = disk or Disk()
        self._broken = False
        self._begin()
        try:
            self._descriptor = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, SECRET_MODE
            )
        except OSError as error:
            raise LedgerError(f"cannot open {path}: {error.strerror or error}") from error
        self._turns = Turns(path, self._descriptor, patience)
        try:
            sync_directory(path.parent)
            # Read most of it before the turn: a ledger of years takes seconds, in which nobody else could issue.
            try:
                self._read_on()
            except LedgerError:  # another process may be repairing a torn end now; the turn shows whether it did
                self._begin()
            with self.turn():
                # Flush first: a process that died may have left records in memory only, which readers have seen.
                self.sync()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _begin(self) -> None:
        self._state = ChainState()
        self._end = 0
        self._tokens: dict[str, str] = {}
        self._noted: set[str] = set()
        self.generations = Generations()
        """Which certificate of each process is the newest."""
        self.successions = Successions()
        """Earlier attested holders of each name."""

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Be the only writer, and have read everything; nested turns do nothing.

        Decide, sign and append within one turn: earlier reads may be out of date.

        Raises:
            LedgerError: another process keeps the turn, the ledger was replaced or cut off, or it is damaged.
        """
        with self._turns.take() as begun:
            if begun:
                self._catch_up()
            yield

    @property
    def state(self) -> ChainState:
        """The state of the chain."""
        return self._state

    def token_used(self, identifier: str) -> bool:
        """Whether a certificate was issued for the join token with this id."""
        return identifier in self._tokens

    def certificate_of(self, token: str) -> str:
        """The fingerprint of the certificate that was issued for the join token with this id; empty: none was."""
        return self._tokens.get(token, "")

    def append(self, record: LedgerRecord) -> LedgerRecord:
        """Put ``record`` on the disk and return it sealed; ``time`` is filled in here.

        Raises:
            LedgerError: it is not on disk; what it records must not happen. After a failed fsync, when even that is
                unsure, the ledger accepts nothing more until it is opened again.
        """
        return self.append_all([record])[0]

    def append_all(self, records: Sequence[LedgerRecord]) -> list[LedgerRecord]:
        """Append several records and flush them together, as :meth:`append` does for one."""
        with self.turn():
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

    def sync(self) -> None:
        """Flush what others have appended, too: a killed process may not have done so."""
        with self.turn():
            self._flush(None)

    def was_noted(self, certificate: str) -> bool:
        """Whether a certificate with this fingerprint, signed without the online authority, is recorded."""
        return certificate in self._noted

    def close(self) -> None:
        """Close the file; everything is on disk already."""
        os.close(self._descriptor)

    def _write(self, line: bytes) -> None:
        self._refuse_broken()
        try:
            append_whole(self._disk, self._descriptor, line, end=self._end)
        except NotAppended as error:
            self._broken = not error.repaired or not self._synced()
            raise LedgerError(f"cannot write {self._path}: {error}", "check the space on the disk") from error
        try:
            self._disk.sync(self._descriptor)
        except OSError as error:
            # After a failed fsync it is unknown what is on disk, and a retry would not tell (fsync(2), NOTES).
            self._broken = True
            raise LedgerError(f"cannot flush {self._path}: {error.strerror or error}", "check the disk") from error
        self._end += len(line)

    def _refuse_broken(self) -> None:
        if self._broken:
            raise LedgerError(f"{self._path} could not be flushed to disk", "repair the disk and start the CA again")

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
            self._tokens[record.token] = record.certificate
        if record.kind in NOTED_KINDS:
            self._noted.add(record.certificate)

    def _catch_up(self) -> None:
        self._refuse_broken()
        size = self._size()
        if size < self._end:
            raise LedgerError(f"the end of {self._path} was cut off", "restore the ledger from a copy")
        if size == self._end:
            return
        torn = self._read_on()
        if torn:
            self._flush(self._end)
            self.append(
                LedgerRecord(
                    event="recovered", dropped_bytes=len(torn), dropped_sha256=hashlib.sha256(torn).hexdigest()
                )
            )

    def _size(self) -> int:
        """The size of the file. It must still be the opened one, because a backup may have been restored."""
        info = os.fstat(self._descriptor)
        try:
            same = os.path.samestat(info, self._path.stat())
        except OSError:
            same = False
        if not same:
            raise LedgerError(f"{self._path} was replaced or removed", "start the CA again")
        return info.st_size

    def _read_on(self) -> bytes:
        """Read new records; returns the bytes after the last whole line."""
        with _opened(self._path) as file:
            file.seek(self._end)
            whole = _Whole(file, self._end)
            for record in read_chain(whole, self._state):
                self._take(record)
                self._end = whole.end
        return whole.torn

    def _flush(self, size: int | None) -> None:
        try:
            if size is not None:
                self._disk.truncate(self._descriptor, size)
            self._disk.sync(self._descriptor)
        except OSError as error:
            raise LedgerError(f"cannot repair {self._path}: {error.strerror or error}") from error


class _Whole:
    """Iterates over whole lines of a ledger from ``end`` on, which it advances; ``torn`` is the incomplete rest."""

    def __init__(self, file: BinaryIO, end: int = 0) -> None:
        self._file = file
        self.end = end
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
    """The ledger of the authorities below ``pki``."""
    return pki / "ca" / "ledger.jsonl"


def read_ledger(path: Path) -> Iterator[LedgerRecord]:
    """The records of a ledger, checked; without a record that is just being written."""
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
