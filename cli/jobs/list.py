"""The list of jobs, page by page, and narrowed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from sluice.cli.errors import UsageError
from sluice.cli.jobs.follow import Reading
from sluice.runtime.messages import JobState

MAX_PAGE = 1000
"""Jobs in one answer."""
MAX_PAGES = 100


async def job_pages(client: Reading, **query: str | int) -> AsyncIterator[dict[str, Any]]:
    """``GET /v1/jobs`` page by page, the latest jobs first."""
    for _ in range(MAX_PAGES):
        page = await client.get("/v1/jobs", **query)
        yield page
        if not page.get("next"):
            return
        query["after"] = page["next"]


def wanted_states(given: Sequence[str]) -> frozenset[str]:
    """The states that are meant; empty: all. Raises :class:`UsageError` for what is none."""
    groups = {"ACTIVE": [each for each in JobState if not each.terminal]}
    groups["ENDED"] = [each for each in JobState if each.terminal]
    groups |= {each.value: [each] for each in JobState}
    unknown = [each for each in given if each.upper() not in groups]
    if unknown:
        raise UsageError(f"--state {unknown[0]!r} is no state of a job", f"one of active, ended, {', '.join(JobState)}")
    return frozenset(state.value for each in given for state in groups[each.upper()])


async def some_jobs(client: Reading, states: frozenset[str], owner: str, limit: int) -> list[dict[str, Any]]:
    """The latest ``limit`` jobs in one of ``states`` (empty: any), of ``owner`` (empty: anybody)."""
    found: list[dict[str, Any]] = []
    size = MAX_PAGE if states or owner else min(limit, MAX_PAGE)
    async for page in job_pages(client, limit=size):
        found += [job for job in page["jobs"] if (not states or job["state"] in states) and owner in {"", job["owner"]}]
        if len(found) >= limit:
            break
    return found[:limit]
