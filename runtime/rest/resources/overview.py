"""The whole cluster: overview, health, and evidence of its connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from sluice.core import EgressRow
from sluice.runtime.jobmanager import EgressConnections, Overview, ServiceCounts
from sluice.runtime.messages import ConnectionEvidence, Evidence, JobState, Message
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.job_access import visible_job_ids
from sluice.runtime.rest.job_visibility import visible_connections
from sluice.runtime.rest.protocol import Call, NoQuery, Route

MAX_EGRESS_SHOWN = 1000
"""Maximum number of connections to the outside in a response; the latest ones are returned."""


class Connections(Message, frozen=True):
    """The latest mutual TLS connections, as their ends saw them. ``dropped`` is the number of earlier ones.

    ``egress`` are connections of jobs to the outside, as the TaskManager of the job's process saw them, oldest first.
    ``egress_dropped`` is the number of earlier ones. Connections that ended before ``egress_since`` (epoch seconds),
    when this JobManager became the leader, are only in the audit log.
    """

    connections: tuple[ConnectionEvidence, ...]
    dropped: int = 0
    egress: tuple[EgressRow, ...] = ()
    egress_dropped: int = 0
    egress_since: float = 0.0


async def overview_of(cluster: Cluster) -> Overview:
    """Get the cluster in numbers."""
    jobs, taskmanagers = await asyncio.gather(cluster.dispatcher.jobs(), cluster.resource_manager.taskmanagers())
    states = [job.state for job in jobs]
    return Overview(
        taskmanagers=len(taskmanagers),
        slots_total=sum(each.slots_total for each in taskmanagers),
        slots_available=sum(each.slots_free for each in taskmanagers),
        jobs_running=sum(not state.terminal for state in states),
        jobs_finished=states.count(JobState.FINISHED),
        jobs_cancelled=states.count(JobState.CANCELED),
        jobs_failed=states.count(JobState.FAILED),
        sluice_version=cluster.facts.sluice_version,
        spark_version=cluster.facts.spark_version,
        jobmanager=cluster.facts.jobmanager,
        trust_domain=cluster.facts.trust_domain,
        isolation=Counter(each.isolation for each in taskmanagers),
        egress=Counter(each.egress for each in taskmanagers),
    )


async def get_overview(cluster: Cluster, call: Call[NoQuery]) -> Overview:
    """Get the cluster in numbers."""
    return await overview_of(cluster)


async def get_health(cluster: Cluster, call: Call[NoQuery]) -> ServiceCounts:
    """Report that this JobManager accepts work, and its number of TaskManagers, to the program that started it."""
    return await cluster.resource_manager.service_counts()


async def list_connections(cluster: Cluster, call: Call[NoQuery]) -> Connections:
    """List the cluster's mutual TLS connections, including those of jobs that the caller may see."""
    seen, egress = await asyncio.gather(connections_seen(cluster, call), egress_seen(cluster, call))
    return Connections(
        connections=seen.connections, dropped=seen.dropped, egress=egress.rows, egress_since=egress.since
    )


async def connections_seen(cluster: Cluster, call: Call[Any]) -> Evidence:
    """The cluster's mutual TLS connections, without those of jobs that the caller may not see."""
    found = await cluster.resource_manager.connections()
    return Evidence(visible_connections(found.connections, await visible_job_ids(cluster, call)), found.dropped)


async def egress_seen(cluster: Cluster, call: Call[Any]) -> EgressConnections:
    """The latest outbound connections of jobs that the caller may see."""
    if cluster.egress is None:
        return EgressConnections()
    found, seen = await asyncio.gather(cluster.egress.egress_connections(""), visible_job_ids(cluster, call))
    rows = (row for row in found.rows if seen is None or row.job_id in seen)
    latest = sorted(rows, key=lambda row: row.opened_at)[-MAX_EGRESS_SHOWN:]
    return EgressConnections(rows=tuple(latest), since=found.since)


ROUTES = (
    Route("GET", "/v1/overview", "overview.read", get_overview),
    Route("GET", "/v1/connections", "connections.read", list_connections),
)
