"""Logs of one job in compressed blocks. Small logs share a block; a chunk of a large log is found without a scan."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from sluice.core import SluiceError
from sluice.runtime.ha import EntryDamaged, StoredEntry
from sluice.runtime.messages import LogChunk
from sluice.runtime.node import MAX_CHUNK_BYTES

_LOG = logging.getLogger(__name__)

BLOCK_BYTES = 4 << 20
"""A block is written when it has at least this size, before compression."""
MAX_BLOCK_BYTES = BLOCK_BYTES + 4 * MAX_CHUNK_BYTES
"""Largest block: each byte of the last chunk may have become a replacement character."""
MAX_LOGS = 500
"""Most logs of one job."""
MAX_NAME_CHARACTERS = 100
MAX_LOG_BYTES = 48 << 20
"""Most bytes of one log; a TaskManager keeps less of the log of an ended process."""


class LogSource(Protocol):
    """The logs of one job at their origin."""

    async def names(self) -> Sequence[str]:
        """The names of the logs, the most important ones first."""
        ...

    async def read(self, name: str, offset: int, limit: int) -> LogChunk:
        """A chunk of one log."""
        ...


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """A part of a log: the index of its block, the start in it, and the size in bytes."""

    block: int
    start: int
    size: int


class ArchivedLog(msgspec.Struct, frozen=True, kw_only=True):
    """One log in the blocks of its job; ``cut`` means that the log is incomplete."""

    name: str
    segments: tuple[Segment, ...]
    cut: bool = False

    @property
    def size(self) -> int:
        """The size in bytes."""
        return sum(segment.size for segment in self.segments)


class LogPacker:
    """Packs logs into blocks, one after the other.

    Args:
        write: stores a compressed block.
        budget: most bytes of all compressed blocks together.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[StoredEntry]], budget: int) -> None:
        self._write = write
        self._budget = budget
        self._buffer = bytearray()
        self._segments: dict[str, list[Segment]] = {}
        self._cut: set[str] = set()
        self._full = False
        self.blocks: list[StoredEntry] = []

    async def pack(self, source: LogSource) -> None:
        """Pack all logs of a job, as far as they can be read and fit into the budget."""
        try:
            names = tuple(name for name in await source.names() if len(name) <= MAX_NAME_CHARACTERS)
        except SluiceError as error:
            _LOG.info("no logs are kept: %s", error)
            return
        for name in dict.fromkeys(names[:MAX_LOGS]):
            self._segments[name] = []
            self._cut.add(name)  # until its end has been read
            try:
                await self._take(source, name)
            except SluiceError as error:
                _LOG.info("the log %s is kept incompletely: %s", name, error)

    async def _take(self, source: LogSource, name: str) -> None:
        offset = taken = 0
        while not self._full and taken < MAX_LOG_BYTES:
            chunk = await source.read(name, offset, MAX_CHUNK_BYTES)
            data = chunk.data.encode(errors="replace")[: 4 * MAX_CHUNK_BYTES]
            if data:
                self._segments[name].append(Segment(len(self.blocks), len(self._buffer), len(data)))
                self._buffer += data
            offset, before, taken = chunk.next_offset, offset, taken + len(data)
            if chunk.end:
                self._cut.discard(name)
            if len(self._buffer) >= BLOCK_BYTES:
                await self._flush()
            if chunk.end or offset <= before:
                return

    async def close(self) -> tuple[ArchivedLog, ...]:
        """Write the last block, and return the logs that were packed."""
        await self._flush()
        stored = len(self.blocks)
        logs = []
        for name, segments in self._segments.items():
            kept = tuple(segment for segment in segments if segment.block < stored)
            if kept or name not in self._cut:  # an empty log is also a log
                logs.append(ArchivedLog(name=name, segments=kept, cut=name in self._cut or len(kept) < len(segments)))
        return tuple(logs)

    async def _flush(self) -> None:
        if not self._buffer or self._full:
            return
        content = bytes(self._buffer)
        packed = await asyncio.to_thread(zlib.compress, content)
        if sum(block.size for block in self.blocks) + len(packed) > self._budget:
            self._full = True
            return
        self.blocks.append(await self._write(packed))
        self._buffer.clear()


def unpacked(data: bytes, limit: int, name: str) -> bytes:
    """Decompress ``data`` to at most ``limit`` bytes; raises ``EntryDamaged``."""
    expander = zlib.decompressobj()
    try:
        content = expander.decompress(data, limit + 1)
    except zlib.error as error:
        raise EntryDamaged(f"the entry {name} cannot be read: {error}") from error
    if len(content) > limit or not expander.eof:
        raise EntryDamaged(f"the entry {name} is incomplete or too large")
    return content
