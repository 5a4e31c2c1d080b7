"""A JobManager and a TaskManager that share no home, as on two machines."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sluice.core.home import Home
from sluice.runtime.node.addresses import AddressUnknown, AddressUnusable, read_jobmanager
from sluice.runtime.processes.jobmanager import jobmanager
from sluice.runtime.processes.taskmanager import taskmanager
from tests.integration.runtime.conftest import JOBMANAGER, Cluster, FakeLauncher, eventually


async def test_a_taskmanager_in_a_home_of_its_own_runs_jobs(cluster: Cluster, tmp_path: Path) -> None:
    home = Home.at(tmp_path / "elsewhere").create()
    await cluster.start_taskmanager("tm-far", home=home)
    with pytest.raises(AddressUnknown):
        read_jobmanager(home)
    announcement = home.run / "endpoints" / "taskmanager-tm-far.json"
    assert msgspec.json.decode(announcement.read_bytes())["jobmanager"].endswith(f"/jobmanager/{JOBMANAGER}")

    job_id = await cluster.submit()
    await cluster.until_running(job_id, 2)
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")

    await cluster.master.aclose()

    async def withdrawn() -> bool:
        return not announcement.exists()

    await eventually(withdrawn, "the TaskManager says that it is registered nowhere")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])  # noqa: S104  they are refused
async def test_an_unspecified_host_address_is_refused(cluster: Cluster, host: str) -> None:
    config = msgspec.structs.replace(
        cluster.config,
        jobmanager=msgspec.structs.replace(cluster.config.jobmanager, host=host),
        taskmanager=msgspec.structs.replace(cluster.config.taskmanager, host=host),
    )
    with pytest.raises(AddressUnusable, match=r"jobmanager\.host"):
        async with jobmanager(cluster.home, config, cluster.pki.config, JOBMANAGER):
            pass
    with pytest.raises(AddressUnusable, match=r"taskmanager\.host"):
        async with taskmanager(cluster.home, config, "tm-1", launcher=FakeLauncher()):
            pass
