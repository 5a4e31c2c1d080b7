"""The internal authority is replaced while a process on another machine with its own home serves RPC.

All that process knows of the authority is its address. The rotation knows of the process only what it
reports to the authority.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluice.cli.cluster.identities import renew_superseded
from sluice.cli.config import load
from sluice.core.clock import utc_now
from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.pki.agent.policy import ManagedIdentity
from sluice.pki.authorities.rotation_phases import (
    Laggard,
    PeersLag,
    Phase,
    Source,
)
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.address import CaAddress
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.ca.subscriber_file import read_subscribers
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.enrolment.enrolling_issuer import EnrollingIssuer
from sluice.pki.enrolment.join_token_file import JoinTokenFile
from sluice.pki.enrolment.renewal_service import EnrolledIdentity, RenewalService, subscribed_trust
from sluice.pki.identities.join_tokens import mint
from sluice.pki.rotation.rotator import Rotator
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.trust.reporter import reporting
from sluice.pki.x509.key_identifiers import issuer_id, key_id
from sluice.pki.x509.profiles import AuthorityKind
from sluice.runtime.rpc import RpcService
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.rpc.world import Echo, EchoGateway
from tests.waiting import until

INTERNAL = AuthorityKind.INTERNAL
CONFIGURATION = load(None, environment={}, flags={})
LOCAL = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
WORKER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-7")
IDLE_SECONDS = 3600.0
"""So long that a process never looks at its files: as one that hangs."""


class World:
    """The authority's machine with a TaskManager, and the machine of a worker that has joined."""

    def __init__(self, root: Path) -> None:
        self.pki = TestPki(root / "authority")
        self.home = self.pki.home.create()
        directory = self.home.identity(Role.TASKMANAGER, "tm-1")
        self.pki.issuer.issue_to(directory, LOCAL, ips=["127.0.0.1"])
        self.local = TlsIdentity(directory)
        self.elsewhere = Home.at(root / "worker").create()
        self.directory = self.elsewhere.identity(Role.TASKMANAGER, "tm-7")
        self.token = root / "token"
        self.address = ("", 0)
        self.connected = 0
        self.failures: list[str] = []
        self.rotator = Rotator(
            self.home, self.pki.config, renew=lambda: renew_superseded(self.home, CONFIGURATION), report=lambda _: None
        )

    @asynccontextmanager
    async def joined(self, ca: CaAddress) -> AsyncIterator[TlsIdentity]:
        """Run the worker's process, which keeps its identity as ``sluice run taskmanager --ca`` does."""
        if not self.directory.exists():
            record, text = mint(
                WORKER, AuthorityStore(self.home.pki).certificate(INTERNAL), ips=("127.0.0.1",), now=utc_now()
            )
            TokenStore(self.home.pki).add(record, now=utc_now())
            write_secret(self.token, text.encode())
        issuer = EnrollingIssuer(lambda: (ca,), {WORKER: JoinTokenFile(self.token)})
        managed = ManagedIdentity(WORKER, self.directory, ips=("127.0.0.1",))
        kept = [EnrolledIdentity(managed, issuer)]
        keeper = RenewalService(kept, subscribed_trust(self.elsewhere, lambda: (ca,), kept))
        await keeper.start()
        task = asyncio.create_task(keeper.run())
        try:
            yield TlsIdentity(self.directory)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await keeper.close()

    async def call(self) -> None:
        """Open one connection after another from the first home to the worker, until cancelled or one fails."""
        while True:
            service = RpcService(self.local)
            try:
                peer = await service.connect(*self.address, role=Role.TASKMANAGER)
                assert await peer.gateway(EchoGateway, "echo").add(20, 22) == 42
                self.connected += 1
            except Exception as error:  # noqa: BLE001  each one counts
                self.failures.append(repr(error))
                return
            finally:
                await service.close()

    async def flows(self) -> None:
        """Wait for five more new connections, and check that none has failed."""
        goal = self.connected + 5
        await until(lambda: self.connected >= goal or bool(self.failures), "connections")
        assert self.failures == []

    def subscribers(self) -> list[Laggard]:
        """Return the remote subscribers that the next rotation command waits for."""
        return [each for each in self.rotator.waiting_for() if each.holder.source is Source.FOLLOWER]

    async def told(self) -> None:
        """Wait until the worker has reported what it holds."""
        await until(
            lambda: any(each.in_use for each in read_subscribers(self.home.pki).subscribers), "its first report"
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def patience() -> Callable[[Sequence[Laggard]], bool]:
    """Return a function that looks again every 0.1 s, up to 600 times.

    It waits in the thread of the rotation command, while the event loop lets the processes follow.
    """
    rounds, pause = iter(range(600)), threading.Event()

    def look_again(_: Sequence[Laggard]) -> bool:
        pause.wait(0.1)
        return next(rounds, None) is not None

    return look_again


async def test_connections_to_another_machine_never_fail_in_any_phase(world: World) -> None:
    async with (
        online_ca(world.home, world.pki.config, CaConfig()) as ca,
        world.joined(ca) as worker,
        reporting(world.local, "taskmanager", interval=0.1),
        reporting(worker, "taskmanager", interval=0.1),
    ):
        service = RpcService(worker)
        world.address = await service.listen("127.0.0.1", 0)
        await service.start(Echo())
        calling = asyncio.create_task(world.call())
        old = key_id(worker.material.anchors[0])
        try:
            await world.flows()
            await world.told()
            await asyncio.to_thread(world.rotator.prepare, INTERNAL)
            assert world.rotator.state()[1] is Phase.PREPARED
            await world.flows()
            await asyncio.to_thread(world.rotator.activate, INTERNAL, patience=patience())
            assert len(list(worker.material.anchors)) > 1, "it was not waited for"
            await world.flows()
            await asyncio.to_thread(world.rotator.finish, INTERNAL, patience=patience(), last_patience=patience())
            [anchor] = list(worker.material.anchors)
            assert issuer_id(worker.material.leaf) == key_id(anchor) != old
            assert world.rotator.state()[1] is Phase.STEADY
            await world.flows()
        finally:
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)
            await service.close()
    assert world.failures == []


async def test_a_remote_process_that_lags_holds_up_the_rotation_even_after_an_authority_restart(
    world: World,
) -> None:
    """Its files say that it trusts the new authority, but its memory does not."""
    async with (
        online_ca(world.home, world.pki.config, CaConfig()) as ca,
        world.joined(ca) as worker,
        reporting(worker, "taskmanager", interval=IDLE_SECONDS),
    ):
        await world.told()
        await asyncio.to_thread(world.rotator.prepare, INTERNAL)
        await until(lambda: (world.directory / "ca.pem").read_bytes().count(b"BEGIN") == 2, "the new bundle")
        rounds = patience()
        with pytest.raises(PeersLag, match=r"taskmanager \d+\) at 127.0.0.1: it does not trust the new") as refused:
            await asyncio.to_thread(
                world.rotator.activate, INTERNAL, patience=lambda late: len(late) > 1 and rounds(late)
            )
        assert [each.holder.identity for each in refused.value.laggards] == [str(WORKER)]
    path = world.home.pki / "ca" / "followers.json"
    assert path.stat().st_mode & 0o777 == 0o600
    async with online_ca(world.home, world.pki.config, CaConfig()):
        assert [each.holder.identity for each in world.subscribers()] == [str(WORKER)]
        with pytest.raises(PeersLag):
            await asyncio.to_thread(
                world.rotator.activate, INTERNAL, patience=lambda late: len(late) > 1 and rounds(late)
            )
        await asyncio.to_thread(world.rotator.activate, INTERNAL, without=[str(WORKER)], patience=patience())
    assert world.rotator.state()[1] is Phase.ACTIVE
