"""The shuffle service: its workers, and the data that jobs store there."""

from __future__ import annotations

from typing import Any

import msgspec

from sluice.runtime.messages import Message
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.job_access import JOB_ERRORS, require_visible, visible_jobs
from sluice.runtime.rest.protocol import Call, NoQuery, Nothing, Reply, Route
from sluice.runtime.shuffle.control_plane import (
    NoShuffleService,
    ShuffleJobView,
    ShuffleManagerLink,
    ShuffleNotEnabled,
    ShuffleOverview,
    WorkerUnknown,
)


class ShuffleView(Message, frozen=True):
    """The shuffle service. ``enabled`` tells whether jobs use it; if not, ``service`` is null."""

    enabled: bool
    service: ShuffleOverview | None = None


class JobShuffleView(Message, frozen=True):
    """The data that a job stores in the service; null if it stores nothing, or no longer stores anything."""

    shuffle: ShuffleJobView | None


async def get_shuffle(cluster: Cluster, call: Call[NoQuery]) -> ShuffleView:
    """Get the shuffle service: all workers, and the jobs of this cluster that the caller may see."""
    service = await service_seen(cluster, call)
    return ShuffleView(enabled=service is not None, service=service)


async def service_seen(cluster: Cluster, call: Call[Any]) -> ShuffleOverview | None:
    """The service without jobs that the caller may not see; None if the cluster does not use it."""
    if cluster.shuffle is None:
        return None
    service, seen = await cluster.shuffle.overview(), {job.id for job in await visible_jobs(cluster, call)}
    workers = [
        msgspec.structs.replace(
            each,
            report=msgspec.structs.replace(
                each.report, jobs=tuple(job for job in each.report.jobs if job.job_id in seen)
            ),
        )
        for each in service.workers
    ]
    jobs = tuple(job for job in service.jobs if job.job_id in seen)
    return msgspec.structs.replace(service, workers=tuple(workers), jobs=jobs)


async def get_job_shuffle(cluster: Cluster, call: Call[NoQuery]) -> JobShuffleView:
    """Get the data that a job stores in the shuffle service, and the amount that it has transferred."""
    return JobShuffleView(shuffle=await shuffle_of(cluster, await require_visible(cluster, call)))


async def shuffle_of(cluster: Cluster, job_id: str) -> ShuffleJobView | None:
    """The data that this job stores in the service; None if it stores nothing."""
    if cluster.shuffle is None:
        return None
    return next((each for each in (await cluster.shuffle.overview()).jobs if each.job_id == job_id), None)


async def drain_shuffle_worker(cluster: Cluster, call: Call[NoQuery]) -> Reply[Nothing]:
    """Drain a worker: it gets no new shuffles, and can be stopped once it is DRAINED."""
    await _service(cluster).drain(call.path["worker"])
    return Reply(Nothing())


async def resume_shuffle_worker(cluster: Cluster, call: Call[NoQuery]) -> Reply[Nothing]:
    """Resume a drained worker."""
    await _service(cluster).drain(call.path["worker"], wanted=False)
    return Reply(Nothing())


def _service(cluster: Cluster) -> ShuffleManagerLink:
    if cluster.shuffle is None:
        raise ShuffleNotEnabled("this cluster does not use the shuffle service", "set shuffle.enabled")
    return cluster.shuffle


ROUTES = (
    Route("GET", "/v1/shuffle", "shuffle.read", get_shuffle, errors=(NoShuffleService,)),
    Route("GET", "/v1/jobs/{job_id}/shuffle", "shuffle.read", get_job_shuffle, errors=(*JOB_ERRORS, NoShuffleService)),
    Route(
        "POST",
        "/v1/shuffle/workers/{worker}/drain",
        "shuffle.drain",
        drain_shuffle_worker,
        status=202,
        errors=(WorkerUnknown, ShuffleNotEnabled, NoShuffleService),
    ),
    Route(
        "POST",
        "/v1/shuffle/workers/{worker}/resume",
        "shuffle.drain",
        resume_shuffle_worker,
        status=202,
        errors=(WorkerUnknown, ShuffleNotEnabled, NoShuffleService),
    ),
)
