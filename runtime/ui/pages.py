"""The handlers of the dashboard: they query an endpoint and render a template. Other modules prepare the content.

Each page requires the operation of the data that it shows, so it never shows more than REST would return
(docs/reference/dashboard.md).
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Annotated

import msgspec
from aiohttp import web

from sluice.core.pages import HTML
from sluice.runtime.jobmanager import LogNotFound
from sluice.runtime.messages import JobState, LogChunk
from sluice.runtime.node import MAX_CHUNK_BYTES, LogUnreadable
from sluice.runtime.rest import JOB_ERRORS, Call, Cluster, NoQuery, Query, Route, require_visible, visible_jobs
from sluice.runtime.rest.resources import MAX_OFFSET, get_overview, leader_of, taskmanagers_seen
from sluice.runtime.ui.job_pages import (
    MAX_SEARCH_CHARACTERS,
    JobFilter,
    bars,
    failures_worth_a_look,
    history,
    page_of,
    recent,
)
from sluice.runtime.ui.page import page, render
from sluice.runtime.ui.plan_picture import draw_plan, view_of
from sluice.runtime.ui.queue_pages import QUEUE_PAGES
from sluice.runtime.ui.shuffle_pages import SHUFFLE_PAGES
from sluice.runtime.ui.trust_pages import TRUST_PAGES

MAX_TASKMANAGERS_ON_THE_OVERVIEW = 24


class JobsQuery(Query, frozen=True):
    """The filter for jobs, and the page number."""

    state: Annotated[str, msgspec.Meta(max_length=20)] = ""
    text: Annotated[str, msgspec.Meta(max_length=MAX_SEARCH_CHARACTERS)] = ""
    page: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1


class LogPageQuery(Query, frozen=True):
    """The log, and the start offset."""

    source: Annotated[str, msgspec.Meta(max_length=200)] = ""
    offset: Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET)] = 0


async def show_root(cluster: Cluster, call: Call[NoQuery]) -> web.Response:  # noqa: ARG001
    """Redirect the root path to the dashboard."""
    return web.Response(status=HTTPStatus.SEE_OTHER, headers={"location": "/ui"})


@page
async def show_overview(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """The overview: the page contains the numbers; the lists are parts with operations of their own."""
    return await render(call, "overview.html", seen=await get_overview(cluster, call))


@page
async def show_jobs(cluster: Cluster, call: Call[JobsQuery]) -> web.Response:
    """The jobs, page by page."""
    wanted = JobFilter(call.query.state, call.query.text)
    found = page_of(await visible_jobs(cluster, call), wanted, call.query.page)
    return await render(call, "jobs.html", page=found, wanted=wanted, states=[state.value for state in JobState])


@page
async def show_recent_jobs(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """A part of the overview: running, recent and failed jobs."""
    jobs = await visible_jobs(cluster, call)
    return await render(call, "part_jobs.html", jobs=recent(jobs), worrying=failures_worth_a_look(jobs, time.time()))


@page
async def show_job(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """The page of one job."""
    detail = await cluster.dispatcher.job(await require_visible(cluster, call))
    table = (await cluster.dispatcher.job_record(detail.id)).stages
    return await render(
        call,
        "job.html",
        job=detail,
        spark_ui=await cluster.dispatcher.job_ui_state(detail.id),
        steps=history(detail),
        bars=bars(detail),
        picture=draw_plan(table.stages),
        stages=[view_of(each) for each in table.stages],
        left_out=table.left_out,
    )


@page
async def show_logs(cluster: Cluster, call: Call[LogPageQuery]) -> web.Response:
    """The logs of a job: a piece of one log. A script follows the log from there."""
    job_id, dispatcher = await require_visible(cluster, call), cluster.dispatcher
    sources = await dispatcher.job_logs(job_id)
    source = call.query.source or next(iter(sources), "")
    chunk = LogChunk(data="", offset=0, next_offset=0, end=True)
    if source:
        chunk = await dispatcher.read_job_log(job_id, source, call.query.offset, MAX_CHUNK_BYTES)
    return await render(call, "logs.html", job_id=job_id, sources=sources, source=source, chunk=chunk)


@page
async def show_exceptions(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """A part of a job's page: its exceptions, latest first."""
    job_id = await require_visible(cluster, call)
    record = await cluster.dispatcher.job_record(job_id)
    return await render(call, "part_exceptions.html", job_id=job_id, exceptions=record.exceptions[::-1])


@page
async def show_checkpoints(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """A part of a job's page: the checkpoints of a streaming job and the requested savepoints."""
    job_id, dispatcher = await require_visible(cluster, call), cluster.dispatcher
    detail, record = await dispatcher.job(job_id), await dispatcher.job_record(job_id)
    return await render(
        call, "part_checkpoints.html", job=detail, found=record.checkpoints, savepoints=record.savepoints[::-1]
    )


@page
async def show_leader(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """A part of the overview: the leader, its start, and the standbys."""
    return await render(call, "part_leader.html", leader=await leader_of(cluster), mode=cluster.config.ha.mode)


@page
async def show_taskmanagers(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """The page of all TaskManagers and their slots."""
    return await render(call, "taskmanagers.html", taskmanagers=await taskmanagers_seen(cluster, call))


@page
async def show_slots(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """A part of the overview: the first TaskManagers and their slots."""
    found = await taskmanagers_seen(cluster, call)
    return await render(
        call,
        "part_taskmanagers.html",
        taskmanagers=found[:MAX_TASKMANAGERS_ON_THE_OVERVIEW],
        more=max(0, len(found) - MAX_TASKMANAGERS_ON_THE_OVERVIEW),
    )


PAGES: tuple[Route, ...] = (
    Route("GET", "/", "overview.read", show_root, status=HTTPStatus.SEE_OTHER, media=HTML),
    Route("GET", "/ui", "overview.read", show_overview, media=HTML),
    Route("GET", "/ui/jobs", "jobs.list", show_jobs, media=HTML),
    Route("GET", "/ui/parts/leader", "leader.read", show_leader, media=HTML),
    Route("GET", "/ui/parts/jobs", "jobs.list", show_recent_jobs, media=HTML),
    Route("GET", "/ui/jobs/{job_id}", "jobs.read", show_job, media=HTML, errors=JOB_ERRORS),
    Route(
        "GET",
        "/ui/jobs/{job_id}/logs",
        "jobs.logs",
        show_logs,
        media=HTML,
        errors=(*JOB_ERRORS, LogNotFound, LogUnreadable),
    ),
    Route("GET", "/ui/parts/exceptions/{job_id}", "jobs.exceptions", show_exceptions, media=HTML, errors=JOB_ERRORS),
    Route("GET", "/ui/parts/checkpoints/{job_id}", "jobs.checkpoints", show_checkpoints, media=HTML, errors=JOB_ERRORS),
    Route("GET", "/ui/taskmanagers", "taskmanagers.read", show_taskmanagers, media=HTML),
    Route("GET", "/ui/parts/taskmanagers", "taskmanagers.read", show_slots, media=HTML),
    *QUEUE_PAGES,
    *SHUFFLE_PAGES,
    *TRUST_PAGES,
)
"""Pages change nothing. Changes are REST requests with the CSRF token."""
