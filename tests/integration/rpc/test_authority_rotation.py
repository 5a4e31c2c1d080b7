"""The internal authority is replaced under RPC traffic, on real sockets; no call fails in any phase."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from sluice.cli.cluster.identities import renew_superseded
from sluice.cli.config import load
from sluice.core.clock import utc_now
from sluice.core.errors import PeerRefused
from sluice.pki.authorities.rotation_phases import (
    Keep,
    Laggard,
    PeersLag,
    Phase,
)
from sluice.pki.authorities.rotation_store import RotationStore
from sluice.pki.rotation.rotator import Rotator
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.trust.reporter import reporting
from sluice.pki.trust.reports import read_reports
from sluice.pki.x509.key_identifiers import issuer_id, key_id
from sluice.pki.x509.profiles import AuthorityKind
from sluice.runtime.rpc import PeerUnreachable, RpcService
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.rpc.world import Echo, EchoGateway
from tests.waiting import until

INTERNAL = AuthorityKind.INTERNAL
CONFIGURATION = load(None, environment={}, flags={})
DEADLINE_SECONDS = 60.0
REPOSITORY = Path(__file__).resolve().parents[3]
FOLLOWER = """
import asyncio, pathlib, sys
from sluice.pki.trust.reporter import reporting
from sluice.pki.tls.contexts import TlsIdentity

async def main():
    async with reporting(TlsIdentity(pathlib.Path(sys.argv[1])), "follower", interval=0.1):
        print("ready", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


class Traffic:
    """A JobManager and a TaskManager that calls it, over one lasting stream and over new connections."""

    def __init__(self, root: Path) -> None:
        self.pki = TestPki(root)
        self.home = self.pki.home.create()
        self.server = self._identity(Role.JOBMANAGER, "jm-1")
        self.client = self._identity(Role.TASKMANAGER, "tm-1")
        self.address = ("", 0)
        self.connected = 0
        self.failures: list[str] = []
        self.rotator = Rotator(
            self.home, self.pki.config, renew=lambda: renew_superseded(self.home, CONFIGURATION), report=lambda _: None
        )

    def _identity(self, role: Role, name: str) -> TlsIdentity:
        directory = self.home.identity(role, name)
        self.pki.issuer.issue_to(directory, SpiffeId.process(TRUST_DOMAIN, role, name), ips=["127.0.0.1"])
        return TlsIdentity(directory)

    async def connect_once(self, identity: TlsIdentity) -> None:
        """Open a new connection and make one call over it."""
        service = RpcService(identity)
        try:
            peer = await service.connect(*self.address)
            assert await peer.gateway(EchoGateway, "echo").add(20, 22) == 42
        finally:
            await service.close()

    async def run(self) -> None:
        """Make calls until cancelled or until one fails."""
        lasting = RpcService(self.client)
        gateway = (await lasting.connect(*self.address)).gateway(EchoGateway, "echo")
        try:
            while True:
                try:
                    await self.connect_once(self.client)
                    assert await gateway.add(1) == 2
                    self.connected += 1
                except Exception as error:  # noqa: BLE001  each one counts
                    self.failures.append(repr(error))
                    return
        finally:
            await lasting.close()

    async def flows(self) -> None:
        """Wait for five more new connections, and check that none has failed."""
        goal = self.connected + 5
        await until(lambda: self.connected >= goal or bool(self.failures), "connections")
        assert self.failures == []


@pytest_asyncio.fixture
async def traffic(tmp_path: Path) -> AsyncIterator[Traffic]:
    made = Traffic(tmp_path)
    service = RpcService(made.server)
    made.address = await service.listen("127.0.0.1", 0)
    await service.start(Echo())
    try:
        yield made
    finally:
        await service.close()


def patience() -> Callable[[Sequence[Laggard]], bool]:
    """Return a function that looks again every 0.1 s, up to 600 times.

    It waits in the thread of the rotation command, while the event loop lets the processes follow.
    """
    rounds, pause = iter(range(600)), threading.Event()

    def look_again(_: Sequence[Laggard]) -> bool:
        pause.wait(0.1)
        return next(rounds, None) is not None

    return look_again


async def test_rpc_continues_through_all_rotation_phases_and_the_old_authority_is_refused_after_them(
    traffic: Traffic, tmp_path: Path
) -> None:
    old = key_id(traffic.server.material.anchors[0])
    stolen = shutil.copytree(traffic.client.directory, tmp_path / "stolen")
    seen = []
    async with reporting(traffic.server, "jobmanager", interval=0.1), reporting(traffic.client, "tm", interval=0.1):
        running = asyncio.create_task(traffic.run())
        await traffic.flows()
        await asyncio.to_thread(traffic.rotator.prepare, INTERNAL, patience=patience())
        seen.append(traffic.rotator.state()[1])
        await traffic.flows()
        await asyncio.to_thread(traffic.rotator.activate, INTERNAL, patience=patience())
        seen.append(traffic.rotator.state()[1])
        await traffic.flows()
        # Whoever still has a leaf of the old one is admitted as long as that is trusted.
        shutil.copy(traffic.client.directory / "ca.pem", stolen / "ca.pem")
        await traffic.connect_once(TlsIdentity(stolen))
        await asyncio.to_thread(traffic.rotator.finish, INTERNAL, patience=patience(), last_patience=patience())
        seen.append(traffic.rotator.state()[1])
        await traffic.flows()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert traffic.failures == []
    assert seen == [Phase.PREPARED, Phase.ACTIVE, Phase.STEADY]
    for identity in (traffic.server, traffic.client):
        (anchor,) = identity.material.anchors
        assert issuer_id(identity.material.leaf) == key_id(anchor) != old
    # What is of the old authority is refused by servers, and as a server by clients.
    for name in ("ca.pem", "crl.pem"):
        shutil.copy(traffic.client.directory / name, stolen / name)
    with pytest.raises(PeerUnreachable):
        await traffic.connect_once(TlsIdentity(stolen))


async def test_connections_fail_when_a_new_authority_signs_before_it_is_trusted(traffic: Traffic) -> None:
    """What the test above would see without the phases of a rotation."""
    await traffic.connect_once(traffic.client)
    before = (traffic.client.directory / "ca.pem").read_bytes()
    store = RotationStore(traffic.home.pki)
    store.begin(INTERNAL, traffic.pki.config, utc_now())
    store.switch(Keep.NEW, utc_now())
    traffic.pki.issuer.issue_to(traffic.server.directory, traffic.server.spiffe_id, ips=["127.0.0.1"])
    assert (traffic.client.directory / "ca.pem").read_bytes() == before
    with pytest.raises(PeerRefused):
        await traffic.connect_once(traffic.client)


async def test_a_stopped_process_holds_up_the_rotation_until_it_follows_or_is_killed(traffic: Traffic) -> None:
    """SIGSTOP: the files say that it trusts the new authority, its memory does not."""
    directory = traffic.home.identity(Role.TASKMANAGER, "tm-1")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FOLLOWER, str(directory), cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        await process.stdout.readline()
        ((report,), _) = read_reports(directory)
        assert (report.pid, report.program) == (process.pid, "follower")
        process.send_signal(signal.SIGSTOP)
        await asyncio.to_thread(traffic.rotator.prepare, INTERNAL)
        with pytest.raises(PeersLag, match=f"follower {process.pid}"):
            await asyncio.to_thread(traffic.rotator.activate, INTERNAL)
        process.send_signal(signal.SIGCONT)
        await asyncio.to_thread(traffic.rotator.activate, INTERNAL, patience=patience())
        process.send_signal(signal.SIGSTOP)

        look_again = patience()

        def kill(late: Sequence[Laggard]) -> bool:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            return look_again(late)

        # Whether it had its new certificate by then or not: it still trusts the old authority.
        await asyncio.to_thread(traffic.rotator.finish, INTERNAL, patience=kill, last_patience=kill)
        assert traffic.rotator.state()[1] is Phase.STEADY
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
