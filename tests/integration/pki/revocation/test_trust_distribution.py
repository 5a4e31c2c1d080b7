"""Distribution of trust and revocations to other machines: two homes, one authority, real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.pki.agent.policy import ManagedIdentity
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.address import CaAddress
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.channels import Channel, client_policy, server_policy
from sluice.pki.enrolment.enrolling_issuer import EnrollingIssuer
from sluice.pki.enrolment.join_token_file import JoinTokenFile
from sluice.pki.enrolment.renewal_service import EnrolledIdentity, RenewalService, subscribed_trust
from sluice.pki.identities.directory import CA_FILE, CHAIN_FILE, read_certificates
from sluice.pki.identities.join_tokens import mint
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.tls.listener import MutualTlsListener
from sluice.pki.x509.profiles import AuthorityKind
from sluice.pki.x509.verification import was_issued_by
from tests.command import sluice
from tests.hostile import TRUST_DOMAIN, TestPki, assert_refused
from tests.integration.pki.conftest import Echo
from tests.waiting import until

MASTER = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "jm-1")
WORKER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
GATEWAY = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "envoy")


class Machine:
    """A machine with its own home, in which one process has joined."""

    def __init__(self, root: Path, pki: TestPki, address: CaAddress, spiffe_id: SpiffeId) -> None:
        self.home = Home.at(root).create()
        self.directory = self.home.identity(spiffe_id.role, spiffe_id.name)
        self.token = root / "token"
        write_secret(self.token, new_token(pki, spiffe_id).encode())
        issuer = EnrollingIssuer(lambda: (address,), {spiffe_id: JoinTokenFile(self.token)})
        kept = [EnrolledIdentity(ManagedIdentity(spiffe_id, self.directory), issuer)]
        self.keeper = RenewalService(kept, subscribed_trust(self.home, lambda: (address,), kept))


@asynccontextmanager
async def running(machine: Machine) -> AsyncIterator[TlsIdentity]:
    await machine.keeper.start()
    task = asyncio.create_task(machine.keeper.run())
    try:
        yield TlsIdentity(machine.directory)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await machine.keeper.close()


def new_token(pki: TestPki, spiffe_id: SpiffeId) -> str:
    certificate = AuthorityStore(pki.home.pki).certificate(AuthorityKind.INTERNAL)
    record, text = mint(spiffe_id, certificate, now=utc_now())
    TokenStore(pki.home.pki).add(record, now=utc_now())
    return text


Verb = Callable[..., None]


@pytest.fixture
def verb() -> Verb:
    """A function that runs the command in this process and checks that it succeeds."""

    def run(*arguments: str) -> None:
        done = sluice(*arguments)
        assert done.returncode == 0, done.stderr

    return run


@pytest.fixture
async def ca(pki: TestPki) -> AsyncIterator[CaAddress]:
    async with online_ca(pki.home, pki.config, CaConfig()) as address:
        yield address


async def test_a_peer_revoked_at_the_authority_is_refused_on_another_machine(
    pki: TestPki, ca: CaAddress, tmp_path: Path, verb: Verb
) -> None:
    """Its open connection ends, and it gets no new one; neither machine has files of the authority."""
    master, worker = (Machine(tmp_path / spiffe_id.name, pki, ca, spiffe_id) for spiffe_id in (MASTER, WORKER))
    async with running(master) as listening, running(worker) as dialing:
        listener = MutualTlsListener(listening, Channel.RPC, client_policy(Channel.RPC, TRUST_DOMAIN), Echo)
        host, port = await listener.start("127.0.0.1", 0)
        try:
            context = dialing.client_context(server_policy(Channel.RPC, TRUST_DOMAIN))
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            writer.write(b"x")
            assert await reader.readexactly(1) == b"x"
            verb("pki", "revoke", "taskmanager/tm-1", "--reason", "key-compromise", "--home", str(pki.home.root))
            await until(reader.at_eof, "the open connection of a revoked peer went on")
            with contextlib.suppress(OSError):
                writer.close()
                await writer.wait_closed()
            await assert_refused(host, port, context)
        finally:
            await listener.close()


async def test_a_rotation_reaches_another_machine_without_manual_steps(
    pki: TestPki, ca: CaAddress, tmp_path: Path
) -> None:
    """A, then A+B, then B+A with a certificate of B, then B alone: one verb for each phase."""

    async def rotate(verb: str) -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sluice.cli.main", "pki", "rotate", verb, "internal", "--wait", "60"),
            *("--home", str(pki.home.root)),
            cwd=Path(__file__).parents[4],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()

    machine = Machine(tmp_path / "tm-1", pki, ca, WORKER)
    before = AuthorityStore(pki.home.pki).certificate(AuthorityKind.INTERNAL)

    def trusted() -> list[x509.Certificate]:
        return read_certificates(machine.directory / CA_FILE)

    async with running(machine):
        await rotate("prepare")
        await until(lambda: len(trusted()) == 2, "the successor is not trusted")
        assert trusted()[0] == before
        await rotate("activate")
        after = AuthorityStore(pki.home.pki).certificate(AuthorityKind.INTERNAL)
        assert after != before
        await until(
            lambda: was_issued_by(read_certificates(machine.directory / CHAIN_FILE)[0], after), "it was not renewed"
        )
        await rotate("finish")
        await until(lambda: trusted() == [after], "the predecessor is still trusted")
        known = machine.keeper.follower.trust.version
        await asyncio.to_thread(pki.issuer.revocations.refresh, AuthorityKind.INTERNAL, force=True)
        await until(lambda: machine.keeper.follower.trust.version != known, "the news do not arrive any more")
