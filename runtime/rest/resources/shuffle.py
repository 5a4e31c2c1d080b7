"""The shuffle service: its workers, and what jobs keep there."""

from __future__ import annotations

from runtime.jobmanager.errors import JobNotFound
from runtime.messages import Message
from runtime.rest.cluster import Cluster
from runtime.rest.jobs import job_id_of
from runtime.rest.route import Call, NoQuery, Nothing, Reply, Route
from runtime.shuffle.manager_link import ShuffleManagerLink
from runtime.shuffle.messages import ShuffleJobView, ShuffleOverview
from runtime.shuffle.service_errors import NoShuffleService, ShuffleNotEnabled, WorkerUnknown


class ShuffleView(Message, frozen=True):
    """``enabled``: whether the shuffles of jobs go through the service; without it there is nothing else."""

    enabled: bool
    service: ShuffleOverview | None = None


class JobShuffleView(Message, frozen=True):
    """What one job keeps in the service; null when it keeps nothing, or not any more."""

    shuffle: ShuffleJobView | None


async def get_shuffle(cluster: Cluster, call: Call[NoQuery]) -> ShuffleView:
    """The shuffle service: all of its workers, and the jobs of this cluster in it."""
    if cluster.shuffle is None:
        return ShuffleView(enabled=False)
    return ShuffleView(enabled=True, service=await cluster.shuffle.overview())


async def get_job_shuffle(cluster: Cluster, call: Call[NoQuery]) -> JobShuffleView:
    """What a job keeps in the shuffle service now, and what it has moved."""
    job_id = job_id_of(call)
    await cluster.dispatcher.job(job_id)
    if cluster.shuffle is None:
        return JobShuffleView(shuffle=None)
    jobs = (await cluster.shuffle.overview()).jobs
    return JobShuffleView(shuffle=next((each for each in jobs if each.job_id == job_id), None))


async def drain_shuffle_worker(cluster: Cluster, call: Call[NoQuery]) -> Reply[Nothing]:
    """Give a worker no new shuffles; it can be stopped when it is DRAINED."""
    await _service(cluster).drain(call.path["worker"])
    return Reply(Nothing())


async def resume_shuffle_worker(cluster: Cluster, call: Call[NoQuery]) -> Reply[Nothing]:
    """Let a worker that was drained take part again."""
    await _service(cluster).drain(call.path["worker"], wanted=False)
    return Reply(Nothing())


def _service(cluster: Cluster) -> ShuffleManagerLink:
    if cluster.shuffle is None:
        raise ShuffleNotEnabled("this cluster does not use the shuffle service", "set shuffle.enabled")
    return cluster.shuffle


ROUTES = (
    Route("GET", "/v1/shuffle", "shuffle.read", get_shuffle, errors=(NoShuffleService,)),
    Route("GET", "/v1/jobs/{job_id}/shuffle", "shuffle.read", get_job_shuffle, errors=(JobNotFound, NoShuffleService)),
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
