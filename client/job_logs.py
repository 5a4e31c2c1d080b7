"""Reading a job's log through the gateway: all of it, the end of it, or as it grows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from sluice.client.jobs import POLL_SECONDS, TERMINAL, Reader

LOG_CHUNK_BYTES = 256 << 10
TAIL_BLOCK_BYTES = 64 << 10
MAX_LOG_BYTES = 1 << 50
"""Largest length of a log."""
_OF_THE_LATEST = re.compile(r"driver\.[a-z]+")
"""Names of logs that each attempt has of its own."""


@dataclass
class JobLog:
    """One log of one job; ``pause`` sleeps."""

    client: Reader
    job_id: str
    source: str
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep

    async def pieces(self, offset: int = 0) -> AsyncIterator[str]:
        """The current content from an offset on."""
        async for text, _ in self._from(self.source, offset):
            yield text

    async def tail(self, lines: int) -> tuple[str, int]:
        """The last ``lines`` lines, and the offset after them; only the end of the log is read."""
        size = await self._size()
        start, text = size, ""
        while start > 0 and text.count("\n") <= lines:
            start = max(0, start - TAIL_BLOCK_BYTES)
            text, size = await self._between(start, size)
        kept = text.splitlines(keepends=True)
        # The first line is incomplete, unless it is the log's first.
        whole = kept if start == 0 else kept[1:]
        return "".join(whole[-lines:] if lines else []), size

    async def follow(self, offset: int = 0) -> AsyncIterator[str]:
        """The content from an offset on, as it grows, until the job has ended; a driver's log attempt by attempt."""
        attempt, by_attempt = 0, _OF_THE_LATEST.fullmatch(self.source) is not None
        while True:
            # Get the state before reading: a job that has ended writes no more.
            job = await self.client.get(f"/v1/jobs/{self.job_id}")
            latest = int(job.get("attempt") or 1) if by_attempt else 0
            attempt = attempt or latest
            while True:
                source = f"attempt-{attempt}.{self.source}" if by_attempt else self.source
                async for text, after in self._from(source, offset):
                    offset = after
                    yield text
                if attempt >= latest:
                    break
                attempt, offset = attempt + 1, 0
            if job["state"] in TERMINAL:
                return
            await self.pause(POLL_SECONDS)

    async def _from(self, source: str, offset: int) -> AsyncIterator[tuple[str, int]]:
        """Pieces, each with the offset after it."""
        while True:
            chunk = await self._read(source, offset, LOG_CHUNK_BYTES)
            advanced = chunk["next_offset"] > offset
            offset = chunk["next_offset"]
            if chunk["data"]:
                yield chunk["data"], offset
            if chunk["end"] or not advanced:
                return

    async def _between(self, start: int, end: int) -> tuple[str, int]:
        """The text from one offset to another or slightly beyond, and the offset where it ends."""
        pieces, offset = [], start
        while offset < end:
            chunk = await self._read(self.source, offset, min(LOG_CHUNK_BYTES, end - offset))
            if chunk["next_offset"] <= offset:
                break
            pieces.append(chunk["data"])
            offset = chunk["next_offset"]
        return "".join(pieces), offset

    async def _size(self) -> int:
        """The log's current size, by search: answers tell whether there is more after an offset, not how much."""
        low, high = 0, 1
        while await self._is_beyond(high):
            low, high = high, high * 2
        while low < high:
            middle = (low + high) // 2
            if await self._is_beyond(middle):
                low = middle + 1
            else:
                high = middle
        return low

    async def _is_beyond(self, offset: int) -> bool:
        """Whether the log has a byte at this offset."""
        if offset >= MAX_LOG_BYTES:
            return False
        chunk = await self._read(self.source, offset, 1)
        return bool(chunk["next_offset"] > offset)

    async def _read(self, source: str, offset: int, limit: int) -> Any:  # noqa: ANN401  JSON is what it is
        return await self.client.get(f"/v1/jobs/{self.job_id}/logs", source=source, offset=offset, limit=limit)
