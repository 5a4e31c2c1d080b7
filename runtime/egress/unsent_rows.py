"""Rows that wait to be recorded, on disk as well: those of a process that is killed, the next one of its name sends.

The journal has each row written when it gets it, by a thread, so that nobody waits for a disk. A row that was recorded
may be sent again: the gateway knows its id. Nothing is synced: after a crash of the machine the last rows may be
missing.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from sluice.core import SECRET_MODE, EgressRow, StoreError, read_bounded, write_secret

_LOG = logging.getLogger(__name__)
T = TypeVar("T")

MAX_BYTES = 32 << 20
"""More than a journal that is full."""
COMPACT_BYTES = 8 << 20
MAX_PENDING = 10_000
"""Rows that wait for a slow disk; later ones are only in memory."""


class UnsentRows:
    """The file of one process; :meth:`load` comes first. A line is a row; a later line replaces one of the same id.

    Args:
        path: of the file; nobody else writes it.
        compact_bytes: a longer file is written anew, without what has been recorded.
    """

    def __init__(self, path: Path, *, compact_bytes: int = COMPACT_BYTES) -> None:
        self._path = path
        self._compact_bytes = compact_bytes
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="egress-rows")
        self._added = self._written = 0  # the one changes in the journal's lock, the other in the thread
        self._bytes = 0
        self._fd = -1
        self._failed = False
        self._torn = False  # the last line may be a part of one

    def load(self) -> tuple[EgressRow, ...]:
        """The rows of an earlier process, which stay on disk until :meth:`replace`."""
        if not self._path.exists():
            return ()
        try:
            lines = read_bounded(self._path, MAX_BYTES).splitlines()
        except StoreError as error:
            _LOG.error("rows about connections out of jobs cannot be read: %s", error)
            return ()
        self._bytes = sum(map(len, lines))
        self._torn = True  # by the end of that process
        found: dict[str, EgressRow] = {}
        damaged = 0
        for line in filter(None, lines):
            try:
                row = msgspec.json.decode(line, type=EgressRow)
            except msgspec.MsgspecError:
                damaged += 1
            else:
                found[row.id] = msgspec.structs.replace(row, open=False)
        if damaged:  # that which was being written, or a file that somebody has changed
            _LOG.warning("%d rows about connections out of jobs cannot be read", damaged)
        return tuple(found.values())

    def add(self, row: EgressRow) -> None:
        """Write it down soon."""
        if self._added - self._written < MAX_PENDING:
            self._added += 1
            self._submit(self._append, row)

    @property
    def is_long(self) -> bool:
        """Whether it should be replaced by what is left."""
        return self._bytes > self._compact_bytes

    def replace(self, rows: Sequence[EgressRow]) -> None:
        """Have these rows alone, soon."""
        if rows or self._bytes or self._added != self._written:
            self._submit(self._rewrite, rows)

    def close(self) -> None:
        """Wait until all is written."""
        self._writing.shutdown()
        self._release()

    def _submit(self, write: Callable[[T], None], what: T) -> None:
        with contextlib.suppress(RuntimeError):  # closed: the process ends
            self._writing.submit(write, what)

    def _append(self, row: EgressRow) -> None:
        self._written += 1
        line = (b"\n" if self._torn else b"") + msgspec.json.encode(row) + b"\n"
        self._bytes += len(line)
        self._torn = True
        try:
            if self._fd < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
                self._fd = os.open(self._path, flags, SECRET_MODE)
            self._torn = os.write(self._fd, line) != len(line)
            if self._torn:
                self._report(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        except OSError as error:
            self._report(error)

    def _rewrite(self, rows: Sequence[EgressRow]) -> None:
        self._release()
        self._bytes = 0
        try:
            if rows:
                content = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
                write_secret(self._path, content)
            else:
                self._path.unlink(missing_ok=True)
            self._failed = self._torn = False
        except (OSError, StoreError) as error:
            self._report(error)

    def _release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _report(self, error: Exception) -> None:
        if not self._failed:
            _LOG.error("rows about connections out of jobs are only in memory: %s", error)
        self._failed = True
