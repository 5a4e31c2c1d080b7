"""Keeps the latest log lines of this process in memory, so that other processes can read them remotely."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Iterator

from sluice.runtime.messages import LogChunk
from sluice.runtime.node.log_files import MAX_CHUNK_BYTES

KEPT_BYTES = 1 << 20
MAX_LINE_BYTES = 16 << 10


class LogTail(logging.Handler):
    """Keeps formatted lines. Offsets count bytes since the start of the process."""

    def __init__(self, keep: int = KEPT_BYTES) -> None:
        super().__init__()
        self._keep = keep
        self._lines: deque[bytes] = deque()
        self._begin = 0
        self._end = 0
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one line."""
        try:
            line = self.format(record).encode(errors="replace")[:MAX_LINE_BYTES] + b"\n"
        except Exception:  # noqa: BLE001  # as in every handler: a message that cannot be formatted must not raise
            self.handleError(record)
            return
        self._lines.append(line)
        self._end += len(line)
        while self._end - self._begin > self._keep:
            self._begin += len(self._lines.popleft())

    def read(self, offset: int, limit: int) -> LogChunk:
        """Return whole lines from ``offset``: up to ``limit`` bytes, or one longer line. Dropped lines are skipped."""
        self.acquire()
        try:
            lines, begin = tuple(self._lines), self._begin
        finally:
            self.release()
        taken: list[bytes] = []
        size, place = 0, begin
        first = place
        for line in lines:
            if place >= offset:
                if not taken:
                    first = place
                if taken and size + len(line) > min(limit, MAX_CHUNK_BYTES):
                    break
                taken.append(line)
                size += len(line)
            place += len(line)
        if not taken:
            first = place
        return LogChunk(
            data=b"".join(taken).decode(errors="replace"),
            offset=first,
            next_offset=first + size,
            end=first + size >= begin + sum(map(len, lines)),
        )


@contextlib.contextmanager
def capture_log_tail() -> Iterator[LogTail]:
    """Keep the lines that are logged within the block."""
    tail = LogTail()
    root = logging.getLogger()
    root.addHandler(tail)
    try:
        yield tail
    finally:
        root.removeHandler(tail)
