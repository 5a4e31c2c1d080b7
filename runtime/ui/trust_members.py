"""Processes that are known without connections: those that are registered, and those that have ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sluice.core import PkiError, SluiceError
from sluice.core.pages import Tone
from sluice.pki import Channel, Role, SpiffeId
from sluice.runtime.jobmanager import JobDetail, JobSummary
from sluice.runtime.messages import ConnectionEvidence
from sluice.runtime.rest import Cluster
from sluice.runtime.shuffle.control_plane import ShuffleOverview, WorkerState

SHUFFLE_SECONDS = 2.0
"""How long a page waits for the list of shuffle workers. Without an answer they are not on the map."""
_RUNNING = frozenset({"LAUNCHING", "RUNNING", "STOPPING"})
_TONES: dict[WorkerState, Tone] = {WorkerState.LOST: "bad", WorkerState.EXCLUDED: "warn"}


@dataclass(frozen=True, slots=True)
class Registered:
    """A process that is registered at ``keeper``, whether or not a connection between them was seen."""

    channel: str
    identity: str
    keeper: str
    state: str
    tone: Tone


def of_active_jobs(
    connections: Iterable[ConnectionEvidence], jobs: Iterable[JobSummary]
) -> tuple[tuple[ConnectionEvidence, ...], int]:
    """The connections without those of ended jobs, and the number of processes that were left out."""
    alive = {job.id for job in jobs if not job.state.terminal}
    kept: list[ConnectionEvidence] = []
    over: set[str] = set()
    for each in connections:
        ended = [one for one in (each.local, each.peer) if (job := job_of(one)) and job not in alive]
        over.update(ended)
        if not ended:
            kept.append(each)
    return tuple(kept), len(over)


def job_of(identity: str) -> str:
    """The job id in an identity; empty for the cluster's own processes."""
    try:
        return SpiffeId.parse(identity).job_id or ""
    except PkiError:
        return ""


def ended_of(job: JobDetail, identities: Iterable[str]) -> frozenset[str]:
    """Those of ``identities`` that are ended processes of ``job``."""
    running = {str(each.id) for each in job.executors if each.state in _RUNNING}
    found = set()
    for identity in identities:
        if job_of(identity) != job.id:
            continue
        executor = SpiffeId.parse(identity).role is Role.EXECUTOR
        if job.state.terminal or (executor and identity.rpartition("/")[2] not in running):
            found.add(identity)
    return frozenset(found)


async def shuffle_workers(cluster: Cluster) -> tuple[Registered, ...]:
    """The shuffle workers that the ShuffleManager knows; empty without the service, or without an answer."""
    if cluster.shuffle is None:
        return ()
    try:
        async with asyncio.timeout(SHUFFLE_SECONDS):
            return registered(await cluster.shuffle.overview(), cluster.facts.trust_domain)
    except (SluiceError, TimeoutError, OSError):
        return ()


def registered(service: ShuffleOverview, trust_domain: str) -> tuple[Registered, ...]:
    """One entry for each worker that is not DRAINED."""
    found: Sequence[Registered] = [
        Registered(
            str(Channel.RPC),
            str(SpiffeId.process(trust_domain, Role.SHUFFLE_WORKER, worker.name)),
            service.manager,
            str(worker.state.value).lower(),
            _TONES.get(worker.state, "idle"),
        )
        for worker in service.workers
        if worker.state is not WorkerState.DRAINED
    ]
    return tuple(found)
