"""The files that the JobManager stores for jobs, with owners and sizes."""

from __future__ import annotations

import hashlib

from sluice.runtime.jobmanager import JobBlob
from sluice.runtime.messages import Message
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.protocol import Call, PageQuery, Position, Route, may_act_on, paginate


class BlobList(Message, frozen=True):
    """A page of files of unfinished jobs, earliest job first. `bytes` is the total size of all files.

    Content that several files share is stored, and counted in `bytes`, once.
    """

    blobs: tuple[JobBlob, ...]
    bytes: int
    next: str | None


async def list_blobs(cluster: Cluster, call: Call[PageQuery]) -> BlobList:
    """List the files of unfinished jobs that the caller may see."""
    seen = [each for each in await cluster.dispatcher.blobs() if may_act_on(call.request, each.owner)]
    page, following = paginate(seen, call.query, _position)
    return BlobList(blobs=page, bytes=sum({each.sha256: each.size for each in seen}.values()), next=following)


def _position(blob: JobBlob) -> Position:
    named = hashlib.sha256(blob.name.encode()).hexdigest()[:16]
    return blob.submitted_at, f"{blob.job_id}-{named}"


ROUTES = (Route("GET", "/v1/blobs", "jobs.list", list_blobs),)
