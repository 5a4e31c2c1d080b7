"""Tells watchers that a job changed.

It does not tell what changed: watchers read the job itself. A slow watcher is told less often, but never anything out
of date. Its queue holds one id for each changed job.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator


class FeedClosed(Exception):
    """This JobManager does not lead any more."""


class Watch:
    """One watcher of the feed: the jobs that changed since it asked last."""

    def __init__(self, job_id: str | None) -> None:
        self._job_id = job_id
        self._changed: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def note(self, job_id: str) -> None:
        """Note that ``job_id`` changed."""
        if self._job_id in {None, job_id}:
            self._changed[job_id] = None
            self._wake.set()

    def close(self) -> None:
        """End all watches."""
        self._closed = True
        self._wake.set()

    async def changed(self, seconds: float) -> tuple[str, ...]:
        """The jobs that changed since the last call, the first one first; empty when none did within ``seconds``.

        Raises:
            FeedClosed: the term is over.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        if self._closed:
            raise FeedClosed
        self._wake.clear()
        changed, self._changed = self._changed, {}
        return tuple(changed)


class JobFeed:
    """The feed of one term of a leader."""

    def __init__(self) -> None:
        self._watches: set[Watch] = set()
        self._closed = False

    def changed(self, job_id: str) -> None:
        """Tell watchers that a job was added, changed or removed."""
        for watch in self._watches:
            watch.note(job_id)

    @contextlib.contextmanager
    def watching(self, job_id: str | None = None) -> Iterator[Watch]:
        """Watch one job, or all of them."""
        watch = Watch(job_id)
        if self._closed:
            watch.close()
        self._watches.add(watch)
        try:
            yield watch
        finally:
            self._watches.discard(watch)

    def close(self) -> None:
        """End the feed with the term, and tell all watchers."""
        self._closed = True
        for watch in self._watches:
            watch.close()
