"""The REST view of the shuffle service."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp.test_utils import make_mocked_request

from sluice.pki.assertions.principal import Credential, Principal
from sluice.pki.assertions.tokens import Assertion
from sluice.runtime.jobmanager.errors import JobNotFound
from sluice.runtime.jobmanager.gateways import DispatcherGateway
from sluice.runtime.rest.cluster import Cluster
from sluice.runtime.rest.protocol.assertion import ASSERTED
from sluice.runtime.rest.protocol.problems import NotYours
from sluice.runtime.rest.protocol.route import Call, NoQuery
from sluice.runtime.rest.resources.shuffle import (
    drain_shuffle_worker,
    get_job_shuffle,
    get_shuffle,
    resume_shuffle_worker,
)
from sluice.runtime.shuffle.control_plane.errors import ShuffleNotEnabled, WorkerUnknown
from sluice.runtime.shuffle.control_plane.manager_link import ShuffleManagerLink
from sluice.runtime.shuffle.control_plane.messages import (
    NOTHING_MEASURED,
    Histogram,
    JobReport,
    ShuffleJobView,
    ShuffleOverview,
    WorkerReport,
    WorkerState,
    WorkerView,
)

JOB, QUIET = "a" * 32, "b" * 32
SHOWN = ShuffleJobView(
    job_id=JOB, shuffles=1, lease_left=9.5, bytes=10, pushed_bytes=20, fetched_bytes=30, maps=4, refused=0,
    commit_latency=NOTHING_MEASURED, fetch_latency=NOTHING_MEASURED,
)  # fmt: skip
WORKER = WorkerView(
    name="w-1",
    host="h",
    port=1,
    state=WorkerState.ACTIVE,
    reason="",
    last_heartbeat=1,
    bytes=10,
    report=WorkerReport(jobs=(JobReport(job_id=JOB, bytes=10),)),
)


class Service:
    """A fake shuffle service with one job, and ``w-1`` as its only worker."""

    def __init__(self) -> None:
        self.drained: list[str] = []

    async def overview(self) -> ShuffleOverview:
        return ShuffleOverview(manager="m", workers=(WORKER,), jobs=(SHOWN,))

    async def drain(self, worker: str, *, wanted: bool = True) -> None:
        if worker != "w-1":
            raise WorkerUnknown(f"there is no ShuffleWorker {worker}")
        self.drained.append(worker if wanted else f"not {worker}")


class Jobs:
    """A fake Dispatcher with two jobs of Ada."""

    async def job(self, job_id: str) -> SimpleNamespace:
        if job_id not in {JOB, QUIET}:
            raise JobNotFound(job_id)
        return SimpleNamespace(id=job_id, owner="ada")

    async def jobs(self) -> list[SimpleNamespace]:
        return [await self.job(JOB), await self.job(QUIET)]


def cluster_with(service: Service | None) -> Cluster:
    nothing = cast("Any", None)
    return Cluster(
        cast("DispatcherGateway", Jobs()),
        nothing,
        nothing,
        nothing,
        nothing,
        default_executors=2,
        leader=nothing,
        config=nothing,
        artifacts=nothing,
        feed=nothing,
        streams=nothing,
        secrets=nothing,
        diagnostics=nothing,
        shuffle=cast("ShuffleManagerLink", service),
    )


def call(name: str = "ada", **path: str) -> Call[NoQuery]:
    request = make_mocked_request("GET", "/")
    request[ASSERTED] = Assertion(
        Principal(name, (), "token", Credential("token", "id-1")), "request-1", operation="shuffle.read"
    )
    return Call(request, path, NoQuery())


async def test_the_shuffle_service_overview_is_served() -> None:
    view = await get_shuffle(cluster_with(Service()), call())
    assert (view.enabled, view.service) == (True, ShuffleOverview(manager="m", workers=(WORKER,), jobs=(SHOWN,)))


async def test_a_user_who_may_see_only_own_jobs_sees_no_shuffle_data_of_other_jobs() -> None:
    cluster = cluster_with(Service())
    service = (await get_shuffle(cluster, call("grace"))).service
    assert service is not None
    assert service.jobs == ()
    assert [each.report.jobs for each in service.workers] == [()]
    with pytest.raises(NotYours):
        await get_job_shuffle(cluster, call("grace", job_id=JOB))


async def test_the_shuffle_data_of_a_job_is_served() -> None:
    cluster = cluster_with(Service())
    assert (await get_job_shuffle(cluster, call(job_id=JOB))).shuffle == SHOWN
    assert (await get_job_shuffle(cluster, call(job_id=QUIET))).shuffle is None
    with pytest.raises(JobNotFound):
        await get_job_shuffle(cluster, call(job_id="c" * 32))


async def test_a_shuffle_worker_is_drained_and_resumed() -> None:
    service = Service()
    await drain_shuffle_worker(cluster_with(service), call(worker="w-1"))
    await resume_shuffle_worker(cluster_with(service), call(worker="w-1"))
    assert service.drained == ["w-1", "not w-1"]
    with pytest.raises(WorkerUnknown):
        await drain_shuffle_worker(cluster_with(service), call(worker="w-2"))


async def test_a_cluster_without_the_shuffle_service_reports_it_as_disabled() -> None:
    cluster = cluster_with(None)
    view = await get_shuffle(cluster, call())
    assert (view.enabled, view.service) == (False, None)
    assert (await get_job_shuffle(cluster, call(job_id=JOB))).shuffle is None
    with pytest.raises(ShuffleNotEnabled):
        await drain_shuffle_worker(cluster, call(worker="w-1"))


def test_histograms_are_added() -> None:
    one = Histogram(counts=(1, *NOTHING_MEASURED.counts[1:]), total_seconds=0.5)
    assert one + NOTHING_MEASURED == one
    assert one + one == Histogram(counts=(2, *NOTHING_MEASURED.counts[1:]), total_seconds=1.0)
