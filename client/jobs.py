"""Lists of jobs in pages, and finding a job by the beginning of its id."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Collection
from typing import Any, Protocol

from sluice.client.errors import RefusedError, UsageError

ID_CHARACTERS = 32
MAX_CANDIDATES = 10
"""Most jobs that the error about an ambiguous id names."""
MAX_PAGE = 1000
"""Jobs in one answer."""
MAX_PAGES = 100
LISTED = "/v1/jobs"
"""Jobs that run, and the latest that have ended."""
HISTORY = "/v1/history"
"""All ended jobs that are kept."""
MAX_HISTORY_PAGE = 100
MAX_HISTORY_PAGES = 200
"""As many as there can be."""
POLL_SECONDS = 0.4
WAIT_SECONDS = 1.0
"""How long one request waits for a job to change; its log is read in between."""
PACE_SECONDS = 0.1
"""Between two requests for a job that changes all the time."""
TERMINAL = frozenset({"FINISHED", "FAILED", "CANCELED"})
"""States that a job does not leave."""

_TYPED = re.compile(r"[A-Za-z0-9_-]{1,32}")


class Reader(Protocol):
    """Reads from the cluster's REST API, such as a :class:`sluice.client.rest_client.GatewayClient`."""

    async def get(self, path: str, **query: str | int) -> Any:  # noqa: ANN401  JSON is what it is
        """GET ``path``."""


class ChangeReader(Reader, Protocol):
    """One that waits for changes."""

    async def newer(self, path: str, version: str, seconds: float) -> tuple[Any, str]:
        """The document at ``path`` as soon as its version is not ``version``, and its version; None: unchanged.

        Args:
            path: of a resource with versions.
            version: that the caller has; empty: none.
            seconds: to wait for a change.
        """


async def job_pages(client: Reader, path: str = LISTED, **query: str | int) -> AsyncIterator[dict[str, Any]]:
    """``GET`` :data:`LISTED` or :data:`HISTORY` page by page, the latest jobs first."""
    for _ in range(MAX_PAGES if path == LISTED else MAX_HISTORY_PAGES):
        page = await client.get(path, **query)
        yield page
        if not page.get("next"):
            return
        query["after"] = page["next"]


async def latest_jobs(
    client: Reader, states: Collection[str], owner: str, limit: int, path: str = LISTED
) -> list[dict[str, Any]]:
    """The latest ``limit`` jobs in one of ``states`` (empty: any), of ``owner`` (empty: anybody), as in `job_pages`."""
    found: list[dict[str, Any]] = []
    most = MAX_PAGE if path == LISTED else MAX_HISTORY_PAGE
    size = most if states or owner else min(limit, most)
    async for page in job_pages(client, path, limit=size):
        found += [job for job in page["jobs"] if (not states or job["state"] in states) and owner in {"", job["owner"]}]
        if len(found) >= limit:
            break
    return found[:limit]


async def whole_id(client: Reader, typed: str) -> str:
    """The id of the one job whose id begins with ``typed``. A whole id is returned without a request.

    Raises:
        UsageError: ``typed`` cannot be the beginning of an id, or several jobs' ids begin with it.
        RefusedError: no job's id begins with it.
    """
    if not _TYPED.fullmatch(typed):
        raise UsageError(f"{typed[:80]!r} is not the id of a job", "see `sluice jobs list`")
    if len(typed) == ID_CHARACTERS:
        return typed
    found = [job async for page in job_pages(client) for job in page["jobs"] if job["id"].startswith(typed)]
    if not found:
        # A cluster of an earlier release has none.
        with contextlib.suppress(RefusedError):
            found = [
                job async for page in job_pages(client, HISTORY) for job in page["jobs"] if job["id"].startswith(typed)
            ]
    if not found:
        raise RefusedError(f"there is no job {typed!r}", "see `sluice jobs list`")
    if len(found) > 1:
        named = [f"{job['id']} ({job['name']}, {job['state']})" for job in found[:MAX_CANDIDATES]]
        more = [f"and {len(found) - MAX_CANDIDATES} more"] if len(found) > MAX_CANDIDATES else []
        raise UsageError(f"{typed!r} is the beginning of {len(found)} jobs:\n  " + "\n  ".join([*named, *more]))
    return str(found[0]["id"])
