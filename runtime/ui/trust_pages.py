"""The trust map of the cluster and of each job."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from sluice.core import EgressMode
from sluice.core.pages import HTML
from sluice.runtime.messages import ConnectionEvidence
from sluice.runtime.rest import (
    JOB_ERRORS,
    Call,
    Cluster,
    NoQuery,
    Route,
    TrustFacts,
    anchor_tone,
    require_visible,
    visible_jobs,
)
from sluice.runtime.rest.resources import connections_seen
from sluice.runtime.sandbox import IsolationLevel
from sluice.runtime.ui.page import page, render
from sluice.runtime.ui.trust_map import TrustMap, trust_map
from sluice.runtime.ui.trust_members import Registered, ended_of, of_active_jobs, shuffle_workers
from sluice.runtime.ui.trust_outside import EgressDestination, egress_destinations
from sluice.runtime.ui.trust_picture import draw
from sluice.runtime.ui.trust_warnings import trust_warnings

MAX_JOBS_ON_THE_MAP = 6
REST_CHANNEL = "rest"
WEAKEST_FIRST = (IsolationLevel.NONE, IsolationLevel.UID, IsolationLevel.SANDBOX)
LOOSEST_FIRST = (EgressMode.OFF, EgressMode.AUDIT, EgressMode.ENFORCE)


@page
async def show_trust(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """The trust map of the cluster's own processes and channels."""
    found = await _of_cluster(cluster, call)
    return await render(
        call,
        "trust.html",
        now=found.now,
        map=found.map,
        picture=draw(found.map),
        facts=found.facts,
        anchors=[(each, anchor_tone(each, found.now)) for each in found.facts.anchors],
        omitted=found.omitted,
        isolation=found.isolation,
        weakest=next((each for each in WEAKEST_FIRST if found.isolation.get(each)), None),
        egress=found.egress,
        loosest=next((each for each in LOOSEST_FIRST if found.egress.get(each)), None),
    )


@page
async def show_concerns(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """A part of the overview: warnings about the cluster's trust."""
    found = await _of_cluster(cluster, call)
    concerns = trust_warnings(found.map, found.facts, found.now, found.isolation)
    processes = len(found.map.processes)
    return await render(call, "part_concerns.html", concerns=concerns, processes=processes, facts=found.facts)


@page
async def show_trust_of_jobs(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """A part of the trust map: a placeholder for each running job, since maps of jobs need another operation."""
    running = [job for job in await visible_jobs(cluster, call) if not job.state.terminal]
    more = max(0, len(running) - MAX_JOBS_ON_THE_MAP)
    return await render(call, "part_trust.html", jobs=running[:MAX_JOBS_ON_THE_MAP], more=more)


@page
async def show_job_trust(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """The trust map of one job."""
    return await _of_job(cluster, call, "job_trust.html")


@page
async def show_job_trust_part(cluster: Cluster, call: Call[NoQuery]) -> web.Response:
    """The trust map of one job as a part of the cluster's page."""
    return await _of_job(cluster, call, "part_job_trust.html")


@dataclass(frozen=True, slots=True)
class ClusterMap:
    """The map of the cluster, the authorities that the JobManager trusts, the number of ended processes that are left
    out, and the number of TaskManagers by isolation level and egress mode."""

    map: TrustMap
    facts: TrustFacts
    now: float
    omitted: int
    isolation: Mapping[IsolationLevel, int]
    egress: Mapping[EgressMode, int]


async def _of_cluster(cluster: Cluster, call: Call[NoQuery]) -> ClusterMap:
    evidence, jobs, workers, taskmanagers = await asyncio.gather(
        connections_seen(cluster, call),
        cluster.dispatcher.jobs(),
        shuffle_workers(cluster),
        cluster.resource_manager.taskmanagers(),
    )
    connections, left_out = of_active_jobs(evidence.connections, jobs)
    facts, now = await asyncio.to_thread(cluster.trust), time.time()
    leader = cluster.facts.jobmanager
    # The gateway shows no identity over the Unix socket, but this request proves that there is a gateway.
    gateway = f"spiffe://{cluster.facts.trust_domain}/gateway/envoy"
    local = [(REST_CHANNEL, gateway, leader)]
    found = await asyncio.to_thread(_map, connections, facts, now, local=local, registered=workers)
    levels, modes = (each.isolation for each in taskmanagers), (each.egress for each in taskmanagers)
    return ClusterMap(found, facts, now, left_out, Counter(levels), Counter(modes))


async def _of_job(cluster: Cluster, call: Call[Any], template: str) -> web.Response:
    job_id = await require_visible(cluster, call)
    evidence, job = await asyncio.gather(cluster.dispatcher.job_connections(job_id), cluster.dispatcher.job(job_id))
    facts, now = await asyncio.to_thread(cluster.trust), time.time()
    rows = () if cluster.egress is None else (await cluster.egress.egress_connections(job_id)).rows
    outside = egress_destinations(rows, cluster.facts.trust_domain)
    seen = {one for each in evidence.connections for one in (each.local, each.peer)}
    ended = ended_of(job, seen | {each.process for each in outside})
    found = await asyncio.to_thread(_map, evidence.connections, facts, now, ended=ended, outside=outside)
    picture = draw(found, of_a_job=True)
    return await render(
        call, template, now=now, job_id=job_id, map=found, picture=picture, facts=facts, dropped=evidence.dropped
    )


def _map(
    connections: Sequence[ConnectionEvidence],
    facts: TrustFacts,
    now: float,
    *,
    local: Sequence[tuple[str, str, str]] = (),
    ended: Collection[str] = (),
    registered: Sequence[Registered] = (),
    outside: Sequence[EgressDestination] = (),
) -> TrustMap:
    own = None if facts.own is None else (facts.identity, facts.own)
    return trust_map(
        connections,
        now=now,
        local=local,
        audit=facts.audit,
        own=own,
        ended=ended,
        registered=registered,
        outside=outside,
    )


TRUST_PAGES: tuple[Route, ...] = (
    Route("GET", "/ui/trust", "connections.read", show_trust, media=HTML),
    Route("GET", "/ui/parts/trust", "jobs.list", show_trust_of_jobs, media=HTML),
    Route("GET", "/ui/parts/concerns", "connections.read", show_concerns, media=HTML),
    Route("GET", "/ui/jobs/{job_id}/trust", "jobs.connections", show_job_trust, media=HTML, errors=JOB_ERRORS),
    Route("GET", "/ui/parts/trust/{job_id}", "jobs.connections", show_job_trust_part, media=HTML, errors=JOB_ERRORS),
)
