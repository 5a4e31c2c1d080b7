"""Fetches a job's files, from the next leader if the one that started the driver fails meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from sluice.runtime.blob import BlobNotFound, BlobUnavailable
from sluice.runtime.messages import BlobRef, DriverAssignment

_LOG = logging.getLogger(__name__)

FetchBlob = Callable[[DriverAssignment, BlobRef, Path], Awaitable[None]]
"""Fetches an artifact of the job into a file and verifies its digest."""

NEW_LEADER_SECONDS = 30.0
"""How long to wait for a new leader, and for it to have the job's files."""
RETRY_SECONDS = 0.5


class Assigned(Protocol):
    """Knows the current location of the files (:class:`~sluice.runtime.spark.driver.link.JobMasterLink`)."""

    async def reassigned(self, than: DriverAssignment, seconds: float) -> DriverAssignment | None:
        """An assignment newer than ``than``; None: there is none within ``seconds``."""
        ...


def with_failover(fetch: FetchBlob, link: Assigned) -> FetchBlob:
    """Wrap ``fetch`` to retry at the next leader if the leader is gone or does not have the file yet."""

    async def fetch_somewhere(assignment: DriverAssignment, ref: BlobRef, target: Path) -> None:
        try:
            await fetch(assignment, ref, target)
        except (BlobUnavailable, BlobNotFound) as error:
            _LOG.warning("cannot fetch %s: %s", ref.name, error)
            newer = await link.reassigned(assignment, NEW_LEADER_SECONDS)
            if newer is None:
                raise
            await _fetch_with_retries(fetch, newer, ref, target)

    return fetch_somewhere


async def _fetch_with_retries(fetch: FetchBlob, assignment: DriverAssignment, ref: BlobRef, target: Path) -> None:
    """Fetch with retries from a leader that may not have received the file itself yet."""
    deadline = asyncio.get_running_loop().time() + NEW_LEADER_SECONDS
    while True:
        try:
            return await fetch(assignment, ref, target)
        except (BlobUnavailable, BlobNotFound):
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(RETRY_SECONDS)
