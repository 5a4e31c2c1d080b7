"""The page about queues: how jobs share the executor slots, and what they wait for."""

from __future__ import annotations

from aiohttp import web

from sluice.core.pages import HTML
from sluice.runtime.rest import Call, Cluster, NoQuery, Route, visible_jobs
from sluice.runtime.rest.resources import queues_seen
from sluice.runtime.ui.page import page, render


@page
async def show_queues(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """The queues and jobs that the caller may see."""
    return await render(
        call,
        "queues.html",
        configured=bool(cluster.config.scheduling.queues),
        preemption=cluster.config.scheduling.preempts,
        queues=await queues_seen(cluster, call),
        names={job.id: job.name for job in await visible_jobs(cluster, call)},
    )


QUEUE_PAGES: tuple[Route, ...] = (Route("GET", "/ui/queues", "queues.read", show_queues, media=HTML),)
