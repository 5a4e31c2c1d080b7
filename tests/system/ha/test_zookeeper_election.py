"""Elections and fenced pointers in a real three-node ensemble over mutual TLS."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import msgspec
import pytest
from kazoo.exceptions import NoAuthError  # type: ignore[import-untyped]  # has no types
from kazoo.security import OPEN_ACL_UNSAFE  # type: ignore[import-untyped]

from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.runtime.ha.config import HaConfig
from sluice.runtime.ha.errors import LeadershipLost, PointerConflict, PointerExists
from sluice.runtime.ha.leadership import LeaderInformation, Leadership
from sluice.runtime.ha.zookeeper.election import ZooKeeperElection, ZooKeeperLeadership
from sluice.runtime.ha.zookeeper.session import ZooKeeperSession
from tests.hostile import TRUST_DOMAIN, Hostile
from tests.system.ha.ensemble import Ensemble
from tests.system.ha.world import eventually

SESSION_SECONDS = 4.0
LONGEST_SECONDS = 10.0
CLUSTERS = itertools.count(1)


@dataclass
class Candidates:
    """JobManagers that want to lead a cluster of the test's own."""

    ensemble: Ensemble
    config: HaConfig
    stack: AsyncExitStack
    all: list[ZooKeeperElection] = field(default_factory=list)

    def add(self, name: str) -> ZooKeeperElection:
        """Add a candidate."""
        identity = self.ensemble.pki.identity(SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, name))
        election = ZooKeeperElection(self.config, identity)
        self.stack.push_async_callback(election.close)
        self.all.append(election)
        return election

    async def lead(self, election: ZooKeeperElection) -> Leadership:
        """Wait until ``election`` leads."""
        leadership = await asyncio.wait_for(election.elect(lambda: None), 40)
        self.stack.push_async_callback(leadership.resign)
        return leadership


@pytest.fixture
async def candidates(ensemble: Ensemble) -> AsyncIterator[Candidates]:
    """Provide an election without candidates."""
    await asyncio.to_thread(ensemble.until_whole)
    config = HaConfig(
        mode="zookeeper",
        storage="/unused",
        cluster=f"test-{next(CLUSTERS)}",
        session_timeout=SESSION_SECONDS,
        zookeeper_hosts=ensemble.hosts,
        jobmanagers=("jm-1", "jm-2"),
    )
    async with AsyncExitStack() as stack:
        yield Candidates(ensemble, config, stack)


def information(leadership: Leadership) -> LeaderInformation:
    """Return what a leader publishes about itself."""
    return LeaderInformation(name="jm", epoch=leadership.epoch, origin="o", rpc=("localhost", 1), rest="/r")


async def test_the_standby_leads_after_the_leader_resigns(candidates: Candidates) -> None:
    one, other = candidates.add("jm-1"), candidates.add("jm-2")
    first = await candidates.lead(one)
    await first.publish(information(first))
    standing_by = asyncio.Event()
    waiting = asyncio.create_task(other.elect(standing_by.set))
    await asyncio.wait_for(standing_by.wait(), 30)
    assert await other.leader() == information(first)
    assert (await one.standbys(), await other.standbys()) == (("jm-2",), ("jm-2",))
    await first.pointers.create("jobs", "a", b"1")
    await first.resign()
    second = await asyncio.wait_for(waiting, 30)
    assert second.epoch > first.epoch
    found = await second.pointers.get("jobs", "a")
    assert found is not None
    assert found.value == b"1"
    assert await other.leader() is None
    assert await other.standbys() == ()
    assert await one.standbys() is None, "it has left the election"
    await second.resign()


async def test_pointers_are_written_only_with_their_current_version(candidates: Candidates) -> None:
    pointers = (await candidates.lead(candidates.add("jm-1"))).pointers
    assert await pointers.get("jobs", "a") is None
    await pointers.create("jobs", "a", b"1")
    with pytest.raises(PointerExists):
        await pointers.create("jobs", "a", b"2")
    await pointers.replace("jobs", "a", b"2", 0)
    with pytest.raises(PointerConflict):
        await pointers.replace("jobs", "a", b"3", 0)
    with pytest.raises(PointerConflict):
        await pointers.replace("jobs", "b", b"3", 0)
    assert await pointers.names("jobs") == ["a"]
    await pointers.remove("jobs", "a")
    await pointers.remove("jobs", "a")
    assert await pointers.names("jobs") == []


async def test_a_leader_whose_session_has_expired_cannot_write(candidates: Candidates) -> None:
    """Its latch is removed as when a session expires; the leader does not know that yet when it writes."""
    one, other = candidates.add("jm-1"), candidates.add("jm-2")
    first = await candidates.lead(one)
    assert isinstance(first, ZooKeeperLeadership)
    first._confirming.cancel()
    waiting = asyncio.create_task(candidates.lead(other))
    assert one._session is not None
    await one._session.delete(first._latch)
    second = await waiting
    first._validity.confirm(asyncio.get_running_loop().time())
    first.check()  # it believes that it leads
    with pytest.raises(LeadershipLost):
        await first.pointers.create("jobs", "stale", b"x")
    await second.pointers.create("jobs", "fresh", b"y")
    assert await second.pointers.names("jobs") == ["fresh"]


async def test_a_leader_is_notified_that_its_session_has_ended(candidates: Candidates) -> None:
    one = candidates.add("jm-1")
    leadership = await candidates.lead(one)
    assert isinstance(leadership, ZooKeeperLeadership)
    assert one._session is not None
    await one._session.delete(leadership._latch)
    assert "ended" in await asyncio.wait_for(leadership.lost(), 10)
    with pytest.raises(LeadershipLost):
        leadership.check()


async def test_a_leader_keeps_the_lead_when_one_server_is_killed(candidates: Candidates) -> None:
    candidates.config = msgspec.structs.replace(candidates.config, session_timeout=LONGEST_SECONDS)
    leadership = await candidates.lead(candidates.add("jm-1"))
    for number in (1, 2, 3):  # one of them is the one that the session is with, and one leads the ensemble
        candidates.ensemble.kill(number)
        await leadership.pointers.create("jobs", f"while-{number}-is-away", b"x")
        leadership.check()
        candidates.ensemble.start_server(number)
        await asyncio.to_thread(candidates.ensemble.until_whole)
    assert len(await leadership.pointers.names("jobs")) == 3


async def _connected(session: ZooKeeperSession) -> bool:
    return session.connected


@pytest.mark.parametrize("role", [Role.TASKMANAGER, Role.JOBMANAGER])
async def test_only_the_named_jobmanagers_may_read_or_write_the_nodes(candidates: Candidates, role: Role) -> None:
    leadership = await candidates.lead(candidates.add("jm-1"))
    await leadership.pointers.create("jobs", "a", b"1")
    stranger = candidates.ensemble.pki.identity(SpiffeId.process(TRUST_DOMAIN, role, "stranger"))
    session = ZooKeeperSession(candidates.ensemble.hosts, stranger, SESSION_SECONDS, lambda _: None)
    session.start()
    await eventually(lambda: _connected(session), "the stranger is connected")
    path = f"/sluice/{candidates.config.cluster}/jobs"
    with pytest.raises(NoAuthError):
        await session.get(f"{path}/a")
    with pytest.raises(NoAuthError):
        await session.create(f"{path}/b", b"", OPEN_ACL_UNSAFE)
    with pytest.raises(NoAuthError):
        await session.delete(f"{path}/a")
    await session.close()


async def test_nothing_is_sent_to_a_server_without_the_zookeeper_role(candidates: Candidates) -> None:
    """Its certificate is of the right authority, but of another role."""
    identity = candidates.ensemble.pki.identity(SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "jm-1"))
    impostor = candidates.ensemble.pki.hostile(Hostile.WRONG_ROLE, pretending=identity.spiffe_id)
    accepted: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(await reader.read(100))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=impostor.server_context())
    port = server.sockets[0].getsockname()[1]
    session = ZooKeeperSession((f"127.0.0.1:{port}",), identity, SESSION_SECONDS, lambda _: None)
    session.start()
    await asyncio.sleep(1.5)
    assert not session.connected
    await session.close()
    server.close()
    assert b"".join(accepted) == b""


async def test_a_leader_without_a_majority_of_servers_resigns_within_its_session_timeout(
    candidates: Candidates,
) -> None:
    leadership = await candidates.lead(candidates.add("jm-1"))
    loop = asyncio.get_running_loop()
    began = loop.time()
    candidates.ensemble.kill(1)
    candidates.ensemble.kill(2)
    try:
        why = await asyncio.wait_for(leadership.lost(), 2 * SESSION_SECONDS)
        assert "not answered" in why
        assert loop.time() - began <= SESSION_SECONDS
        with pytest.raises(LeadershipLost):
            await leadership.pointers.create("jobs", "late", b"x")
    finally:
        candidates.ensemble.start_server(1)
        candidates.ensemble.start_server(2)
