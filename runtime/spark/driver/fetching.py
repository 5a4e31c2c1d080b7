"""Fetching the job's files, from another leader when the one that started the driver dies meanwhile."""

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
"""Fetches an artifact of the job into a file, verified against its digest."""

NEW_LEADER_SECONDS = 30.0
"""How long a new leader may take to have the job's files, or to be there at all."""
RETRY_SECONDS = 0.5


class Assigned(Protocol):
    """Knows where the files are now (:class:`~sluice.runtime.spark.driver.jobmaster_link.JobMasterLink`)."""

    async def reassigned(self, than: DriverAssignment, seconds: float) -> DriverAssignment | None:
        """A newer assignment than this one; None: there is none within ``seconds``."""
        ...


def following(fetch: FetchBlob, link: Assigned) -> FetchBlob:
    """``fetch``, made again at the next leader when a leader is gone, or does not have the file yet."""

    async def fetch_somewhere(assignment: DriverAssignment, ref: BlobRef, target: Path) -> None:
        try:
            await fetch(assignment, ref, target)
        except (BlobUnavailable, BlobNotFound) as error:
            _LOG.warning("%s cannot be fetched: %s", ref.name, error)
            newer = await link.reassigned(assignment, NEW_LEADER_SECONDS)
            if newer is None:
                raise
            await _patiently(fetch, newer, ref, target)

    return fetch_somewhere


async def _patiently(fetch: FetchBlob, assignment: DriverAssignment, ref: BlobRef, target: Path) -> None:
    """From a leader that may be about to get the file itself."""
    deadline = asyncio.get_running_loop().time() + NEW_LEADER_SECONDS
    while True:
        try:
            return await fetch(assignment, ref, target)
        except (BlobUnavailable, BlobNotFound):
            if asyncio.get_running_loop().time() > deadline:
                raise
        await asyncio.sleep(RETRY_SECONDS)
