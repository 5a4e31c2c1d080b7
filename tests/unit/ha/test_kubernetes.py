"""Elections and fenced pointers on the Kubernetes API's semantics, over TLS, with a clock of the test's own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pki.identity import Role, SpiffeId
from runtime.ha.errors import ElectionUnavailable, LeadershipLost, PointerConflict, PointerExists
from runtime.ha.kubernetes import KubernetesElection, KubernetesLeadership
from runtime.ha.kubernetes_client import LEASES, KubernetesClient, ObjectConflict, ObjectMissing, RequestUnsettled
from runtime.ha.leadership import LeaderInformation
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.unit.ha.kubernetes_api import TOKEN, ApiServer

DURATION = 2


@dataclass
class World:
    """An API server and candidates."""

    api: ApiServer
    url: str
    tmp: Path
    stack: AsyncExitStack
    now: list[float] = field(default_factory=lambda: [1000.0])

    def client(
        self, *, token: str = TOKEN, ca_file: Path | None = None, namespace: str = "cluster"
    ) -> KubernetesClient:
        """A client with a service account."""
        file = self.tmp / f"token-{token}"
        file.write_text(token)
        client = KubernetesClient(self.url, namespace, token_file=file, ca_file=ca_file or self.tmp / "ca.pem")
        self.stack.push_async_callback(client.close)
        return client

    def candidate(self, name: str) -> KubernetesElection:
        """One that wants to lead."""
        return KubernetesElection(self.client(), cluster="c", name=name, duration=DURATION, clock=lambda: self.now[0])

    async def lead(self, candidate: KubernetesElection) -> KubernetesLeadership:
        """Wait until it leads."""
        leadership = await asyncio.wait_for(candidate.elect(lambda: None), 30)
        assert isinstance(leadership, KubernetesLeadership)
        self.stack.push_async_callback(leadership.resign)
        return leadership


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """An API server without objects."""
    directory = TestPki(tmp_path / "pki").directory(SpiffeId.process(TRUST_DOMAIN, Role.CA, "kubernetes"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    (tmp_path / "ca.pem").write_bytes((directory / "ca.pem").read_bytes())
    api = ApiServer()
    url = await api.start(context)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(api.close)
        yield World(api, url, tmp_path, stack)


def information(leadership: KubernetesLeadership) -> LeaderInformation:
    """What a leader says of itself."""
    return LeaderInformation(name="jm", epoch=leadership.epoch, origin="o", rpc=("localhost", 1), rest="/r")


async def test_one_leads_and_the_other_follows_at_once_when_it_resigns(world: World) -> None:
    one, other = world.candidate("jm-1"), world.candidate("jm-2")
    first = await world.lead(one)
    await first.publish(information(first))
    standing_by = asyncio.Event()
    waiting = asyncio.create_task(other.elect(standing_by.set))
    await asyncio.wait_for(standing_by.wait(), 30)
    assert await other.leader() == information(first)
    await first.pointers.create("jobs", "a", b"1")
    await first.resign()
    second = await asyncio.wait_for(waiting, 30)
    assert second.epoch > first.epoch
    found = await second.pointers.get("jobs", "a")
    assert found is not None
    assert found.value == b"1"
    assert await other.leader() is None
    await second.resign()


async def test_a_silent_holder_is_replaced_after_the_duration_and_writes_nothing_more(world: World) -> None:
    """It is paused: it does not renew, and does not look at its clock either."""
    first = await world.lead(world.candidate("jm-1"))
    first._renewing.cancel()
    other = world.candidate("jm-2")
    standing_by = asyncio.Event()
    waiting = asyncio.create_task(other.elect(standing_by.set))
    await asyncio.wait_for(standing_by.wait(), 30)
    assert not waiting.done()
    world.now[0] += DURATION + 0.1
    second = await asyncio.wait_for(waiting, 30)
    with pytest.raises(LeadershipLost):
        first.check()
    first._lost = asyncio.get_running_loop().create_future()
    first._belief.confirm(world.now[0])
    first.check()  # as one that woke up and has not looked at its clock yet
    with pytest.raises(LeadershipLost, match="epoch"):
        await first.pointers.create("jobs", "stale", b"x")
    await second.pointers.create("jobs", "fresh", b"y")
    assert await second.pointers.names("jobs") == ["fresh"]
    await second.resign()


async def test_a_holder_that_does_not_get_through_gives_up_before_anybody_takes_over(world: World) -> None:
    leadership = await world.lead(world.candidate("jm-1"))
    world.api.fate = "no request"
    world.now[0] += DURATION * 0.81
    assert "renewed" in await asyncio.wait_for(leadership.lost(), 30)
    with pytest.raises(LeadershipLost):
        await leadership.pointers.create("jobs", "late", b"x")
    world.api.fate = "ok"


async def test_pointers_have_versions(world: World) -> None:
    pointers = (await world.lead(world.candidate("jm-1"))).pointers
    assert await pointers.get("jobs", "a") is None
    await pointers.create("jobs", "a", b"1")
    with pytest.raises(PointerExists):
        await pointers.create("jobs", "a", b"2")
    await pointers.replace("jobs", "a", b"2", 0)
    with pytest.raises(PointerConflict):
        await pointers.replace("jobs", "a", b"3", 0)
    assert await pointers.names("jobs") == ["a"]
    await pointers.remove("jobs", "a")
    await pointers.remove("jobs", "a")
    assert await pointers.names("jobs") == []


@pytest.mark.parametrize("fate", ["no request", "no answer", "500", "429"])
async def test_a_write_without_an_answer_is_done_exactly_once(world: World, fate: str) -> None:
    leadership = await world.lead(world.candidate("jm-1"))
    world.api.fate = fate
    writing = asyncio.create_task(leadership.pointers.create("jobs", "a", b"1"))
    await asyncio.sleep(0.3)
    assert not writing.done()
    world.api.fate = "ok"
    await asyncio.wait_for(writing, 30)
    await leadership.pointers.replace("jobs", "a", b"2", 0)
    found = await leadership.pointers.get("jobs", "a")
    assert found is not None
    assert (found.value, found.version) == (b"2", 1)


async def test_somebody_who_edits_the_config_map_is_noticed(world: World) -> None:
    """Not a leader, so the epoch is the same: the write is based on what is there now."""
    leadership = await world.lead(world.candidate("jm-1"))
    await leadership.pointers.create("jobs", "a", b"1")
    client = world.client()
    edited = await client.get("/api/v1", "configmaps", "sluice-c-pointers")
    edited["data"]["jobs.b"] = "0:eA=="
    await client.replace("/api/v1", "configmaps", edited)
    await leadership.pointers.create("jobs", "c", b"1")
    assert await leadership.pointers.names("jobs") == ["a", "b", "c"]


async def test_who_makes_a_lease_anew_fences_those_of_the_removed_one(world: World) -> None:
    """Its count of transitions begins anew; the epoch that writes go by does not."""
    first = await world.lead(world.candidate("jm-1"))
    await first.pointers.create("jobs", "a", b"1")
    del world.api.objects["leases", "sluice-c"]
    second = await world.lead(world.candidate("jm-2"))
    assert second.epoch == first.epoch + 1
    with pytest.raises(LeadershipLost):
        await first.pointers.create("jobs", "late", b"x")
    assert await second.pointers.names("jobs") == ["a"]


async def test_a_leader_whose_lease_is_removed_leads_no_longer(world: World) -> None:
    leadership = await world.lead(world.candidate("jm-1"))
    del world.api.objects["leases", "sluice-c"]
    assert "removed" in await asyncio.wait_for(leadership.lost(), 30)


async def test_stale_objects_conflict_and_missing_ones_are_missing(world: World) -> None:
    client = world.client()
    with pytest.raises(ObjectMissing):
        await client.get(LEASES, "leases", "x")
    content = {"metadata": {"name": "x"}, "spec": {"holderIdentity": ""}}
    made = await client.create(LEASES, "leases", content)
    with pytest.raises(ObjectConflict):
        await client.create(LEASES, "leases", content)
    await client.replace(LEASES, "leases", made)
    with pytest.raises(ObjectConflict):
        await client.replace(LEASES, "leases", made)


@pytest.mark.parametrize("wrong", ["token", "namespace"])
async def test_a_refusal_is_told_apart_from_silence(world: World, wrong: str) -> None:
    client = world.client(token="guess") if wrong == "token" else world.client(namespace="other")  # noqa: S106
    with pytest.raises(ElectionUnavailable, match="refused"):
        await client.get(LEASES, "leases", "x")
    world.api.fate = "no request"
    with pytest.raises(RequestUnsettled):
        await world.client().get(LEASES, "leases", "x")


async def test_a_server_of_another_authority_is_not_spoken_to(world: World) -> None:
    other = TestPki(world.tmp / "other").directory(SpiffeId.process(TRUST_DOMAIN, Role.CA, "kubernetes"))
    with pytest.raises(ElectionUnavailable, match="trusted"):
        await world.client(ca_file=other / "ca.pem").get(LEASES, "leases", "x")
    assert world.api.writes == []
