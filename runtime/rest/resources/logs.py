"""Logs of jobs."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sluice.runtime.jobmanager import LogNotFound
from sluice.runtime.messages import LogChunk, Message
from sluice.runtime.node import MAX_CHUNK_BYTES, LogUnreadable
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.job_access import JOB_ERRORS, require_visible
from sluice.runtime.rest.protocol import Call, Query, Route

DEFAULT_LOG_BYTES = 64 << 10
MAX_OFFSET = 1 << 60


class LogQuery(Query, frozen=True):
    """The piece of a log; without ``source``, the names of the logs."""

    source: str = ""
    offset: Annotated[int, msgspec.Meta(ge=0, le=MAX_OFFSET, description="in bytes")] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_CHUNK_BYTES, description="in bytes")] = DEFAULT_LOG_BYTES


class LogList(Message, frozen=True):
    """The names of the logs."""

    logs: tuple[str, ...]


class LogPiece(LogChunk, frozen=True):
    """A piece of a log; continue at ``next_offset``. ``end`` means that there is no more at present."""

    source: str


async def get_job_logs(cluster: Cluster, call: Call[LogQuery]) -> LogList | LogPiece:
    """List the names of a job's logs, or with ``source`` get a piece of one."""
    job_id, query = await require_visible(cluster, call), call.query
    if not query.source:
        return LogList(logs=await cluster.dispatcher.job_logs(job_id))
    chunk = await cluster.dispatcher.read_job_log(job_id, query.source, query.offset, query.limit)
    return LogPiece(source=query.source, **msgspec.structs.asdict(chunk))


ROUTES = (
    Route("GET", "/v1/jobs/{job_id}/logs", "jobs.logs", get_job_logs, errors=(*JOB_ERRORS, LogNotFound, LogUnreadable)),
)
