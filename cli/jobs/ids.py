"""Job ids as people type them: whole, or as much of the beginning as no other job shares."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from sluice.cli.errors import RefusedError, UsageError
from sluice.cli.jobs.follow import Reading
from sluice.cli.jobs.list import job_pages

ID_CHARACTERS = 32
MAX_CANDIDATES = 10
"""Candidates that are named when an id is ambiguous."""

_TYPED = re.compile(r"[A-Za-z0-9_-]{1,32}")

JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="Id of the job, or the beginning of it that no other job has.")
]


async def whole_id(client: Reading, typed: str) -> str:
    """The id of the one job that ``typed`` means; only for a part of one is the list of jobs asked for.

    Raises:
        UsageError: that can be no id, or several jobs begin with it.
        RefusedError: no job begins with it.
    """
    if not _TYPED.fullmatch(typed):
        raise UsageError(f"{typed[:80]!r} is no id of a job", "see `sluice jobs list`")
    if len(typed) == ID_CHARACTERS:
        return typed
    found = [job async for page in job_pages(client) for job in page["jobs"] if job["id"].startswith(typed)]
    if not found:
        raise RefusedError(f"there is no job {typed!r}", "see `sluice jobs list`")
    if len(found) > 1:
        named = [f"{job['id']} ({job['name']}, {job['state']})" for job in found[:MAX_CANDIDATES]]
        more = [f"and {len(found) - MAX_CANDIDATES} more"] if len(found) > MAX_CANDIDATES else []
        raise UsageError(f"{typed!r} is the beginning of {len(found)} jobs:\n  " + "\n  ".join([*named, *more]))
    return str(found[0]["id"])
