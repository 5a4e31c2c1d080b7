"""A defect in the Dispatcher or the ResourceManager ends the JobManager; one in anything else does not."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.config import Provider
from sluice.runtime.gateways import RESOURCE_MANAGER
from sluice.runtime.jobmanager.errors import TaskManagerNotFound
from sluice.runtime.jobmanager.gateways import DISPATCHER
from sluice.runtime.jobmanager.slots.provision import Provided, Provision
from sluice.runtime.node.addresses import AddressUnknown, read_jobmanager
from sluice.runtime.processes.jobmanager import EndpointFailed, is_fatal, run_jobmanager
from tests.hostile import TRUST_DOMAIN
from tests.integration.runtime.conftest import JOBMANAGER, Cluster


@pytest.mark.parametrize(
    ("endpoint", "error", "fatal"),
    [
        pytest.param(DISPATCHER, KeyError("job"), True, id="dispatcher"),
        pytest.param(RESOURCE_MANAGER, RuntimeError("slot"), True, id="resource-manager"),
        pytest.param("jobmaster-1", KeyError("executor"), False, id="a-jobmaster-costs-its-job"),
        pytest.param("diagnostics", KeyError("log"), False, id="another-endpoint"),
        pytest.param(DISPATCHER, TaskManagerNotFound("tm-1"), False, id="a-call-that-failed"),
        pytest.param(DISPATCHER, OSError("disk full"), False, id="a-disk-that-is-full"),
        pytest.param(DISPATCHER, asyncio.CancelledError(), False, id="what-was-cancelled"),
    ],
)
def test_only_internal_errors_of_the_dispatcher_or_resource_manager_are_fatal(
    endpoint: str, error: BaseException, fatal: bool
) -> None:
    assert is_fatal(endpoint, error) is fatal


async def test_a_resource_manager_that_fails_ends_the_jobmanager(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log says why, and its address is no longer published."""

    answers = iter([Provided(0, ())])  # enough to start

    def broken(*_: object) -> Provided:
        for answer in answers:
            return answer
        raise KeyError("a defect")

    await cluster.master.aclose()
    monkeypatch.setattr(Provision, "decide", broken)
    resources = msgspec.structs.replace(cluster.config.resources, provider=Provider.PROCESS)
    config = msgspec.structs.replace(cluster.config, resources=resources)
    cluster.pki.issuer.issue_to(
        cluster.home.identity(Role.JOBMANAGER, JOBMANAGER),
        SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, JOBMANAGER),
        ips=["127.0.0.1"],
    )
    with pytest.raises(EndpointFailed, match=f"{RESOURCE_MANAGER} failed: KeyError"):
        async with asyncio.timeout(30):
            await run_jobmanager(cluster.home, config, cluster.pki.config, JOBMANAGER, check_streams=None)
    with pytest.raises(AddressUnknown):
        read_jobmanager(cluster.home)
