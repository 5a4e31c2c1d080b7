"""Stores rows on disk until they are recorded, so that after a kill the next process of the same name can send them.

A thread writes each row when the journal gets it, so that no caller waits for the disk. A recorded row may be sent
again; the gateway recognizes its id. Nothing is synced: after a crash of the machine the last rows may be missing.
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
"""Largest file that is read; larger than a full journal."""
COMPACT_BYTES = 8 << 20
MAX_PENDING = 10_000
"""Maximum number of rows that wait for a slow disk. Further rows are kept only in memory."""


class UnsentRows:
    """The file of one process. Call :meth:`load` first. Each line is a row; a later line replaces one with the same id.


    Args:
        path: the file; no other process writes it.
        compact_bytes: a longer file is rewritten without the rows that have been recorded.
    """

    def __init__(self, path: Path, *, compact_bytes: int = COMPACT_BYTES) -> None:
        self._path = path
        self._compact_bytes = compact_bytes
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="egress-rows")
        self._added = self._written = 0  # _added changes under the journal's lock, _written in the writing thread
        self._bytes = 0
        self._fd = -1
        self._failed = False
        self._torn = False  # whether the last line may be incomplete

    def load(self) -> tuple[EgressRow, ...]:
        """The rows that an earlier process left. They stay on disk until :meth:`replace`."""
        if not self._path.exists():
            return ()
        try:
            lines = read_bounded(self._path, MAX_BYTES).splitlines()
        except StoreError as error:
            _LOG.error("cannot read the stored rows about outbound connections: %s", error)
            return ()
        self._bytes = sum(map(len, lines))
        self._torn = True  # the process may have ended during a write
        found: dict[str, EgressRow] = {}
        damaged = 0
        for line in filter(None, lines):
            try:
                row = msgspec.json.decode(line, type=EgressRow)
            except msgspec.MsgspecError:
                damaged += 1
            else:
                found[row.id] = msgspec.structs.replace(row, open=False)
        if damaged:  # a row that was being written, or a modified file
            _LOG.warning("cannot read %d stored rows about outbound connections", damaged)
        return tuple(found.values())

    def add(self, row: EgressRow) -> None:
        """Write ``row`` in the background."""
        if self._added - self._written < MAX_PENDING:
            self._added += 1
            self._submit(self._append, row)

    @property
    def is_long(self) -> bool:
        """Whether the file should be rewritten with the remaining rows."""
        return self._bytes > self._compact_bytes

    def replace(self, rows: Sequence[EgressRow]) -> None:
        """Replace the file's content with ``rows``, in the background."""
        if rows or self._bytes or self._added != self._written:
            self._submit(self._rewrite, rows)

    def close(self) -> None:
        """Wait until everything is written."""
        self._writing.shutdown()
        self._release()

    def _submit(self, write: Callable[[T], None], what: T) -> None:
        with contextlib.suppress(RuntimeError):  # closed: the process is ending
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
            _LOG.error("cannot store rows about outbound connections, they are only in memory: %s", error)
        self._failed = True
