"""Log files of processes: opened for them, read in pieces while they grow, shortened when they have ended.

A log of a driver or an executor lies in a directory that the job can write, so each is opened by
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
"""Most bytes of a log in one answer; fits into an RPC envelope whatever the bytes are."""

MAX_KEPT_LOG_BYTES = 16 << 20
"""What is kept of one log after its process has ended, in bytes: the end of it."""

_LONGEST_CHARACTER_BYTES = 4


@remotable
class LogUnreadable(SluiceError):
    """The job has replaced its log by something else."""


def open_log(path: Path) -> IO[bytes]:
    """Open a log for appending, readable by its owner alone: nobody knows what a pipeline prints."""
    return create_untrusted(path.parent, path.name, mode=SECRET_MODE)


def read_log(path: Path, offset: int, limit: int) -> LogChunk:
    """At most ``limit`` bytes from ``offset``; a file that is not there yet is empty.

    A character cut by the end of the piece is left for the next one, so pieces can be joined as text.
    ``end`` says that nothing more is there *now*.

    Raises:
        LogUnreadable: it is no regular file of the job's own.
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
            f"{path.name} is no log file any more: the job has replaced it", "nothing of it is shown"
        ) from error
    return log_chunk(data, offset, size)


def log_chunk(data: bytes, offset: int, size: int) -> LogChunk:
    """A piece that was read at ``offset`` of a log of ``size`` bytes, without a character that its end cuts."""
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
    """Keep the last ``keep`` bytes of a log whose writer has ended; what is no log in its place goes."""
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
