"""The history: ended jobs that are kept after they have left the list of jobs."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.protocol import Call, Query, Route, cursor_at, may_act_on, position_of
from sluice.runtime.rest.resources.jobs import JobList

MAX_HISTORY_PAGE = 100
"""Jobs in one answer: each is read from the HA storage."""


class HistoryQuery(Query, frozen=True):
    """Which part of the history."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_HISTORY_PAGE, description="maximum number of items")] = (
        MAX_HISTORY_PAGE
    )
    after: Annotated[str, msgspec.Meta(max_length=160, description="`next` of the answer before")] = ""


async def list_history(cluster: Cluster, call: Call[HistoryQuery]) -> JobList:
    """List ended jobs that are kept and that the caller may see, those that ended last first.

    A page may have fewer jobs than `limit` and still a `next`: those that the caller may not see are left out.
    """
    before = position_of(call.query.after) if call.query.after else None
    page = await cluster.dispatcher.history(before, call.query.limit)
    return JobList(
        jobs=tuple(job for job in page.jobs if may_act_on(call.request, job.owner)),
        next=None if page.following is None else cursor_at(page.following),
    )


ROUTES = (Route("GET", "/v1/history", "jobs.list", list_history),)
