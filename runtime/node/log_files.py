"""Log files of processes: opens them, reads them in chunks while they grow, and truncates them afterwards.

The log of a driver or an executor is in a directory that the job can write, so every log is opened with
:mod:`sluice.core.files.untrusted_files`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from sluice.core import SECRET_MODE, SluiceError, UnsafeFile, create_untrusted, open_untrusted, remove_untrusted
from sluice.runtime.messages import LogChunk
from sluice.runtime.rpc import remotable

MAX_CHUNK_BYTES = 1 << 20
"""Maximum number of bytes of a log in one answer; fits into an RPC envelope whatever the bytes are."""

MAX_KEPT_LOG_BYTES = 16 << 20
"""How many bytes of a log's end are kept after its process has ended."""

_LONGEST_CHARACTER_BYTES = 4


@remotable
class LogUnreadable(SluiceError):
    """The job has replaced its log by something that is not a regular file of its own."""


def open_log(path: Path) -> IO[bytes]:
    """Open a log for appending, readable only by its owner, as a pipeline may print anything."""
    return create_untrusted(path.parent, path.name, mode=SECRET_MODE)


def read_log(path: Path, offset: int, limit: int) -> LogChunk:
    """Return at most ``limit`` bytes from ``offset``; a file that does not exist yet is empty.

    A character that the end of the chunk would split is left for the next chunk, so chunks can be joined as text.
    ``end`` means that there is nothing more *now*.

    Raises:
        LogUnreadable: the file is not a regular file of the job.
    """
    offset = max(offset, 0)
    try:
        with open_untrusted(path.parent, path.name) as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(offset)
            data = file.read(max(1, min(limit, MAX_CHUNK_BYTES)))
    except FileNotFoundError:
        return LogChunk(data="", offset=offset, next_offset=offset, end=True)
    except UnsafeFile as error:
        raise LogUnreadable(
            f"{path.name} is not a log file any more: the job has replaced it", "it cannot be shown"
        ) from error
    return log_chunk(data, offset, size)


def log_chunk(data: bytes, offset: int, size: int) -> LogChunk:
    """The chunk read at ``offset`` of a log of ``size`` bytes, without a character that is split at its end."""
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
    """Keep the last ``keep`` bytes of a log whose writer has ended; remove anything else in its place."""
    try:
        with open_untrusted(path.parent, path.name, writable=True) as file:
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
    except UnsafeFile:
        remove_untrusted(path.parent, path.name)
