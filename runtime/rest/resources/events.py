"""Server-sent events of one job, of its logs, and of the whole cluster."""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
from aiohttp import web

from sluice.runtime.jobmanager import JobDetail, JobNotFound, LogNotFound
from sluice.runtime.jobmanager.dispatcher import Watch
from sluice.runtime.messages import Message
from sluice.runtime.node import LogUnreadable
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.job_access import JOB_ERRORS, require_visible, visible_jobs
from sluice.runtime.rest.protocol import (
    EVENT_STREAM,
    BadRequest,
    Call,
    EventStream,
    NoQuery,
    Query,
    Route,
    TooManyStreams,
    may_act_on,
)
from sluice.runtime.rest.resources.logs import MAX_OFFSET, LogPiece
from sluice.runtime.rest.resources.overview import overview_of

LOOK_SECONDS = 0.5
"""How often logs, and changes of the cluster without a notification, are polled."""
PIECE_BYTES = 64 << 10
LAST_EVENT = "last-event-id"


class Gone(Message, frozen=True):
    """A job that was deleted."""

    id: str


class LogStreamQuery(Query, frozen=True):
    """The log and the start offset."""

    source: Annotated[str, msgspec.Meta(min_length=1, max_length=100)] = "driver.stdout"
    offset: Annotated[
        int, msgspec.Meta(ge=0, le=MAX_OFFSET, description="in bytes; Last-Event-ID takes precedence")
    ] = 0


class EventsQuery(Query, frozen=True):
    """The initial events of a cluster stream."""

    present: Annotated[bool, msgspec.Meta(description="whether to begin with all existing jobs")] = True


def version_of(detail: JobDetail) -> str:
    """A digest of ``detail`` without its duration. It is the same on every JobManager."""
    same = msgspec.structs.replace(detail, duration_ms=0)
    return hashlib.sha256(msgspec.json.encode(same)).hexdigest()[:32]


async def stream_job(cluster: Cluster, call: Call[NoQuery]) -> web.StreamResponse:
    """Stream changes of a job: an event `job` at once and after each change, `end` after its last state.

    The id of an event is the version of the job; a client that reconnects with it receives only what is new. Changes
    that follow each other faster than they are read are merged into one event.
    """
    job_id = await require_visible(cluster, call)

    async def produce(stream: EventStream) -> None:
        known = call.request.headers.get(LAST_EVENT, "")[:64]
        with cluster.feed.watching(job_id) as watch:
            while not stream.over:
                detail = await cluster.dispatcher.job(job_id)
                version = version_of(detail)
                if version != known:
                    await stream.send("job", detail, version)
                    known = version
                if detail.state.terminal:
                    await stream.send("end", Gone(id=job_id))
                    return
                await _next(watch, stream)

    return await cluster.streams.serve(call, produce)


async def stream_job_log(cluster: Cluster, call: Call[LogStreamQuery]) -> web.StreamResponse:
    """Stream a log of a job: events `log` with pieces, `end` when the job has ended and everything was sent.

    The id of an event is the offset after it, in bytes; a client that reconnects with it misses nothing.
    """
    job_id, source = await require_visible(cluster, call), call.query.source
    await cluster.dispatcher.read_job_log(job_id, source, 0, 1)

    async def produce(stream: EventStream) -> None:
        offset = _offset(call)
        with cluster.feed.watching(job_id) as watch:
            while not stream.over:
                ended = (await cluster.dispatcher.job(job_id)).state.terminal
                chunk = await cluster.dispatcher.read_job_log(job_id, source, offset, PIECE_BYTES)
                if chunk.data:
                    piece = LogPiece(source=source, **msgspec.structs.asdict(chunk))
                    await stream.send("log", piece, str(chunk.next_offset))
                    offset = chunk.next_offset
                if chunk.end and ended:
                    await stream.send("end", Gone(id=job_id))
                    return
                if chunk.end:
                    await _next(watch, stream)

    return await cluster.streams.serve(call, produce)


async def stream_cluster(cluster: Cluster, call: Call[EventsQuery]) -> web.StreamResponse:
    """Stream changes of the cluster: events `job` (a summary), `removed` (a job was deleted) and `overview`.

    Jobs that the caller may not see are left out. The stream begins with all jobs and the overview, or only with the
    overview. Changes that follow each other faster than they are read are merged into one event.
    """

    async def produce(stream: EventStream) -> None:
        with cluster.feed.watching() as watch:
            # The owner of a removed job is no longer known, so every caller that could see it before is told.
            seen: set[str] = set()
            for summary in reversed(await visible_jobs(cluster, call)):
                seen.add(summary.id)
                if call.query.present:
                    await stream.send("job", summary)
            shown = None
            while not stream.over:
                overview = await overview_of(cluster)
                if overview != shown:
                    await stream.send("overview", overview)
                    shown = overview
                for job_id in await _next(watch, stream):
                    try:
                        detail = await cluster.dispatcher.job(job_id)
                    except JobNotFound:
                        if call.who.any_owner or job_id in seen:
                            seen.discard(job_id)
                            await stream.send("removed", Gone(id=job_id))
                    else:
                        if may_act_on(call.request, detail.owner):
                            seen.add(job_id)
                            await stream.send("job", detail.summary())

    return await cluster.streams.serve(call, produce)


async def _next(watch: Watch, stream: EventStream) -> tuple[str, ...]:
    """Wait for a change, but only briefly: some changes come without a notification."""
    changed = await watch.changed(LOOK_SECONDS)
    if not changed:
        await stream.breathe()
    return changed


def _offset(call: Call[LogStreamQuery]) -> int:
    last = call.request.headers.get(LAST_EVENT, "")
    if not last:
        return call.query.offset
    if not (last.isascii() and last.isdigit()) or len(last) > 19:
        raise BadRequest(f"Last-Event-ID is {last[:40]!r}, which is not an offset")
    return int(last)


ROUTES = (
    Route("GET", "/v1/events", "events.read", stream_cluster, media=EVENT_STREAM, errors=(TooManyStreams,)),
    Route(
        "GET",
        "/v1/jobs/{job_id}/events",
        "jobs.read",
        stream_job,
        media=EVENT_STREAM,
        errors=(*JOB_ERRORS, TooManyStreams),
    ),
    Route(
        "GET",
        "/v1/jobs/{job_id}/logs/stream",
        "jobs.logs",
        stream_job_log,
        media=EVENT_STREAM,
        errors=(*JOB_ERRORS, LogNotFound, LogUnreadable, TooManyStreams),
    ),
)
