"""A JobManager of another cluster in the same trust domain: a valid certificate, but no rights here."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.core.errors import PeerRefused
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.gateways import RESOURCE_MANAGER, jobmaster_endpoint
from sluice.runtime.jobmanager.gateways import (
    DISPATCHER,
    DispatcherGateway,
    JobMasterInternalGateway,
    ResourceManagerInternalGateway,
)
from sluice.runtime.node.leader_finder import RemoteLeaderFinder
from sluice.runtime.rpc import CallNotPermitted, RpcService
from sluice.runtime.rpc.contract import gateway_of
from tests.hostile import TRUST_DOMAIN
from tests.integration.runtime.conftest import JOBMANAGER, Cluster


@pytest.mark.parametrize("name", ["of-another-cluster", JOBMANAGER])
async def test_no_peer_submits_cancels_or_reads_past_the_gateway(cluster: Cluster, name: str) -> None:
    """Neither with the role alone nor with this JobManager's own certificate: those endpoints are local."""
    await cluster.start_taskmanager("tm-1")
    job_id = await cluster.submit(executors=1)
    await cluster.until_running(job_id, 1)
    served: tuple[tuple[type, str], ...] = (
        (DispatcherGateway, DISPATCHER),
        (ResourceManagerInternalGateway, RESOURCE_MANAGER),
        (JobMasterInternalGateway, jobmaster_endpoint(job_id)),
    )
    assert cluster.address is not None
    service = RpcService(cluster.pki.identity(SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, name)))
    try:
        peer = await service.connect(*cluster.address.rpc)
        for protocol, endpoint in served:
            # Tells are dead letters there, and nobody hears of them: what is asked for is told why not.
            methods = {each: method for each, method in gateway_of(protocol).methods.items() if not method.rules.oneway}
            proxy: Any = peer.gateway(protocol, endpoint, token=b"guessed")
            for method in methods.values():
                with pytest.raises(CallNotPermitted, match=f"may not call {method.name}"):
                    await getattr(proxy, method.name)(*[None] * len(method.parameters))
    finally:
        await service.close()
    assert [each["id"] for each in (await cluster.get("/v1/jobs"))["jobs"]] == [job_id]
    cluster.flag.touch()
    await cluster.until(job_id, "FINISHED")


async def test_a_taskmanager_that_knows_the_names_of_its_jobmanagers_refuses_any_other(cluster: Cluster) -> None:
    """Another process may by now listen at an address that was configured once."""
    assert cluster.address is not None
    service = RpcService(cluster.pki.process(Role.TASKMANAGER, "tm-1"))
    try:
        with pytest.raises(PeerRefused, match=r"not a JobManager of this cluster.*ha\.jobmanagers"):
            await RemoteLeaderFinder(service, [cluster.address.rpc], jobmanagers=("jm-2", "jm-3")).dial()
        peer = await RemoteLeaderFinder(service, [cluster.address.rpc], jobmanagers=("jm-2", JOBMANAGER)).dial()
        assert peer.identity.name == JOBMANAGER
    finally:
        await service.close()
