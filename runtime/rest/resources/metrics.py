"""Metrics of the cluster for Prometheus."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from aiohttp import web

from sluice.core import CONTENT_TYPE, PROCESS, Sample, SluiceError, exposition, families, merge
from sluice.runtime.jobmanager import QueueView
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.protocol import PLAIN_TEXT, Call, NoQuery, Route
from sluice.runtime.rest.resources.overview import overview_of
from sluice.runtime.shuffle.control_plane import shuffle_metrics

SHUFFLE_SECONDS = 3.0


async def get_metrics(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """Get the metrics of the JobManager, the processes of its home, and all TaskManagers.

    Metrics of ShuffleWorkers are from their last report to the ShuffleManager. The label `process` names the process of
    a sample. Processes that do not respond in time are left out.
    """
    found = await asyncio.gather(cluster.diagnostics.metrics(), _samples(cluster), _shuffle(cluster))
    text = merge([found[0], exposition(families(found[1])), found[2]])
    return web.Response(body=text.encode(), headers={"content-type": CONTENT_TYPE})


async def _samples(cluster: Cluster) -> Iterable[Sample]:
    """The leader's metrics of the cluster."""
    overview, jobs = await overview_of(cluster), await cluster.dispatcher.jobs()
    queues = await cluster.resource_manager.queues()
    label = {PROCESS: cluster.diagnostics.process}
    states = Counter(job.state.value for job in jobs)
    return [
        Sample("sluice_leader_epoch", "gauge", "Epoch of the leader.", cluster.leader.epoch, label),
        Sample("sluice_taskmanagers", "gauge", "Registered TaskManagers.", overview.taskmanagers, label),
        Sample("sluice_slots", "gauge", "Slots of all TaskManagers.", overview.slots_total, label),
        Sample("sluice_slots_available", "gauge", "Slots that are free.", overview.slots_available, label),
        *(
            Sample("sluice_jobs", "gauge", "Known jobs, by state.", count, {**label, "state": state})
            for state, count in sorted(states.items())
        ),
        *_queues(queues, label),
    ]


def _queues(queues: Iterable[QueueView], label: Mapping[str, str]) -> Iterator[Sample]:
    for each in queues:
        mine = {**label, "queue": each.name}
        yield Sample("sluice_queue_share", "gauge", "Share of the cluster that a queue's jobs hold.", each.share, mine)
        yield Sample(
            "sluice_queue_below_guarantee",
            "gauge",
            "1 while a job of a queue waits for a slot within the queue's guarantee.",
            float(each.below_guarantee),
            mine,
        )
        yield Sample("sluice_queue_slots", "gauge", "Slots that a queue's jobs hold.", each.slots, mine)
        yield Sample("sluice_queue_slots_lacking", "gauge", "Slots that a queue's jobs wait for.", each.lacking, mine)
        yield Sample("sluice_queue_jobs_waiting", "gauge", "Jobs of a queue that lack slots.", each.jobs_waiting, mine)
        yield Sample(
            "sluice_queue_preempted_total",
            "counter",
            "Slots that were preempted from a queue's jobs.",
            each.preempted,
            mine,
        )


async def _shuffle(cluster: Cluster) -> str:
    """The metrics of the shuffle service; empty if it does not respond in time."""
    if cluster.shuffle is None:
        return ""
    try:
        async with asyncio.timeout(SHUFFLE_SECONDS):
            return exposition(shuffle_metrics(await cluster.shuffle.overview()), cluster.diagnostics.process)
    except (SluiceError, TimeoutError):
        return ""


ROUTES = (Route("GET", "/v1/metrics", "metrics.read", get_metrics, media=PLAIN_TEXT),)
