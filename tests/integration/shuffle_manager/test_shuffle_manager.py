"""The control plane of the shuffle service over real mutual TLS.

Who gets workers, and what happens to a job's data.
"""

from __future__ import annotations

import msgspec
import pytest

from sluice.core.errors import PeerRefused
from sluice.pki.spiffe_id import Role
from sluice.runtime.node.addresses import read_shuffle_manager
from sluice.runtime.rpc import CallNotPermitted, FencingTokenMismatch, RpcService
from sluice.runtime.shuffle.control_plane.errors import (
    ForeignJob,
    JobUnknown,
    NoShuffleService,
    NotConnected,
    ShuffleQuotaExceeded,
    WorkerUnknown,
)
from sluice.runtime.shuffle.control_plane.gateways import SHUFFLE_MANAGER, ShuffleManagerGateway
from sluice.runtime.shuffle.control_plane.messages import (
    ShuffleRequest,
    WorkerRegistration,
    WorkerReport,
    WorkerState,
)
from sluice.runtime.shuffle.manager.workers import Worker, WorkerTable
from tests.integration.shuffle_manager.conftest import CONFIG, NotedWorker, Service, until_seen
from tests.waiting import until

JOB, OTHER = "a" * 32, "b" * 32
IMPATIENT = msgspec.structs.replace(CONFIG, allocation_timeout=1.5)


async def test_workers_know_a_job_before_its_allocation_names_them(service: Service) -> None:
    await service.start_manager()
    workers = [await service.start_worker(name) for name in ("w-1", "w-2")]
    link = await service.cluster()
    allocation = await link.allocate(JOB, 7, 200)
    assert {each.name for each in allocation.workers} == {"w-1", "w-2"}
    assert (allocation.shuffle_number, allocation.replicas, len(allocation.integrity_key)) == (7, 1, 8)
    assert [worker.allowed for worker in workers] == [{JOB: allocation.integrity_key}] * 2
    assert (await link.allocate(JOB, 8, 200)).integrity_key == allocation.integrity_key
    assert (await link.allocate(OTHER, 7, 200)).integrity_key != allocation.integrity_key


async def test_an_allocation_without_a_manager_or_workers_fails_with_the_reason(service: Service) -> None:
    service.config = IMPATIENT
    link = await service.cluster()
    with pytest.raises(NoShuffleService, match="no ShuffleManager"):
        await link.allocate(JOB, 0, 4)
    await service.start_manager()
    await link.overview()  # connects
    with pytest.raises(NoShuffleService, match="0 ShuffleWorkers"):
        await link.allocate(JOB, 0, 4)
    await service.start_worker("w-1")
    service.config = CONFIG
    assert len((await (await service.cluster()).allocate(JOB, 0, 4)).workers) == 1


async def test_an_allocation_needs_as_many_workers_as_replicas(service: Service) -> None:
    service.config = msgspec.structs.replace(IMPATIENT, replicas=2)
    await service.start_manager()
    await service.start_worker("w-1")
    link = await service.cluster()
    await link.overview()  # connects
    with pytest.raises(NoShuffleService, match="2 are needed"):
        await link.allocate(JOB, 0, 1)
    await service.start_worker("w-2")
    service.config = msgspec.structs.replace(CONFIG, replicas=2)
    assert len((await (await service.cluster()).allocate(JOB, 0, 1)).workers) == 2


async def test_released_data_is_deleted_and_the_released_job_cannot_allocate_again(service: Service) -> None:
    await service.start_manager()
    worker = await service.start_worker("w-1")
    link = await service.cluster()
    await link.allocate(JOB, 0, 4)
    await link.allocate(JOB, 1, 4)
    worker.kept[JOB] = {0, 1}
    await link.release_shuffle(JOB, 0)
    await until(lambda: worker.kept[JOB] == {1}, "the shuffle is gone")
    await link.release_job(JOB)
    assert (worker.kept, worker.allowed) == ({}, {})
    with pytest.raises(JobUnknown):
        await link.allocate(JOB, 2, 4)


async def test_shuffles_of_earlier_contexts_are_released_together(service: Service) -> None:
    await service.start_manager()
    worker = await service.start_worker("w-1")
    link = await service.cluster()
    for number in (1, 2, 5):
        await link.allocate(JOB, number, 4)
    worker.kept[JOB] = {1, 2, 5}
    await link.release_before(JOB, 5)
    await until(lambda: worker.kept[JOB] == {5}, "the earlier ones are gone")


async def test_another_cluster_has_no_power_over_a_job(service: Service) -> None:
    await service.start_manager()
    worker = await service.start_worker("w-1")
    link = await service.cluster()
    await link.allocate(JOB, 0, 4)
    worker.kept[JOB] = {0}
    foreign = await service.cluster(b"of the second cluster", "jm-2")
    for attempt in (
        lambda: foreign.allocate(JOB, 1, 4),
        lambda: foreign.release_shuffle(JOB, 0),
        lambda: foreign.release_before(JOB, 9),
        lambda: foreign.workers_lost(JOB, ["w-1"]),
    ):
        with pytest.raises(ForeignJob):
            await attempt()
    await foreign.release_job(JOB)  # refused, and only logged: a lease does the same for one's own jobs
    assert worker.kept == {JOB: {0}}
    assert (await foreign.overview()).jobs == ()
    assert [view.report.jobs for view in (await foreign.overview()).workers] == [()]
    assert [job.job_id for job in (await link.overview()).jobs] == [JOB]


async def test_another_jobmanager_of_the_same_cluster_takes_over(service: Service) -> None:
    await service.start_manager()
    worker = await service.start_worker("w-1")
    await (await service.cluster()).allocate(JOB, 0, 4)
    worker.kept[JOB] = {0}
    await (await service.cluster(name="jm-2")).release_job(JOB)
    assert worker.kept == {}


async def test_the_data_of_a_job_is_deleted_when_its_lease_expires(service: Service) -> None:
    service.config = msgspec.structs.replace(CONFIG, job_lease=1.0)
    await service.start_manager()
    worker = await service.start_worker("w-1")
    link = await service.cluster()
    await link.allocate(JOB, 0, 4)
    worker.kept[JOB] = {0}
    await service.clusters.pop().aclose()
    await until(lambda: worker.kept == {}, "the data is gone")
    again = await service.cluster()
    await again.allocate(JOB, 1, 4)  # it was only cut off for long
    assert JOB in worker.allowed


async def test_leases_are_still_checked_while_the_check_for_lost_workers_fails(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing check must not end the others."""
    failed = 0

    def expired(_: WorkerTable) -> list[Worker]:
        nonlocal failed
        failed += 1
        raise KeyError("nobody thought of this")

    monkeypatch.setattr(WorkerTable, "expired", expired)
    service.config = msgspec.structs.replace(CONFIG, job_lease=1.0)
    await service.start_manager()
    worker = await service.start_worker("w-1")
    await (await service.cluster()).allocate(JOB, 0, 4)
    worker.kept[JOB] = {0}
    await service.clusters.pop().aclose()
    await until(lambda: worker.kept == {}, "the lease is over")
    assert failed > 1


async def test_a_returning_worker_deletes_the_data_of_ended_jobs(service: Service) -> None:
    await service.start_manager()
    worker = await service.start_worker("w-1")
    await service.start_worker("w-2")
    link = await service.cluster()
    await link.allocate(JOB, 0, 4)
    await link.allocate(OTHER, 0, 4)
    worker.kept.update({JOB: {0}, OTHER: {0}, "c" * 32: {3}})
    await service.stop_worker("w-1")
    await link.release_job(OTHER)
    restarted = await service.start_worker("w-1", NotedWorker(kept=worker.kept))
    assert set(restarted.kept) == {JOB}
    assert set(restarted.allowed) == {JOB}


async def test_a_lost_worker_gets_no_shuffle_until_it_returns(service: Service) -> None:
    await service.start_manager()
    await service.start_worker("w-1")
    await service.start_worker("w-2")
    link = await service.cluster()
    await service.stop_worker("w-1")
    assert [each.name for each in (await link.allocate(JOB, 0, 9)).workers] == ["w-2"]
    (lost,) = [each for each in (await link.overview()).workers if each.state is WorkerState.LOST]
    assert (lost.name, lost.reason) == ("w-1", "its connection closed")
    await service.start_worker("w-1")
    assert len((await link.allocate(JOB, 1, 9)).workers) == 2


async def test_a_job_gets_no_worker_that_it_cannot_reach_while_there_are_others(service: Service) -> None:
    await service.start_manager()
    for name in ("w-1", "w-2"):
        await service.start_worker(name)
    link = await service.cluster()
    await link.allocate(JOB, 0, 9)
    await link.workers_lost(JOB, ["w-1", "nobody"])
    assert [each.name for each in (await link.allocate(JOB, 1, 9)).workers] == ["w-2"]
    assert len((await link.allocate(OTHER, 1, 9)).workers) == 2


async def test_a_drained_worker_gets_no_new_shuffle(service: Service) -> None:
    await service.start_manager()
    worker = await service.start_worker("w-1")
    await service.start_worker("w-2")
    link = await service.cluster()
    await link.allocate(JOB, 0, 9)
    worker.kept[JOB] = {0}
    await link.drain("w-1")
    await until(lambda: worker.draining, "it is told")
    assert [each.name for each in (await link.allocate(JOB, 1, 9)).workers] == ["w-2"]
    await link.release_job(JOB)

    await service.until_state(link, "w-1", WorkerState.DRAINED)
    await link.drain("w-1", wanted=False)
    await until(lambda: not worker.draining, "it is told")
    await service.until_state(link, "w-1", WorkerState.ACTIVE)
    assert len((await link.allocate(OTHER, 1, 9)).workers) == 2
    with pytest.raises(WorkerUnknown):
        await link.drain("nobody")


async def test_a_job_that_exceeds_its_quota_gets_no_shuffle(service: Service) -> None:
    service.config = msgspec.structs.replace(CONFIG, job_quota_mb=1)
    await service.start_manager()
    worker = await service.start_worker("w-1")
    link = await service.cluster()
    await link.allocate(JOB, 0, 9)
    worker.kept[JOB] = set(range(2000))
    await until_seen(link, lambda seen: sum(job.bytes for job in seen.jobs) > 0, "the bytes are reported")
    with pytest.raises(ShuffleQuotaExceeded):
        await link.allocate(JOB, 1, 9)
    assert (await link.allocate(OTHER, 0, 9)).workers


async def test_the_next_manager_takes_over_jobs_and_their_integrity_keys(service: Service) -> None:
    await service.start_manager("manager-1")
    await service.start_manager("manager-2")
    worker = await service.start_worker("w-1")
    link = await service.cluster()
    before = await link.allocate(JOB, 0, 9)
    await link.allocate(OTHER, 0, 9)
    await link.release_job(OTHER)
    worker.kept[JOB] = {0}
    await service.stop_manager("manager-1")
    after = await link.allocate(JOB, 1, 9)
    assert read_shuffle_manager(service.home).name == "manager-2"
    assert after.integrity_key == before.integrity_key
    assert worker.kept == {JOB: {0}}
    assert worker.allowed == {JOB: before.integrity_key}
    await link.release_job(JOB)
    assert worker.kept == {}


async def test_a_jobmanager_missing_from_the_configured_names_gets_no_session(service: Service) -> None:
    """It has a good certificate and a secret of its own, and could drain everybody's workers."""
    service.config = msgspec.structs.replace(CONFIG, jobmanagers=("jm-1", "jm-2"))
    await service.start_manager()
    address = read_shuffle_manager(service.home)
    for name, admitted in (("jm-2", True), ("of-another-cluster", False)):
        rpc = RpcService(service.identity(Role.JOBMANAGER, name))
        try:
            peer = await rpc.connect(*address.rpc, role=Role.SHUFFLE_MANAGER, name=address.name)
            manager = peer.gateway(ShuffleManagerGateway, SHUFFLE_MANAGER)
            if admitted:
                assert (await manager.connect_cluster(b"0" * 32)).fencing_token
            else:
                with pytest.raises(PeerRefused, match=r"shuffle\.jobmanagers"):
                    await manager.connect_cluster(b"1" * 32)
        finally:
            await rpc.close()


@pytest.mark.parametrize("role", [Role.TASKMANAGER, Role.JOBMANAGER])
async def test_other_roles_cannot_register_as_workers(service: Service, role: Role) -> None:
    await service.start_manager()
    rpc = RpcService(service.identity(role, "someone"))
    try:
        address = read_shuffle_manager(service.home)
        peer = await rpc.connect(*address.rpc, role=Role.SHUFFLE_MANAGER, name=address.name)
        manager = peer.gateway(ShuffleManagerGateway, SHUFFLE_MANAGER)
        with pytest.raises(CallNotPermitted):
            await manager.register_worker(WorkerRegistration(name="someone", host="h", port=1, instance="i"))
    finally:
        await rpc.close()


async def test_a_worker_registers_only_itself_and_cannot_control_jobs(service: Service) -> None:
    await service.start_manager()
    rpc = RpcService(service.identity(Role.SHUFFLE_WORKER, "w-9"))
    try:
        address = read_shuffle_manager(service.home)
        peer = await rpc.connect(*address.rpc, role=Role.SHUFFLE_MANAGER, name=address.name)
        manager = peer.gateway(ShuffleManagerGateway, SHUFFLE_MANAGER)
        with pytest.raises(PeerRefused):
            await manager.register_worker(WorkerRegistration(name="w-1", host="h", port=1, instance="i"))
        with pytest.raises(FencingTokenMismatch):
            await manager.heartbeat(WorkerReport())
        accepted = await manager.register_worker(WorkerRegistration(name="w-9", host="h", port=1, instance="i"))
        fenced = peer.gateway(ShuffleManagerGateway, SHUFFLE_MANAGER, token=accepted.fencing_token)
        for attempt in (
            lambda: fenced.release_job(JOB),
            lambda: fenced.connect_cluster(b"0" * 32),
            lambda: fenced.allocate(ShuffleRequest(job_id=JOB, shuffle_number=0, partitions=1)),
            lambda: fenced.drain("w-1", True),
        ):
            with pytest.raises(CallNotPermitted):
                await attempt()
    finally:
        await rpc.close()


async def test_a_jobmanager_must_connect_with_its_secret_before_other_calls(service: Service) -> None:
    await service.start_manager()
    rpc = RpcService(service.identity(Role.JOBMANAGER, "jm-1"))
    try:
        address = read_shuffle_manager(service.home)
        peer = await rpc.connect(*address.rpc, role=Role.SHUFFLE_MANAGER, name=address.name)
        manager = peer.gateway(ShuffleManagerGateway, SHUFFLE_MANAGER)
        with pytest.raises(PeerRefused, match="secret"):
            await manager.connect_cluster(b"short")
        session = await manager.connect_cluster(b"0" * 32)
        other = await rpc.connect(*address.rpc, role=Role.SHUFFLE_MANAGER, name=address.name)
        stolen = other.gateway(ShuffleManagerGateway, SHUFFLE_MANAGER, token=session.fencing_token)
        with pytest.raises(NotConnected):
            await stolen.release_job(JOB)
    finally:
        await rpc.close()


async def test_a_shuffle_that_the_next_jobmanager_allocates_again_keeps_its_hand_overs(service: Service) -> None:
    await service.start_manager()
    worker = await service.start_worker("w-1")
    link = await service.cluster()
    await link.allocate(JOB, 0, 9)
    worker.kept[JOB] = {0}
    await service.start_worker("w-2")
    await link.drain("w-1")
    await service.until_state(link, "w-1", WorkerState.DRAINED)
    again = await service.cluster(name="jm-2")
    assert {each.name for each in (await again.allocate(JOB, 0, 9)).workers} == {"w-1", "w-2"}
    found = await again.locate(JOB, 0, ["w-1"])
    assert [each.address.name for each in found] == ["w-2", "w-1"]
