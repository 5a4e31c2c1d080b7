"""The online authority issues the identities of jobs; the JobManager can read no authority's key."""

from __future__ import annotations

import shutil

import pytest

from sluice.core.files import make_private_directory
from sluice.core.home import Home
from sluice.pki.ca.address import CaAddress, publish_ca
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.spiffe_id import Role, SpiffeId
from tests.hostile import TRUST_DOMAIN
from tests.integration.runtime.conftest import JOBMANAGER, Cluster


@pytest.mark.parametrize("announced", [True, False], ids=["announced in the home", "given by an option"])
async def test_job_runs_although_the_jobmanagers_home_has_no_authority(announced: bool, cluster: Cluster) -> None:
    await cluster.master.aclose()
    known: list[CaAddress] = []
    await cluster.start_jobmanager(online=True, locate_ca=None if announced else lambda: known[:1])
    await cluster.start_taskmanager("tm-1")
    elsewhere = Home.at(cluster.tmp / "authority")
    make_private_directory(elsewhere.pki)
    shutil.move(cluster.home.pki / "authorities", elsewhere.pki / "authorities")
    async with online_ca(elsewhere, cluster.pki.config, CaConfig()) as address:
        if announced:
            publish_ca(cluster.home, address)
        known.append(address)
        job_id = await cluster.submit()
        executors = await cluster.until_running(job_id, 2)
        cluster.flag.touch()
        await cluster.until(job_id, "FINISHED")
    issued = [record for record in read_ledger(ledger_path(elsewhere.pki)) if record.kind == "job"]
    driver = SpiffeId.driver(TRUST_DOMAIN, job_id)
    assert {record.identity for record in issued} >= {
        str(driver),
        *(str(SpiffeId.executor(TRUST_DOMAIN, job_id, each["id"])) for each in executors),
    }
    master = str(SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, JOBMANAGER))
    assert {record.requester for record in issued} == {master}
