"""Drivers in TaskManager slots: who may act for a driver, and what happens if its TaskManager is lost."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.core.egress_evidence import ANY_PORT
from sluice.core.errors import CertificateRejected
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509 import new_csr
from sluice.runtime.gateways import JobMasterGateway, jobmaster_endpoint
from sluice.runtime.jobmanager.errors import DriverUnknown, ExecutorUnknown
from sluice.runtime.messages import DriverCsr, DriverProcessEnd, SlotKind, SlotOffer
from sluice.runtime.rpc import CallNotPermitted
from sluice.runtime.spark.driver.spec import DriverSpec
from tests.hostile import OTHER_JOB_ID, TRUST_DOMAIN
from tests.integration.runtime.conftest import SHORT_LEASE, Cluster, eventually
from tests.integration.runtime.test_lifecycle import PROFILE, connect, taskmanager_id


async def running_driver(cluster: Cluster) -> tuple[str, bytes]:
    """A job whose driver runs on tm-1, and the token of its JobMaster."""
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(executors=0)
    await cluster.until(job_id, "RUNNING")
    return job_id, DriverSpec.read(cluster.driver_directory(job_id) / "driver.json").token


async def test_only_the_taskmanager_of_a_driver_may_act_for_it(cluster: Cluster) -> None:
    """Not another one, even with the job's fencing token and a registered certificate of its own."""
    job_id, token = await running_driver(cluster)
    _, csr = new_csr(SpiffeId.driver(TRUST_DOMAIN, job_id))
    service, peer = await connect(cluster, taskmanager_id("tm-evil"))
    master = peer.gateway(JobMasterGateway, jobmaster_endpoint(job_id), token=token)
    with pytest.raises(DriverUnknown):
        await master.sign_driver_identity(DriverCsr(attempt=1, csr_pem=csr))
    with pytest.raises(DriverUnknown):
        await master.driver_process_ended(DriverProcessEnd(attempt=1, how="a lie"))
    other = SlotOffer(taskmanager="tm-evil", host="h", slot=0, allocation_id="x", profile=PROFILE, kind=SlotKind.DRIVER)
    assert not await master.offer_slot(other), "it has a slot"
    assert (await cluster.job(job_id))["state"] == "RUNNING"
    await service.close()


async def test_a_taskmanager_gets_a_drivers_certificate_for_its_current_attempt_and_job_only(cluster: Cluster) -> None:
    job_id, token = await running_driver(cluster)
    service, peer = await connect(cluster, taskmanager_id("tm-1"))
    master = peer.gateway(JobMasterGateway, jobmaster_endpoint(job_id), token=token)
    _, own = new_csr(SpiffeId.driver(TRUST_DOMAIN, job_id))
    assert (await master.sign_driver_identity(DriverCsr(attempt=1, csr_pem=own))).chain_pem
    with pytest.raises(DriverUnknown):
        await master.sign_driver_identity(DriverCsr(attempt=2, csr_pem=own))
    for wanted in (
        SpiffeId.driver(TRUST_DOMAIN, OTHER_JOB_ID),
        SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "jm-1"),
        SpiffeId.executor(TRUST_DOMAIN, job_id, 1),
    ):
        _, csr = new_csr(wanted)
        with pytest.raises(CertificateRejected):
            await master.sign_driver_identity(DriverCsr(attempt=1, csr_pem=csr))
    await service.close()


async def test_only_the_taskmanager_of_a_jobs_process_may_report_where_it_listens(cluster: Cluster) -> None:
    job_id, token = await running_driver(cluster)
    service, peer = await connect(cluster, SpiffeId.driver(TRUST_DOMAIN, job_id))
    master = peer.gateway(JobMasterGateway, jobmaster_endpoint(job_id), token=token)
    for call in (master.driver_listens(1, (40001,)), master.executor_listens(1, (40001,)), master.listeners_on(40001)):
        with pytest.raises(CallNotPermitted):
            await call
    await service.close()
    service, peer = await connect(cluster, taskmanager_id("tm-evil"))
    master = peer.gateway(JobMasterGateway, jobmaster_endpoint(job_id), token=token)
    with pytest.raises(DriverUnknown):
        await master.driver_listens(1, (40001,))
    with pytest.raises(ExecutorUnknown):
        await master.executor_listens(1, (40001,))
    assert await master.listeners_on(40001) == ()
    await service.close()
    service, peer = await connect(cluster, taskmanager_id("tm-1"))
    master = peer.gateway(JobMasterGateway, jobmaster_endpoint(job_id), token=token)
    with pytest.raises(DriverUnknown):
        await master.driver_listens(2, (40001,))
    await master.driver_listens(1, (40000,))
    assert await master.listeners_on(40000) == ("127.0.0.1",)
    assert await master.listeners_on(ANY_PORT) == ("127.0.0.1",)
    await service.close()


async def test_a_job_cannot_have_an_identity_signed_nor_report_its_own_end(cluster: Cluster) -> None:
    job_id, token = await running_driver(cluster)
    service, peer = await connect(cluster, SpiffeId.driver(TRUST_DOMAIN, job_id))
    master = peer.gateway(JobMasterGateway, jobmaster_endpoint(job_id), token=token)
    with pytest.raises(CallNotPermitted):
        await master.sign_driver_identity(DriverCsr(attempt=1, csr_pem=b"x"))
    with pytest.raises(CallNotPermitted):
        await master.driver_process_ended(DriverProcessEnd(attempt=1, how="a lie"))
    await service.close()


async def test_a_job_that_has_succeeded_keeps_its_slot_until_its_drivers_process_has_ended(cluster: Cluster) -> None:
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(executors=0, end="succeed-ahead")
    await cluster.until(job_id, "FINISHED")

    async def drivers() -> Any:
        (taskmanager,) = (await cluster.get("/v1/taskmanagers"))["taskmanagers"]
        return taskmanager["drivers"]

    assert await drivers() == [job_id]
    cluster.flag.touch()

    async def free() -> bool:
        return not await drivers()

    await eventually(free, "the slot is free")
    assert (await cluster.job(job_id))["state"] == "FINISHED"


@SHORT_LEASE
async def test_a_job_whose_drivers_taskmanager_is_lost_starts_again_elsewhere_and_never_runs_twice(
    cluster: Cluster,
) -> None:
    alone = cluster.tmp / "alone"
    alone.mkdir()
    cluster.pipeline_extras = {"alone": str(alone)}
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(executors=0)
    await cluster.until(job_id, "RUNNING")
    await cluster.start_taskmanager("tm-2")
    await cluster.stop_taskmanager("tm-1")
    cluster.flag.touch()
    job = await cluster.until(job_id, "FINISHED")
    first, second = job["attempts"]
    assert (first["taskmanager"], first["outcome"]) == ("tm-1", "LOST")
    assert first["error"] == "TaskManager tm-1, on which the driver ran, is lost"
    assert (second["taskmanager"], second["outcome"]) == ("tm-2", "FINISHED")
    assert (alone / "runs").read_text().split() == ["1", "2"]
    assert not (alone / "twice").exists()
