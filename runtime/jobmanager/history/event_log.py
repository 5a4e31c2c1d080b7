"""Spark's event log of one job in the history: the compressed bytes as received, in blocks.

The job has written the bytes, so they are not trusted, and not parsed here. They are parsed only in a sandbox, when
somebody opens the job's Spark UI.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
from prometheus_client import Counter

from sluice.core import REGISTRY, SluiceError
from sluice.runtime.ha import StoredEntry
from sluice.runtime.messages import MAX_EVENT_LOG_CHUNK_BYTES, EventLogChunk

CUT = Counter(
    "sluice_history_event_logs_cut_total",
    "Event logs of ended jobs that were kept without some of their events: too large, or lost with their TaskManager.",
    registry=REGISTRY,
)
EVENT_BLOCK_BYTES = 4 << 20
_LOG = logging.getLogger(__name__)

ReadEvents = Callable[[int], Awaitable[EventLogChunk]]
"""Reads the chunk at an offset."""


class EventLog(msgspec.Struct, frozen=True):
    """The blocks of an event log; ``cut`` means that events are missing."""

    blocks: tuple[StoredEntry, ...] = ()
    cut: bool = False

    @property
    def size(self) -> int:
        """The compressed size in bytes."""
        return sum(block.size for block in self.blocks)


async def keep_event_log(
    read: ReadEvents, write: Callable[[bytes], Awaitable[StoredEntry]], budget: int, seconds: float
) -> EventLog:
    """Store the first ``budget`` bytes of an event log, as many as can be read in ``seconds``.

    Spark's UI can show an event log whose end is missing.
    """
    blocks: list[StoredEntry] = []
    buffer = bytearray()
    cut, offset, end = False, 0, False
    try:
        async with asyncio.timeout(seconds):
            while not end:
                chunk = await read(offset)
                data = chunk.data[:MAX_EVENT_LOG_CHUNK_BYTES][: budget - offset]
                end = chunk.end or not data
                cut = chunk.cut or len(data) < len(chunk.data)
                offset += len(data)
                buffer += data
                if len(buffer) >= EVENT_BLOCK_BYTES or (end and buffer):
                    blocks.append(await write(bytes(buffer)))
                    buffer.clear()
    except (SluiceError, TimeoutError) as error:
        _LOG.info("the rest of an event log is not kept: %s", error or "its TaskManager is slow")
        cut = True
    if cut:
        CUT.inc()
    return EventLog(tuple(blocks), cut=cut)
