"""The provider against a fake Kubernetes API over TLS, with a clock that the test controls."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sluice.core import KubernetesApi
from sluice.runtime.ha import LeadershipLost
from sluice.runtime.jobmanager.gateways import ProvisionView
from sluice.runtime.jobmanager.pods.errors import PodChanged, PodsMisconfigured, PodsRefused, PodsUnavailable
from sluice.runtime.jobmanager.pods.names import MANAGED_BY, is_of_term, selector_of
from sluice.runtime.jobmanager.pods.plan import SURPLUS_SECONDS, PodLimits
from sluice.runtime.jobmanager.pods.pods_client import PAGE_PODS, PodsClient
from sluice.runtime.jobmanager.pods.provider import SETTLED_SECONDS, PodProvider, Term
from tests.outside import OutsideAuthority
from tests.unit.runtime.ha.kubernetes_api import TOKEN, ApiServer

TEMPLATE = {"spec": {"containers": [{"name": "taskmanager", "image": "i"}]}}


@dataclass
class World:
    """A fake API server, and the state that the ResourceManager reports."""

    api: ApiServer
    client: PodsClient
    wanted: int = 0
    registered: set[str] = field(default_factory=set)
    draining: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    now: float = 1000.0
    leads: bool = True

    async def provide(self, note: str) -> ProvisionView:
        """Answer as the ResourceManager does."""
        self.notes.append(note)
        return ProvisionView(
            wanted=self.wanted, registered=frozenset(self.registered), draining=frozenset(self.draining)
        )

    def check(self) -> None:
        """Check leadership: raise ``LeadershipLost`` unless ``leads`` is set."""
        if not self.leads:
            raise LeadershipLost("another JobManager leads")

    def provider(self, epoch: int = 1, *, most: int = 5, own_pod: str = "") -> PodProvider:
        """Return the pod provider of a leader."""
        return PodProvider(
            self.client,
            TEMPLATE,
            Term("c", epoch, self.check),
            PodLimits(most, 300.0),
            self.provide,
            own_pod=own_pod,
            clock=lambda: self.now,
        )

    @property
    def pods(self) -> dict[str, dict[str, Any]]:
        """The provider's pods."""
        return {
            name: content
            for (kind, name), content in self.api.objects.items()
            if kind == "pods" and (content["metadata"].get("labels") or {}).get("sluice/managed-by") == MANAGED_BY
        }

    def becomes(self, name: str, phase: str, **status: object) -> None:
        """Set a pod's status, as the kubelet does."""
        self.api.version += 1
        self.api.objects["pods", name]["metadata"]["resourceVersion"] = str(self.api.version)
        self.api.objects["pods", name]["status"] = {"phase": phase, **status}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """A world without pods."""
    directory = OutsideAuthority(tmp_path / "kubernetes").issue()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    api = ApiServer()
    url = await api.start(context)
    (tmp_path / "token").write_text(TOKEN)
    client = PodsClient(KubernetesApi(url, token_file=tmp_path / "token", ca_file=directory / "ca.pem"), "cluster")
    yield World(api, client)
    await client.close()
    await api.close()


async def test_pods_are_created_when_wanted_and_deleted_when_they_have_ended(world: World) -> None:
    provider = world.provider()
    await provider.reconcile()
    assert not world.pods
    world.wanted = 2
    await provider.reconcile()
    assert len(world.pods) == 2
    assert all(is_of_term(name, "c", 1) for name in world.pods)
    for name in world.pods:
        world.becomes(name, "Running")
        world.registered.add(name)
    await provider.reconcile()
    assert len(world.pods) == 2
    world.wanted, world.draining = 0, set(world.registered)
    await provider.reconcile()
    assert len(world.pods) == 2, "they leave by themselves"
    for name in world.pods:
        world.becomes(name, "Succeeded")
    world.registered, world.draining = set(), set()
    await provider.reconcile()
    assert not world.pods


async def test_an_exceeded_quota_is_reported_and_retried_after_a_pause(world: World) -> None:
    world.api.pods_quota = 1
    world.wanted = 3
    provider = world.provider()
    await provider.reconcile()
    assert len(world.pods) == 1
    await provider.reconcile()
    assert "exceeded quota: few" in world.notes[-1]
    world.api.pods_quota = None
    await provider.reconcile()
    assert len(world.pods) == 1, "not before the pause is over"
    world.now += 1
    await provider.reconcile()
    assert len(world.pods) == 3


async def test_the_reason_why_a_pod_does_not_start_is_reported(world: World) -> None:
    world.wanted = 1
    provider = world.provider()
    await provider.reconcile()
    (name,) = world.pods
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "i"'}}}
    world.becomes(name, "Pending", containerStatuses=[waiting])
    await provider.reconcile()
    await provider.reconcile()
    assert world.notes[-1] == f'pod {name} does not start: ImagePullBackOff: Back-off pulling image "i"'


async def test_a_new_leader_continues_with_the_pods_of_the_former_leader(world: World) -> None:
    world.wanted = 2
    await world.provider(1).reconcile()
    before = set(world.pods)
    await world.provider(2).reconcile()
    assert set(world.pods) == before
    world.wanted = 3
    await world.provider(2).reconcile()
    assert sum(is_of_term(name, "c", 2) for name in world.pods) == 1


async def test_a_former_leader_makes_and_deletes_nothing(world: World) -> None:
    world.wanted = 2
    world.leads = False
    with pytest.raises(LeadershipLost):
        await world.provider().reconcile()
    assert not world.pods
    world.leads = True
    await world.provider().reconcile()
    for name in world.pods:
        world.becomes(name, "Failed")
    world.leads = False
    await asyncio.wait_for(world.provider().run(), 30)
    assert len(world.pods) == 2


async def test_a_late_deletion_does_not_delete_a_pod_that_has_changed_since(world: World) -> None:
    world.wanted = 1
    await world.provider().reconcile()
    (seen,) = await world.client.list(selector_of("c"))
    world.becomes(seen.name, "Running")
    with pytest.raises(PodChanged):
        await world.client.delete(seen)
    assert set(world.pods) == {seen.name}


async def test_pods_of_other_owners_and_clusters_are_left_alone(world: World) -> None:
    other = {"metadata": {"name": "other", "labels": {"app": "db"}}, "spec": TEMPLATE["spec"]}
    namesake = {"metadata": {"name": "x", "labels": {"sluice/cluster": "d", "sluice/managed-by": MANAGED_BY}}}
    await world.client.create(other)
    await world.client.create(namesake | {"spec": TEMPLATE["spec"]})
    provider = world.provider()
    await provider.reconcile()
    world.now += SURPLUS_SECONDS
    await provider.reconcile()
    assert {("pods", "other"), ("pods", "x")} <= world.api.objects.keys()


async def test_pods_belong_to_the_controller_of_the_jobmanagers_pod(world: World) -> None:
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "jm", "uid": "u1", "controller": True}
    own = {"metadata": {"name": "jm-0", "ownerReferences": [reference]}, "spec": TEMPLATE["spec"]}
    world.wanted = 1
    with pytest.raises(PodsMisconfigured, match="jm-0"):
        await world.provider(own_pod="jm-0").reconcile()
    assert not world.pods
    await world.client.create(own)
    await world.provider(own_pod="jm-0").reconcile()
    (pod,) = world.pods.values()
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "u1"


async def test_more_pods_than_fit_into_a_page_are_all_listed(world: World) -> None:
    for number in range(PAGE_PODS + 7):
        labels = {"sluice/cluster": "c", "sluice/managed-by": MANAGED_BY}
        await world.client.create({"metadata": {"name": f"p{number}", "labels": labels}, "spec": TEMPLATE["spec"]})
    assert len(await world.client.list(selector_of("c"))) == PAGE_PODS + 7


async def test_a_lost_answer_to_a_creation_creates_no_second_pod(world: World) -> None:
    world.wanted = 1
    world.api.fate_of_writes = {"pods": "no answer"}
    provider = world.provider()
    with pytest.raises(PodsUnavailable):
        await provider.reconcile()
    world.api.fate_of_writes = {}
    await provider.reconcile()
    assert len(world.pods) == 1


@pytest.mark.parametrize(("fate", "error"), [("403", PodsRefused), ("429", PodsUnavailable), ("500", PodsUnavailable)])
async def test_a_refusal_is_distinguished_from_a_busy_server(fate: str, error: type[Exception], world: World) -> None:
    world.api.fate = fate
    with pytest.raises(error):
        await world.client.list(selector_of("c"))


async def test_the_loop_survives_an_unreachable_server_and_reports_it(world: World) -> None:
    world.wanted = 1
    world.api.fate = "no request"
    running = asyncio.create_task(world.provider().run())
    async with asyncio.timeout(60):
        while not any("does not answer" in note for note in world.notes):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        world.api.fate = "ok"
        while not world.pods:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    running.cancel()


async def test_settled_pods_are_not_listed_at_every_reconciliation(world: World) -> None:
    asked: list[str] = []
    provider = world.provider()
    listing = world.client.list

    async def counting(selector: str) -> list[Any]:
        asked.append(selector)
        return list(await listing(selector))

    world.client.list = counting  # type: ignore[method-assign]  # counts what goes through
    for _ in range(5):
        await provider.reconcile()
    assert len(asked) == 1
    world.wanted = 1
    await provider.reconcile()
    assert len(asked) == 2
    world.wanted = 0
    world.now += SETTLED_SECONDS
    await provider.reconcile()
    assert len(asked) == 3
