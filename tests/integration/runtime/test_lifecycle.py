"""JobManagers and TaskManagers that come and go, and who may act for whom."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from sluice.core.errors import PeerRefused, StoreError
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.runtime.gateways import (
    RESOURCE_MANAGER,
    JobMasterGateway,
    ResourceManagerGateway,
    jobmaster_endpoint,
)
from sluice.runtime.jobmanager.attempt.decisions import executor_control
from sluice.runtime.jobmanager.attempt.decisions.executor_control import ExecutorControl
from sluice.runtime.jobmanager.errors import ExecutorUnknown, NotRegistered
from sluice.runtime.messages import (
    CsrToSign,
    DriverExit,
    ExecutorExit,
    SlotOffer,
    SlotProfile,
    SlotReport,
    TaskManagerRegistration,
)
from sluice.runtime.node import identity_renewal
from sluice.runtime.node.addresses import AddressUnknown, read_jobmanager
from sluice.runtime.rpc import (
    CallNotPermitted,
    FencingTokenMismatch,
    RemotePeer,
    RpcService,
)
from sluice.runtime.spark.driver.spec import DriverSpec
from tests.hostile import OTHER_JOB_ID, TRUST_DOMAIN
from tests.integration.runtime.conftest import Cluster, eventually, until_gone

PROFILE = SlotProfile(cores=1, memory_mb=768)
IMPATIENT = pytest.mark.parametrize(
    "cluster", [{"heartbeat_timeout": 3.0, "lease": 3.0}], indirect=True, ids=["impatient"]
)


def registration(name: str, *, slots: int = 1) -> TaskManagerRegistration:
    """The registration that a TaskManager sends."""
    return TaskManagerRegistration(name=name, host="h", slots=slots, profile=PROFILE, python="p", version="0")


async def connect(cluster: Cluster, spiffe_id: SpiffeId) -> tuple[RpcService, RemotePeer]:
    """Dial the JobManager as ``spiffe_id``."""
    assert cluster.address is not None
    service = RpcService(TlsIdentity(cluster.pki.directory(spiffe_id)))
    return service, await service.connect(*cluster.address.rpc)


def taskmanager_id(name: str) -> SpiffeId:
    """The identity of a TaskManager."""
    return SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, name)


async def test_the_jobmanagers_addresses_are_published_only_while_it_takes_work(cluster: Cluster) -> None:
    assert read_jobmanager(cluster.home) == cluster.address
    await cluster.master.aclose()
    with pytest.raises(AddressUnknown):
        read_jobmanager(cluster.home)


@pytest.mark.parametrize("cluster", [{"heartbeat_timeout": 10.0}], indirect=True, ids=["10 s"])
async def test_drivers_and_executors_outlive_their_jobmanager_for_a_while(cluster: Cluster) -> None:
    """Another JobManager may lead soon. None does here, so their TaskManager ends them."""
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit()
    pids = [await cluster.pid(job_id, each) for each in await cluster.until_running(job_id, 2)]
    await cluster.master.aclose()
    assert all(psutil.pid_exists(pid) for pid in pids)
    for pid in pids:
        await until_gone(pid)

    async def cleaned() -> bool:
        return not (cluster.driver_directory(job_id) / "identity").exists()

    await eventually(cleaned, "the driver's key is removed")


async def test_a_restarted_jobmanager_takes_over_running_drivers_and_executors(cluster: Cluster) -> None:
    """It listens on other ports; a job from before its restart keeps its processes."""
    await cluster.start_taskmanager("tm-1")
    await cluster.start_taskmanager("tm-2")
    old = await cluster.submit()
    before = await cluster.until_running(old, 2)
    pids = [await cluster.pid(old, each) for each in before]
    await cluster.master.aclose()
    address = cluster.address
    await cluster.start_jobmanager()
    assert cluster.address is not None
    assert address is not None
    assert cluster.address.rpc != address.rpc
    await cluster.until(old, "RUNNING")
    after = await cluster.until_running(old, 2)
    assert sorted(each["id"] for each in after) == sorted(each["id"] for each in before)
    assert all(psutil.pid_exists(pid) for pid in pids)
    job = await cluster.job(old)
    assert (job["attempt"], job["pending_reason"]) == (1, "")
    cluster.flag.touch()
    await cluster.until(old, "FINISHED")
    new = await cluster.submit()
    await cluster.until(new, "FINISHED")

    async def free() -> bool:
        return bool((await cluster.get("/v1/overview"))["slots_available"] == 4)

    await eventually(free, "all slots are free again")


async def test_an_executor_that_ended_while_there_was_no_leader_is_replaced(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit()
    victim, kept = await cluster.until_running(job_id, 2)
    pid = await cluster.pid(job_id, victim)
    await cluster.master.aclose()
    os.kill(pid, signal.SIGKILL)
    await until_gone(pid)
    await cluster.start_jobmanager()
    await cluster.until(job_id, "RUNNING")

    async def replaced() -> bool:
        running = [each["id"] for each in (await cluster.job(job_id))["executors"] if each["state"] == "RUNNING"]
        return len(running) == 2 and kept["id"] in running and victim["id"] not in running

    await eventually(replaced, "another executor is there")
    assert (await cluster.job(job_id))["attempt"] == 1
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")


async def test_driver_files_left_by_a_killed_taskmanager_are_removed_at_its_next_start(cluster: Cluster) -> None:
    job_id = await cluster.submit(executors=0)
    await cluster.until(job_id, "RUNNING")
    await cluster.stop_taskmanager("tm-drivers")
    driver = cluster.driver_directory(job_id)
    (driver / "identity").mkdir()
    for leftover in (driver / "identity" / "key.pem", driver / "driver.json"):
        leftover.write_text("a secret")
    await cluster.start_taskmanager("tm-drivers")
    assert {path.name for path in driver.iterdir()} == {"driver.agent.log", "driver.stdout"}


def read_or_none(directory: Path) -> TlsIdentity | None:
    """The identity in ``directory``; None if its files do not match at this moment."""
    try:
        return TlsIdentity(directory)
    except StoreError:
        return None


async def test_identities_of_a_running_job_are_renewed_in_place(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Certificates are due after a second, whatever they say; the processes continue meanwhile."""
    monkeypatch.setattr(identity_renewal, "seconds_until_renewal", lambda _: 1.0)
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(executors=1)
    await cluster.until_running(job_id, 1)
    root = cluster.home.root
    keys = [*root.glob(f"work/*/jobs/{job_id}/*/identity/key.pem")]
    assert len(keys) == 2
    first = [key.read_bytes() for key in keys]

    async def renewed() -> list[TlsIdentity]:
        found = [read_or_none(key.parent) for key in keys]  # None between the replacement of key and chain
        whole = [each for each in found if each is not None]
        new = all(key.read_bytes() != old for key, old in zip(keys, first, strict=True))
        return whole if new and len(whole) == len(keys) else []

    for identity in await eventually(renewed, "driver and executor have new keys"):
        assert identity.spiffe_id.job_id == job_id
    (executor,) = (await cluster.job(job_id))["executors"]
    assert executor["state"] == "RUNNING"


@IMPATIENT
async def test_a_taskmanager_without_a_jobmanager_for_long_ends_its_executors(cluster: Cluster) -> None:
    """It cannot know whether its jobs were restarted elsewhere."""
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit()
    pids = [await cluster.pid(job_id, each) for each in await cluster.until_running(job_id, 2)]
    (cluster.home.run / "endpoints" / "jobmanager.json").unlink()
    # Whoever registers later under the same name replaces it: the JobManager closes the first connection.
    service, peer = await connect(cluster, taskmanager_id("tm-1"))
    await peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER).register(registration("tm-1"))
    for pid in pids:
        await until_gone(pid)
    await service.close()


async def test_a_taskmanager_registers_under_the_name_of_its_certificate_only(cluster: Cluster) -> None:
    service, peer = await connect(cluster, taskmanager_id("tm-evil"))
    manager = peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER)
    with pytest.raises(PeerRefused, match="cannot register as 'tm-1'"):
        await manager.register(registration("tm-1"))
    for slots in (0, -1, 10**9):
        with pytest.raises(PeerRefused, match="slots"):
            await manager.register(registration("tm-evil", slots=slots))
    assert (await cluster.get("/v1/taskmanagers"))["taskmanagers"] == []
    await service.close()


async def test_heartbeats_need_the_token_and_a_registration_over_the_same_connection(cluster: Cluster) -> None:
    service, peer = await connect(cluster, taskmanager_id("tm-1"))
    for token in (None, b"guess"):
        with pytest.raises(FencingTokenMismatch):
            await peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER, token=token).heartbeat(SlotReport(slots=()))
    accepted = await peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER).register(registration("tm-1"))
    other, stranger = await connect(cluster, taskmanager_id("tm-2"))
    manager = stranger.gateway(ResourceManagerGateway, RESOURCE_MANAGER, token=accepted.fencing_token)
    with pytest.raises(NotRegistered):
        await manager.heartbeat(SlotReport(slots=()))
    await service.close()
    await other.close()


async def test_a_driver_may_not_call_the_resourcemanager(cluster: Cluster) -> None:
    service, peer = await connect(cluster, SpiffeId.driver(TRUST_DOMAIN, OTHER_JOB_ID))
    with pytest.raises(CallNotPermitted):
        await peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER).register(registration("tm-1"))
    await service.close()


@IMPATIENT
async def test_a_silent_taskmanager_is_unregistered_after_the_heartbeat_timeout(cluster: Cluster) -> None:
    service, peer = await connect(cluster, taskmanager_id("tm-silent"))
    await peer.gateway(ResourceManagerGateway, RESOURCE_MANAGER).register(registration("tm-silent"))
    await cluster.until_registered("tm-silent")

    async def gone() -> bool:
        return bool((await cluster.get("/v1/taskmanagers"))["taskmanagers"] == [])

    await eventually(gone, "the silent TaskManager is given up")
    await service.close()


async def running_job(cluster: Cluster) -> tuple[str, bytes, Any]:
    """Start a job with one executor on tm-1; returns its id, its JobMaster's token and its executor."""
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(executors=1)
    (executor,) = await cluster.until_running(job_id, 1)
    spec = DriverSpec.read(cluster.driver_directory(job_id) / "driver.json")
    return job_id, spec.token, executor


async def test_a_taskmanager_gets_certificates_for_its_own_executors_only(cluster: Cluster) -> None:
    """Even with the job's fencing token and a registered certificate of its own."""
    job_id, token, executor = await running_job(cluster)
    service, peer = await connect(cluster, taskmanager_id("tm-evil"))
    master = peer.gateway(JobMasterGateway, jobmaster_endpoint(job_id), token=token)
    for number in (executor["id"], 99):
        with pytest.raises(ExecutorUnknown):
            await master.sign_executor_identity(CsrToSign(executor_id=number, csr_pem=b"x"))
    report = ExecutorExit(executor_id=executor["id"], exit_code=0, by_application=False, reason="a lie")
    with pytest.raises(ExecutorUnknown):
        await master.executor_exited(report)
    offer = SlotOffer(taskmanager="tm-1", host="h", slot=0, allocation_id="x", profile=PROFILE)
    with pytest.raises(PeerRefused):
        await master.offer_slot(offer)
    assert (await cluster.job(job_id))["executors"][0]["state"] == "RUNNING"
    await service.close()


@pytest.mark.parametrize("job", ["other", "own"])
async def test_a_jobmaster_accepts_calls_only_from_the_driver_of_its_job_with_its_token(
    cluster: Cluster, job: str
) -> None:
    job_id, token, _ = await running_job(cluster)
    identity = SpiffeId.driver(TRUST_DOMAIN, job_id if job == "own" else OTHER_JOB_ID)
    service, peer = await connect(cluster, identity)
    wrong = b"guess" if job == "own" else token
    master = peer.gateway(JobMasterGateway, jobmaster_endpoint(job_id), token=wrong)
    with pytest.raises(FencingTokenMismatch if job == "own" else CallNotPermitted):
        await master.driver_finished(DriverExit(succeeded=True, exit_code=0))
    with pytest.raises(FencingTokenMismatch if job == "own" else CallNotPermitted):
        await master.register_driver(1, 1, None)
    assert (await cluster.job(job_id))["state"] == "RUNNING"
    await service.close()


async def test_an_attempt_that_is_not_the_current_one_gets_no_work(cluster: Cluster) -> None:
    job_id, token, _ = await running_job(cluster)
    service, peer = await connect(cluster, SpiffeId.driver(TRUST_DOMAIN, job_id))
    master = peer.gateway(JobMasterGateway, jobmaster_endpoint(job_id), token=token)
    with pytest.raises(PeerRefused, match="attempt 2"):
        await master.register_driver(2, 1, None)
    await service.close()


async def test_an_error_of_a_jobmaster_fails_its_job_and_nothing_else(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timer that raises: nobody waits for it, and the job must not wait for ever."""

    def broken(executors: ExecutorControl) -> None:
        raise KeyError(executors)

    monkeypatch.setattr(executor_control, "REQUIREMENT_REPEAT_SECONDS", 0.1)
    await cluster.start_taskmanager("tm-1")
    monkeypatch.setattr(ExecutorControl, "repeat_requirement", broken)
    job_id = await cluster.submit()
    job = await cluster.until(job_id, "FAILED")
    assert "internal error of its JobMaster: KeyError" in job["failure"]["error"]
    monkeypatch.undo()
    cluster.flag.touch()
    again = await cluster.submit()
    await cluster.until(again, "FINISHED")
