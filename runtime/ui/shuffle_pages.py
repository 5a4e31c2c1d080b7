"""Pages about the shuffle service: its workers, and the data of jobs that the caller may see."""

from __future__ import annotations

from aiohttp import web

from sluice.core.pages import HTML
from sluice.runtime.rest import JOB_ERRORS, Call, Cluster, NoQuery, Route, require_visible, visible_jobs
from sluice.runtime.rest.resources import service_seen, shuffle_of
from sluice.runtime.shuffle.control_plane import NoShuffleService, ShuffleOverview
from sluice.runtime.ui.page import page, render
from sluice.runtime.ui.shuffle_facts import job_rows, space_left, tally, worker_rows


@page
async def show_shuffle(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """The page of the shuffle service."""
    service, away = await _service(cluster, call)
    names = {job.id: job.name for job in await visible_jobs(cluster, call)}
    return await render(
        call,
        "shuffle.html",
        enabled=cluster.shuffle is not None,
        away=away,
        service=service,
        space_left=space_left(service),
        counts=tally(service),
        workers=worker_rows(service),
        jobs=job_rows(service, names),
    )


@page
async def show_shuffle_workers(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """A part of the overview: the shuffle workers by state."""
    service, away = await _service(cluster, call)
    return await render(
        call,
        "part_shuffle.html",
        enabled=cluster.shuffle is not None,
        away=away,
        counts=tally(service),
        workers=worker_rows(service),
    )


@page
async def show_shuffle_of_job(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """A part of a job's page: the data that it stores in the shuffle service now."""
    job_id = await require_visible(cluster, call)
    try:
        kept = await shuffle_of(cluster, job_id)
    except NoShuffleService:
        kept = None
    return await render(call, "part_job_shuffle.html", job_id=job_id, kept=kept)


async def _service(cluster: Cluster, call: Call[NoQuery]) -> tuple[ShuffleOverview | None, str]:
    """The service, or the reason why it is not available, so that the page can show the reason."""
    try:
        return await service_seen(cluster, call), ""
    except NoShuffleService as error:
        return None, error.what


SHUFFLE_PAGES: tuple[Route, ...] = (
    Route("GET", "/ui/shuffle", "shuffle.read", show_shuffle, media=HTML),
    Route("GET", "/ui/parts/shuffle", "shuffle.read", show_shuffle_workers, media=HTML),
    Route("GET", "/ui/parts/shuffle/{job_id}", "shuffle.read", show_shuffle_of_job, media=HTML, errors=JOB_ERRORS),
)
