"""Elections and fenced pointers with the semantics of the Kubernetes API, over TLS, with a test clock."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sluice.runtime.ha.errors import (
    ElectionUnavailable,
    LeadershipLost,
    OutcomeUnknown,
    PointerConflict,
    PointerExists,
    PointersFull,
    StorageUnavailable,
)
from sluice.runtime.ha.kubernetes.client import (
    LEASES,
    KubernetesClient,
    ObjectConflict,
    ObjectMissing,
    RequestUnsettled,
)
from sluice.runtime.ha.kubernetes.election import KubernetesElection, KubernetesLeadership
from sluice.runtime.ha.kubernetes.pointers import MAX_TOTAL_BYTES, RESERVED_BYTES_PER_JOB, TERM
from sluice.runtime.ha.leadership import LeaderInformation
from sluice.runtime.ha.pointers import MAX_POINTER_BYTES, PointerStore
from tests.outside import OutsideAuthority
from tests.unit.runtime.ha.kubernetes_api import TOKEN, ApiServer

DURATION = 2
POINTERS = ("configmaps", "sluice-c-pointers")
LEASE = ("leases", "sluice-c")


@dataclass
class World:
    """An API server, its candidates and a clock."""

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
        """Return a candidate for the leadership."""
        return KubernetesElection(self.client(), cluster="c", name=name, duration=DURATION, clock=lambda: self.now[0])

    async def lead(self, candidate: KubernetesElection) -> KubernetesLeadership:
        """Wait until the candidate leads and return its leadership."""
        leadership = await asyncio.wait_for(candidate.elect(lambda: None), 30)
        assert isinstance(leadership, KubernetesLeadership)
        self.stack.push_async_callback(leadership.resign)
        return leadership


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """An API server without objects."""
    directory = OutsideAuthority(tmp_path / "kubernetes").issue()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "chain.pem", directory / "key.pem")
    (tmp_path / "ca.pem").write_bytes((directory / "ca.pem").read_bytes())
    api = ApiServer()
    url = await api.start(context)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(api.close)
        yield World(api, url, tmp_path, stack)


def information(leadership: KubernetesLeadership) -> LeaderInformation:
    """Return what a leader publishes about itself."""
    return LeaderInformation(name="jm", epoch=leadership.epoch, origin="o", rpc=("localhost", 1), rest="/r")


async def test_a_standby_leads_at_once_when_the_leader_resigns(world: World) -> None:
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


async def test_a_silent_leader_is_replaced_after_the_lease_duration_and_cannot_write_any_more(world: World) -> None:
    """The leader is paused: it does not renew its lease, and does not look at its clock either."""
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
    first._validity.confirm(world.now[0])
    first.check()  # as one that woke up and has not looked at its clock yet
    with pytest.raises(LeadershipLost, match="another term"):
        await first.pointers.create("jobs", "stale", b"x")
    await second.pointers.create("jobs", "fresh", b"y")
    assert await second.pointers.names("jobs") == ["fresh"]
    await second.resign()


async def test_a_leader_that_cannot_renew_its_lease_gives_up_before_another_takes_over(world: World) -> None:
    leadership = await world.lead(world.candidate("jm-1"))
    world.api.fate = "no request"
    world.now[0] += DURATION * 0.81
    assert "renewed" in await asyncio.wait_for(leadership.lost(), 30)
    with pytest.raises(LeadershipLost):
        await leadership.pointers.create("jobs", "late", b"x")
    world.api.fate = "ok"


async def test_pointers_are_changed_only_with_their_current_version(world: World) -> None:
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


async def test_a_write_keeps_edits_that_others_made_to_the_configmap(world: World) -> None:
    """The editor is no leader, so the epoch is the same: a write is based on what is there now."""
    leadership = await world.lead(world.candidate("jm-1"))
    await leadership.pointers.create("jobs", "a", b"1")
    client = world.client()
    edited = await client.get("/api/v1", "configmaps", "sluice-c-pointers")
    edited["data"]["jobs.b"] = "0:eA=="
    await client.replace("/api/v1", "configmaps", edited)
    await leadership.pointers.create("jobs", "c", b"1")
    assert await leadership.pointers.names("jobs") == ["a", "b", "c"]


async def test_a_leader_with_a_new_lease_fences_the_leader_of_the_removed_lease(world: World) -> None:
    """The count of transitions of the new Lease starts again; the epoch that fences writes does not."""
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


async def test_a_stale_object_is_a_conflict_and_an_absent_one_is_missing(world: World) -> None:
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
async def test_a_refused_request_and_an_unanswered_one_raise_different_errors(world: World, wrong: str) -> None:
    client = world.client(token="guess") if wrong == "token" else world.client(namespace="other")  # noqa: S106
    with pytest.raises(ElectionUnavailable, match="refused"):
        await client.get(LEASES, "leases", "x")
    world.api.fate = "no request"
    with pytest.raises(RequestUnsettled):
        await world.client().get(LEASES, "leases", "x")


async def test_no_request_is_sent_to_a_server_of_another_authority(world: World) -> None:
    other = OutsideAuthority(world.tmp / "other")
    with pytest.raises(ElectionUnavailable, match="trusted"):
        await world.client(ca_file=other.ca_file).get(LEASES, "leases", "x")
    assert world.api.writes == []


# --- objects that somebody removes ----------------------------------------------------------------------------


@pytest.mark.parametrize("noticed_by", ["a write", "a look"])
async def test_a_leader_recreates_a_removed_configmap_of_pointers(world: World, noticed_by: str) -> None:
    leadership = await world.lead(world.candidate("jm-1"))
    pointers = leadership.pointers
    for name in ("a", "b"):
        await pointers.create("jobs", name, name.encode())
    await pointers.replace("jobs", "b", b"2", 0)
    del world.api.objects[POINTERS]
    if noticed_by == "a write":
        await pointers.create("jobs", "c", b"c")
    else:
        await pointers.verify()
    expected = {"jobs.a": "0:YQ==", "jobs.b": "1:Mg=="} | ({"jobs.c": "0:Yw=="} if noticed_by == "a write" else {})
    assert world.api.objects[POINTERS]["data"] == expected
    await leadership.resign()
    later = await world.lead(world.candidate("jm-2"))
    assert await later.pointers.names("jobs") == sorted(each.removeprefix("jobs.") for each in expected)


async def test_an_idle_leader_recreates_a_removed_configmap_of_pointers(world: World) -> None:
    leadership = await world.lead(world.candidate("jm-1"))
    await leadership.pointers.create("jobs", "a", b"1")
    del world.api.objects[POINTERS]
    async with asyncio.timeout(30):
        while POINTERS not in world.api.objects:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert list(world.api.objects[POINTERS]["data"]) == ["jobs.a"]


async def test_a_leader_refills_an_emptied_configmap_of_pointers(world: World) -> None:
    leadership = await world.lead(world.candidate("jm-1"))
    await leadership.pointers.create("meta", "storage", b"mark")
    await leadership.pointers.create("jobs", "a", b"1")
    client = world.client()
    edited = await client.get("/api/v1", *POINTERS)
    edited["data"] = {}
    await client.replace("/api/v1", "configmaps", edited)
    await leadership.pointers.create("jobs", "b", b"2")
    assert sorted(world.api.objects[POINTERS]["data"]) == ["jobs.a", "jobs.b", "meta.storage"]


async def test_a_former_leader_does_not_recreate_a_removed_configmap_of_pointers(world: World) -> None:
    first = await world.lead(world.candidate("jm-1"))
    await first.pointers.create("jobs", "a", b"1")
    for task in (first._renewing, first._guarding):
        assert task is not None
        task.cancel()
    del world.api.objects[POINTERS]
    world.api.objects[LEASE]["spec"]["holderIdentity"] = "somebody else"
    with pytest.raises(LeadershipLost, match="holds the Lease"):
        await first.pointers.create("jobs", "b", b"1")
    assert POINTERS not in world.api.objects


async def test_a_former_leader_with_a_higher_epoch_cannot_write_after_epochs_begin_again(world: World) -> None:
    """Lease and ConfigMap are both removed: the next epoch is lower than that of a leader that slept."""
    for _ in range(3):
        await (await world.lead(world.candidate("jm-1"))).resign()
    first = await world.lead(world.candidate("jm-1"))
    for task in (first._renewing, first._guarding):
        assert task is not None
        task.cancel()
    del world.api.objects[POINTERS], world.api.objects[LEASE]
    second = await world.lead(world.candidate("jm-2"))
    assert second.epoch < first.epoch
    await second.pointers.create("jobs", "a", b"1")
    first.check()  # it has not noticed
    with pytest.raises(LeadershipLost, match="another term"):
        await first.pointers.create("jobs", "late", b"x")
    assert "term" in await asyncio.wait_for(first.lost(), 30)
    await second.pointers.create("jobs", "b", b"1")
    assert await second.pointers.names("jobs") == ["a", "b"]


async def test_a_candidate_that_paused_before_its_first_write_cannot_claim_the_pointers(world: World) -> None:
    """Its epoch is higher, but once it has read the ConfigMap, the holder of the Lease counts."""
    first = await world.lead(world.candidate("jm-1"))
    for task in (first._renewing, first._guarding):
        assert task is not None
        task.cancel()
    del world.api.objects[POINTERS], world.api.objects[LEASE]
    second = await world.lead(world.candidate("jm-2"))
    with pytest.raises(LeadershipLost, match="holds the Lease"):
        await first.pointers.claim()
    await second.pointers.create("jobs", "a", b"1")
    assert world.api.objects[POINTERS]["metadata"]["annotations"][TERM].startswith("jm-2_")


async def test_a_restored_backup_of_the_pointers_ends_the_term_and_the_next_continues_from_it(world: World) -> None:
    first = await world.lead(world.candidate("jm-1"))
    await first.pointers.create("jobs", "a", b"1")
    backup = {"metadata": {"name": POINTERS[1]}, "data": dict(world.api.objects[POINTERS]["data"])}
    await first.pointers.create("jobs", "b", b"1")
    assert first._guarding is not None
    first._guarding.cancel()  # it would recreate the ConfigMap before the backup is there
    del world.api.objects[POINTERS]
    await world.client().create("/api/v1", "configmaps", backup)
    with pytest.raises(LeadershipLost, match="restored"):
        await first.pointers.create("jobs", "c", b"1")
    await first.resign()
    second = await world.lead(world.candidate("jm-1"))
    assert await second.pointers.names("jobs") == ["a"]


# --- passing faults -------------------------------------------------------------------------------------------


async def test_a_candidate_survives_losing_the_api_server_right_after_taking_the_lease(world: World) -> None:
    """Its lease ends while it claims the pointers: it stands by, and leads when the server is back."""

    def goes(_method: str, kind: str) -> None:
        if kind == "leases" and world.api.objects[LEASE]["spec"].get("holderIdentity"):
            world.api.fate = "no request"
            world.now[0] += DURATION

    world.api.written = goes
    standing_by = asyncio.Event()
    waiting = asyncio.create_task(world.candidate("jm-1").elect(standing_by.set))
    await asyncio.wait_for(standing_by.wait(), 30)
    assert not waiting.done()
    world.api.written = lambda _method, _kind: None
    world.api.fate = "ok"
    leadership = await asyncio.wait_for(waiting, 30)
    leadership.check()
    await leadership.resign()


@pytest.mark.parametrize("damage", ["no number", "99999999999999999999", ""])
async def test_a_damaged_epoch_annotation_does_not_prevent_leading(world: World, damage: str) -> None:
    first = await world.lead(world.candidate("jm-1"))
    await first.pointers.create("jobs", "a", b"1")
    world.api.objects[POINTERS]["metadata"]["annotations"]["sluice.epoch"] = damage
    await first.pointers.create("jobs", "b", b"1")
    await first.resign()
    world.api.objects[POINTERS]["metadata"]["annotations"]["sluice.epoch"] = damage
    second = await world.lead(world.candidate("jm-2"))
    assert second.epoch == first.epoch + 1
    assert await second.pointers.names("jobs") == ["a", "b"]


async def test_a_lease_without_a_spec_can_be_taken(world: World) -> None:
    await (await world.lead(world.candidate("jm-1"))).resign()
    del world.api.objects[LEASE]["spec"]
    assert await world.candidate("jm-2").leader() is None
    (await world.lead(world.candidate("jm-1"))).check()


@pytest.mark.parametrize("fate", ["500", "403"])
async def test_a_candidate_that_cannot_write_pointers_gives_the_lease_back(world: World, fate: str) -> None:
    await (await world.lead(world.candidate("jm-1"))).resign()
    world.api.fate_of_writes["configmaps"] = fate
    standing_by = asyncio.Event()
    waiting = asyncio.create_task(world.candidate("jm-1").elect(standing_by.set))
    await asyncio.wait_for(standing_by.wait(), 30)
    assert world.api.objects[LEASE]["spec"]["holderIdentity"] == ""
    assert not waiting.done()
    del world.api.fate_of_writes["configmaps"]
    await (await asyncio.wait_for(waiting, 30)).resign()


async def test_a_leader_gives_its_lease_back_even_if_a_renewal_was_carried_out_unnoticed(world: World) -> None:
    """The renewal was cancelled by the leader, and carried out by the server all the same."""
    leadership = await world.lead(world.candidate("jm-1"))
    client = world.client()
    renewed = await client.get(LEASES, *LEASE)
    await client.replace(LEASES, "leases", renewed)
    await leadership.resign()
    assert world.api.objects[LEASE]["spec"]["holderIdentity"] == ""


async def test_a_refused_write_of_a_pointer_raises_storage_unavailable(world: World) -> None:
    leadership = await world.lead(world.candidate("jm-1"))
    world.api.fate_of_writes["configmaps"] = "403"
    with pytest.raises(StorageUnavailable, match="403"):
        await leadership.pointers.create("jobs", "a", b"1")
    del world.api.fate_of_writes["configmaps"]
    await leadership.pointers.create("jobs", "a", b"1")


async def test_a_write_unanswered_until_another_leader_takes_over_has_an_unknown_outcome(world: World) -> None:
    """It was carried out, and the next leader has it: the caller must not be told that it was not."""
    first = await world.lead(world.candidate("jm-1"))
    world.api.fate_of_writes["configmaps"] = "no answer"
    writing = asyncio.create_task(first.pointers.create("jobs", "a", b"1"))
    async with asyncio.timeout(30):
        while "jobs.a" not in world.api.objects[POINTERS]["data"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    world.api.objects[POINTERS]["metadata"]["annotations"][TERM] = "another"
    with pytest.raises(OutcomeUnknown):
        await asyncio.wait_for(writing, 30)


async def test_no_job_is_accepted_without_room_for_the_pointer_of_its_result(world: World) -> None:
    pointers = (await world.lead(world.candidate("jm-1"))).pointers
    accepted = await _fill(pointers, "jobs", MAX_POINTER_BYTES, "unfinished jobs")
    assert accepted > 5
    for number in range(accepted):
        await pointers.create("results", f"j{number}", bytes(RESERVED_BYTES_PER_JOB // 2))
    await _fill(pointers, "history", MAX_POINTER_BYTES, "pointers have")
    data = world.api.objects[POINTERS]["data"]
    assert sum(len(key) + len(text) for key, text in data.items()) <= MAX_TOTAL_BYTES


async def _fill(pointers: PointerStore, folder: str, size: int, why: str) -> int:
    """Return how many pointers of this size fit; the next one must be refused with the reason ``why``."""
    for number in range(100):
        try:
            await pointers.create(folder, f"j{number}", bytes(size))
        except PointersFull as error:
            if why in error.what:
                return number
            raise
    raise AssertionError("there was no end to it")
