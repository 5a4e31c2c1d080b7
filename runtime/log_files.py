"""Log files of processes: opened for them, read in pieces while they grow, shortened when they have ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

from pki.files import SECRET_MODE
from runtime.messages import LogChunk

MAX_CHUNK_BYTES = 1 << 20
"""Most bytes of a log in one answer; fits into an RPC envelope whatever the bytes are."""

MAX_KEPT_LOG_BYTES = 16 << 20
"""What is kept of one log after its process has ended, in bytes: the end of it."""

_LONGEST_CHARACTER_BYTES = 4


def open_log(path: Path) -> BinaryIO:
    """Open a log for appending, readable by its owner alone: nobody knows what a pipeline prints."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, SECRET_MODE), "ab")


def read_log(path: Path, offset: int, limit: int) -> LogChunk:
    """At most ``limit`` bytes from ``offset``; a file that is not there yet is empty.

    A character cut by the end of the piece is left for the next one, so pieces can be joined as text.
    ``end`` says that nothing more is there *now*.
    """
    offset = max(offset, 0)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(offset)
            data = file.read(max(1, min(limit, MAX_CHUNK_BYTES)))
    except FileNotFoundError:
        return LogChunk(data="", offset=offset, next_offset=offset, end=True)
    if offset + len(data) < size:
        data = _whole_characters(data)
    return LogChunk(
        data=data.decode(errors="replace"),
        offset=offset,
        next_offset=offset + len(data),
        end=offset + len(data) >= size,
    )


def _whole_characters(data: bytes) -> bytes:
    """``data`` without the incomplete UTF-8 character at its end, unless that is all there is."""
    for back in range(1, min(_LONGEST_CHARACTER_BYTES, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        return data[:-back] if length > back and back < len(data) else data
    return data


def shorten_log(path: Path, keep: int = MAX_KEPT_LOG_BYTES) -> None:
    """Keep the last ``keep`` bytes of a log whose writer has ended."""
    try:
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= keep:
                return
            file.seek(size - keep)
            tail = file.read(keep)
            file.seek(0)
            file.write(tail)
            file.truncate()
    except FileNotFoundError:
        return
