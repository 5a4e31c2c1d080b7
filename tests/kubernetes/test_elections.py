"""Elections and pointers on a real API server.

The JobManagers have only the rights in docs/howto/high-availability.md.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from sluice.runtime.ha.errors import LeadershipLost, StorageUnavailable
from sluice.runtime.ha.kubernetes.client import KubernetesClient
from sluice.runtime.ha.kubernetes.election import KubernetesElection, KubernetesLeadership
from sluice.runtime.ha.storage import LocalStorage
from sluice.runtime.ha.storage_identity import check_storage
from sluice.runtime.jobmanager.store.job_store import JobStore
from sluice.runtime.messages import BlobRef, JobSubmission
from tests.kubernetes.api_server import LEADER, NAMESPACE, ApiServer

DURATION = 4
INTERRUPTED = pytest.mark.filterwarnings("ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning")
"""Requests to a server that sleeps are given up within the handshake, and asyncio closes their connections late."""
SUBMISSION = JobSubmission(name="p.py", owner="ann", pipeline=BlobRef(sha256="0" * 64, name="p.py", size=1))


@dataclass
class World:
    """A cluster that no other test uses."""

    server: ApiServer
    cluster: str
    tmp: Path
    stack: AsyncExitStack

    def candidate(self, name: str) -> KubernetesElection:
        """The election of a JobManager with this name."""
        account = self.tmp / f"account-{secrets.token_hex(4)}"
        self.server.account(account, LEADER)
        client = KubernetesClient(self.server.url, NAMESPACE, token_file=account / "token", ca_file=account / "ca.crt")
        election = KubernetesElection(client, cluster=self.cluster, name=name, duration=DURATION)
        self.stack.push_async_callback(election.close)
        return election

    async def lead(self, election: KubernetesElection) -> KubernetesLeadership:
        """Wait until the candidate leads; returns its leadership."""
        leadership = await asyncio.wait_for(election.elect(lambda: None), 60)
        assert isinstance(leadership, KubernetesLeadership)
        self.stack.push_async_callback(leadership.resign)
        return leadership

    def blob(self) -> Path:
        """A file that stands for the pipeline of a submission."""
        path = self.tmp / "pipeline"
        path.write_bytes(b"x")
        return path

    async def call(self, method: str, kind: str, content: object = None, *, merge: bool = False) -> tuple[int, dict]:  # type: ignore[type-arg]  # JSON
        """Send a request about the Lease or the pointers ConfigMap, as the administrator."""
        name = f"sluice-{self.cluster}" + ("-pointers" if kind == "configmaps" else "")
        form = "merge-patch+json" if merge else "json"
        return await asyncio.to_thread(self.server.call, method, self.server.objects(kind, name), content, kind=form)

    async def holder(self) -> str:
        """The holder of the Lease; empty if nobody holds it."""
        _, lease = await self.call("GET", "leases")
        return str((lease.get("spec") or {}).get("holderIdentity") or "")

    async def data(self) -> dict[str, str]:
        """The entries of the pointers ConfigMap; empty if it does not exist."""
        status, content = await self.call("GET", "configmaps")
        return (content.get("data") or {}) if status == 200 else {}


@pytest.fixture
async def world(server: ApiServer, tmp_path: Path) -> AsyncIterator[World]:
    """A cluster without JobManagers; they would have the rights in docs/howto/high-availability.md."""
    cluster = f"t{secrets.token_hex(4)}"
    lease, pointers = f"sluice-{cluster}", f"sluice-{cluster}-pointers"
    rules = [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [lease],
            "verbs": ["get", "update"],
        },
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [pointers], "verbs": ["get", "update"]},
    ]
    await asyncio.to_thread(server.allow, cluster, LEADER, rules)
    async with AsyncExitStack() as stack:
        yield World(server, cluster, tmp_path, stack)


def store_of(leadership: KubernetesLeadership, root: Path) -> tuple[JobStore, LocalStorage]:
    """The job store of a leader's term, and its storage."""
    storage = LocalStorage(root / "storage")
    return JobStore(leadership.pointers, storage, epoch=leadership.epoch, origin="here"), storage


async def test_the_next_leader_takes_over_with_all_pointers(world: World) -> None:
    first = await world.lead(world.candidate("jm-1"))
    await first.pointers.create("jobs", "a", b"1")
    standing_by = asyncio.Event()
    waiting = asyncio.create_task(world.candidate("jm-2").elect(standing_by.set))
    await asyncio.wait_for(standing_by.wait(), 30)
    await first.resign()
    second = await asyncio.wait_for(waiting, 30)
    assert second.epoch == first.epoch + 1
    assert await second.pointers.names("jobs") == ["a"]
    with pytest.raises(LeadershipLost):
        await first.pointers.create("jobs", "b", b"1")
    await second.resign()


async def test_no_job_is_lost_when_the_config_map_of_pointers_is_deleted(world: World) -> None:
    """48: the leader makes it again, even when it writes nothing; the next leader has every submission."""
    leadership = await world.lead(world.candidate("jm-1"))
    store, storage = store_of(leadership, world.tmp)
    await check_storage(leadership.pointers, storage)
    await store.accept("a" * 32, SUBMISSION, 1, lambda _: world.blob())
    assert (await world.call("DELETE", "configmaps"))[0] == 200
    await store.accept("b" * 32, SUBMISSION, 2, lambda _: world.blob())
    assert (await world.call("DELETE", "configmaps"))[0] == 200
    async with asyncio.timeout(60):
        while len(await world.data()) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    await leadership.resign()
    later = await world.lead(world.candidate("jm-2"))
    store, storage = store_of(later, world.tmp)
    await check_storage(later.pointers, storage)
    found = await store.recover()
    assert [(job.job_id[0], job.submission is not None) for job in found.accepted] == [("a", True), ("b", True)]


async def test_the_next_leader_stops_when_pointers_were_lost_without_a_leader(world: World) -> None:
    """48: storage with a mark is not taken for new storage, and nothing in it is touched."""
    leadership = await world.lead(world.candidate("jm-1"))
    store, storage = store_of(leadership, world.tmp)
    await check_storage(leadership.pointers, storage)
    await store.accept("a" * 32, SUBMISSION, 1, lambda _: world.blob())
    await leadership.resign()
    before = sorted(path.name for path in (world.tmp / "storage").rglob("*"))
    for kind in ("configmaps", "leases"):
        assert (await world.call("DELETE", kind))[0] == 200
    later = await world.lead(world.candidate("jm-2"))
    with pytest.raises(StorageUnavailable, match="pointers"):
        await check_storage(later.pointers, storage)
    assert sorted(path.name for path in (world.tmp / "storage").rglob("*")) == before


async def test_a_former_leader_writes_nothing_after_lease_and_pointers_were_removed(world: World) -> None:
    """50: epochs begin again, so the former leader that slept has the higher one."""
    for _ in range(3):
        await (await world.lead(world.candidate("jm-1"))).resign()
    former = await world.lead(world.candidate("jm-1"))
    for task in (former._renewing, former._guarding):
        assert task is not None
        task.cancel()
    for kind in ("configmaps", "leases"):
        assert (await world.call("DELETE", kind))[0] == 200
    later = await world.lead(world.candidate("jm-2"))
    assert later.epoch < former.epoch
    await later.pointers.create("jobs", "a", b"1")
    former._validity.confirm(time.monotonic())
    with pytest.raises(LeadershipLost):
        await former.pointers.create("jobs", "late", b"x")
    assert list(await world.data()) == ["jobs.a"]


@INTERRUPTED
async def test_a_candidate_survives_an_api_server_that_hangs_after_it_took_the_lease(world: World) -> None:
    """49: the candidate stands by, and leads when the server answers again."""
    await (await world.lead(world.candidate("jm-1"))).resign()
    election = world.candidate("jm-2")
    said = asyncio.Event()
    waiting = asyncio.create_task(election.elect(said.set))
    async with asyncio.timeout(60):
        while not (await world.holder()).startswith("jm-2"):
            pass
    world.server.process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(DURATION * 1.5)  # longer than it may believe in the Lease
    finally:
        world.server.process.send_signal(signal.SIGCONT)
    leadership = await asyncio.wait_for(waiting, 60)
    await leadership.resign()


@INTERRUPTED
async def test_a_standby_survives_an_outage_of_the_api_server(world: World) -> None:
    """49: the outage is longer than a request may take."""
    leader = await world.lead(world.candidate("jm-1"))
    said = asyncio.Event()
    waiting = asyncio.create_task(world.candidate("jm-2").elect(said.set))
    await asyncio.wait_for(said.wait(), 30)
    with world.server.away():
        assert "renewed" in await asyncio.wait_for(leader.lost(), 30)
        await asyncio.sleep(DURATION)
        assert not waiting.done()
    later = await asyncio.wait_for(waiting, 60)
    later.check()
    await later.resign()


async def test_a_damaged_epoch_does_not_prevent_the_next_election(world: World) -> None:
    """49: an epoch that is not a number does not stop the next candidate."""
    first = await world.lead(world.candidate("jm-1"))
    await first.resign()
    patch = {"metadata": {"annotations": {"sluice.epoch": "no number"}}}
    assert (await world.call("PATCH", "configmaps", patch, merge=True))[0] == 200
    later = await world.lead(world.candidate("jm-2"))
    assert later.epoch == first.epoch + 1


async def test_a_candidate_without_the_right_to_write_pointers_releases_the_lease(world: World) -> None:
    """51: the server itself refuses the write, because the rights were taken away."""
    await (await world.lead(world.candidate("jm-1"))).resign()
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/{world.cluster}"
    _, role = await asyncio.to_thread(world.server.call, "GET", path)
    kept = [rule for rule in role["rules"] if rule["resources"] != ["configmaps"]]
    reading = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}
    await asyncio.to_thread(world.server.call, "PATCH", path, {"rules": [*kept, reading]}, kind="merge-patch+json")
    said = asyncio.Event()
    waiting = asyncio.create_task(world.candidate("jm-2").elect(said.set))
    await asyncio.wait_for(said.wait(), 60)
    assert await world.holder() == ""
    assert not waiting.done()
    await asyncio.to_thread(world.server.call, "PATCH", path, {"rules": role["rules"]}, kind="merge-patch+json")
    await (await asyncio.wait_for(waiting, 60)).resign()
