"""The files that the JobManager stores for jobs: owners and sizes."""

from __future__ import annotations

import hashlib

from sluice.runtime.jobmanager import JobBlob
from sluice.runtime.messages import Message
from sluice.runtime.rest.assertion import may_act_on
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.paging import PageQuery, Position, paginate
from sluice.runtime.rest.route import Call, Route


class BlobList(Message, frozen=True):
    """One page of files of jobs that have not ended, the earliest job first; of all of them, `bytes` together.

    What several files have in common is on disk, and in `bytes`, once.
    """

    blobs: tuple[JobBlob, ...]
    bytes: int
    next: str | None


async def list_blobs(cluster: Cluster, call: Call[PageQuery]) -> BlobList:
    """Files of the jobs that one may see and that have not ended."""
    seen = [each for each in await cluster.dispatcher.blobs() if may_act_on(call.request, each.owner)]
    page, following = paginate(seen, call.query, _position)
    return BlobList(blobs=page, bytes=sum({each.sha256: each.size for each in seen}.values()), next=following)


def _position(blob: JobBlob) -> Position:
    named = hashlib.sha256(blob.name.encode()).hexdigest()[:16]
    return blob.submitted_at, f"{blob.job_id}-{named}"


ROUTES = (Route("GET", "/v1/blobs", "jobs.list", list_blobs),)
