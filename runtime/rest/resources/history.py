"""The history: ended jobs that are kept after they leave the list of jobs."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.protocol import Call, Query, Route, cursor_at, may_act_on, position_of
from sluice.runtime.rest.resources.jobs import JobList

MAX_HISTORY_PAGE = 100
"""Maximum number of jobs in a response; each is read from the HA storage."""


class HistoryQuery(Query, frozen=True):
    """The part of the history."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_HISTORY_PAGE, description="maximum number of items")] = (
        MAX_HISTORY_PAGE
    )
    after: Annotated[str, msgspec.Meta(max_length=160, description="`next` of the previous response")] = ""


async def list_history(cluster: Cluster, call: Call[HistoryQuery]) -> JobList:
    """List the ended jobs in the history that the caller may see, the latest to end first.

    A page may have fewer jobs than `limit` although there is a `next`: jobs that the caller may not see are left out.
    """
    before = position_of(call.query.after) if call.query.after else None
    page = await cluster.dispatcher.history(before, call.query.limit)
    return JobList(
        jobs=tuple(job for job in page.jobs if may_act_on(call.request, job.owner)),
        next=None if page.following is None else cursor_at(page.following),
    )


ROUTES = (Route("GET", "/v1/history", "jobs.list", list_history),)
