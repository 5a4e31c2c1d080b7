"""A copied identity at the online authority, on real sockets.

The tests check what the copied key can still do there, and how to recover.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import resource
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sluice.core.clock import utc_now
from sluice.core.errors import StoreError
from sluice.core.files import write_secret
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.address import CaAddress
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.ca.revoker import Revoker
from sluice.pki.ca.server import CaServer
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.config import PkiConfig
from sluice.pki.enrolment import client
from sluice.pki.enrolment.enrolling_issuer import EdgeEnrollingIssuer, EnrollingIssuer
from sluice.pki.enrolment.join_token_file import JoinTokenFile
from sluice.pki.enrolment.online_issuer import OnlineIssuer
from sluice.pki.errors import CertificateSuperseded
from sluice.pki.identities.directory import CHAIN_FILE, read_certificates, read_identity
from sluice.pki.identities.join_tokens import mint
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.revocation.crl import Reason
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.profiles import AuthorityKind
from tests.hostile import TRUST_DOMAIN, TestPki

WORKER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
MASTER = SpiffeId.process(TRUST_DOMAIN, Role.JOBMANAGER, "jobmanager-1")
AUTH = SpiffeId.process(TRUST_DOMAIN, Role.AUTH, "auth-1")
GATEWAY = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "gw")
DRIVER = SpiffeId.driver(TRUST_DOMAIN, "a" * 32)
HOUR = dt.timedelta(hours=1)


class World:
    """A served authority whose clock can be moved forward.

    The certificates it issues are backdated, so that others already accept them.
    """

    def __init__(self, pki: TestPki, tmp_path: Path) -> None:
        self.pki = pki
        self.root = tmp_path
        self.ahead = dt.timedelta()
        config = PkiConfig(trust_domain=TRUST_DOMAIN, backdate_minutes=240)
        self.issuer = LocalIssuer(pki.home, config, clock=self.clock)
        self.authority = OnlineAuthority(pki.home.pki, config, clock=self.clock)
        own = pki.identity(SpiffeId.process(TRUST_DOMAIN, Role.CA, "ca-1"))
        self.server = CaServer(own, self.authority, revoker=Revoker(pki.home, pki.config))
        self.address = CaAddress(mutual=("", 0), enrolment=("", 0))

    def clock(self) -> dt.datetime:
        """Return the authority's current time."""
        return utc_now() + self.ahead

    def issue(self, spiffe_id: SpiffeId) -> Path:
        """Issue an identity to a process without enrolment; return its directory."""
        directory = self.root / spiffe_id.name
        self.issuer.issue_to(directory, spiffe_id)
        return directory

    def issue_public(self) -> Path:
        """Issue the gateway's public certificate; return its directory."""
        directory = self.root / "public"
        self.issuer.issue_edge_server(directory, GATEWAY, dns=["localhost"])
        return directory

    def token(self, spiffe_id: SpiffeId, file: Path) -> JoinTokenFile:
        """Write a join token to ``file``."""
        authority = AuthorityStore(self.pki.home.pki).certificate(AuthorityKind.INTERNAL)
        record, text = mint(spiffe_id, authority, now=self.clock())
        TokenStore(self.pki.home.pki).add(record, now=self.clock())
        write_secret(file, text.encode())
        return JoinTokenFile(file)

    def copied(self, spiffe_id: SpiffeId) -> tuple[Path, Path]:
        """Copy the identity of a process, then renew the original; return both directories."""
        own = self.issue(spiffe_id)
        copy = Path(shutil.copytree(own, self.root / f"copy-of-{spiffe_id.name}"))
        client.renew(own, self.address.mutual)
        return own, copy


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(TestPki(tmp_path), tmp_path)
    mutual, enrolment = await world.server.start("127.0.0.1", 0, 0)
    world.address = CaAddress(mutual=mutual, enrolment=enrolment)
    yield world
    await world.server.close()
    world.authority.close()


async def test_a_superseded_copy_of_an_identity_cannot_renew_but_its_owner_can(world: World) -> None:
    own, copy = await asyncio.to_thread(world.copied, WORKER)
    before = (copy / CHAIN_FILE).read_bytes()
    world.ahead = HOUR
    with pytest.raises(CertificateSuperseded, match="was superseded at"):
        await asyncio.to_thread(client.renew, copy, world.address.mutual)
    assert (copy / CHAIN_FILE).read_bytes() == before
    assert await asyncio.to_thread(client.renew, own, world.address.mutual)
    events = [record.event for record in read_ledger(ledger_path(world.pki.home.pki)) if record.kind == "renewal"]
    assert events == ["issued", "refused", "issued"]


async def test_superseded_jobmanager_gets_no_identity_of_a_job(world: World) -> None:
    own, copy = await asyncio.to_thread(world.copied, MASTER)

    def issue(directory: Path) -> None:
        issuer = OnlineIssuer(TlsIdentity(directory), lambda: (world.address,), retry_seconds=0)
        issuer.sign_csr(new_csr(DRIVER)[1], DRIVER)

    await asyncio.to_thread(issue, copy)  # within the overlap: it may be the owner, about to read what is new
    world.ahead = HOUR
    with pytest.raises(CertificateSuperseded):
        await asyncio.to_thread(issue, copy)
    await asyncio.to_thread(issue, own)


async def test_superseded_auth_service_revokes_nothing(world: World) -> None:
    own, copy = await asyncio.to_thread(world.copied, AUTH)
    place = world.pki.home.identity(Role.TASKMANAGER, "victim")
    victim = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "victim")
    world.issuer.issue_to(place, victim)
    serial = f"{read_certificates(place / CHAIN_FILE)[0].serial_number:x}"
    world.ahead = HOUR
    arguments = (world.address.mutual, serial, Reason.UNSPECIFIED, "ada")
    with pytest.raises(CertificateSuperseded):
        await asyncio.to_thread(client.revoke, TlsIdentity(copy), *arguments)
    assert (await asyncio.to_thread(client.revoke, TlsIdentity(own), *arguments)).new


async def test_superseded_public_certificate_is_not_renewed(world: World, tmp_path: Path) -> None:
    internal, public = world.issue(GATEWAY), world.issue_public()
    copy = Path(shutil.copytree(public, tmp_path / "copy"))
    gateway = TlsIdentity(internal)
    await asyncio.to_thread(client.renew_edge, public, gateway, world.address.mutual)
    world.ahead = HOUR
    with pytest.raises(CertificateSuperseded):
        await asyncio.to_thread(client.renew_edge, copy, gateway, world.address.mutual)
    assert await asyncio.to_thread(client.renew_edge, public, gateway, world.address.mutual)


async def test_member_that_lost_its_newest_certificate_enrols_again_with_a_token(world: World, tmp_path: Path) -> None:
    own, restored = await asyncio.to_thread(world.copied, WORKER)
    world.ahead = HOUR
    token = JoinTokenFile(tmp_path / "token")
    issuer = EnrollingIssuer(lambda: (world.address,), {WORKER: token})
    with pytest.raises(CertificateSuperseded):
        await asyncio.to_thread(issuer.issue_to, restored, WORKER)
    world.token(WORKER, token.path)
    await asyncio.to_thread(issuer.issue_to, restored, WORKER)
    assert not token.path.exists(), "it is used up"
    world.ahead = 2 * HOUR
    await asyncio.to_thread(issuer.issue_to, restored, WORKER)
    with pytest.raises(CertificateSuperseded):
        await asyncio.to_thread(client.renew, own, world.address.mutual)


async def test_gateways_issuer_does_not_mistake_a_superseded_certificate_for_a_missing_token(
    world: World, tmp_path: Path
) -> None:
    internal, public = world.issue(GATEWAY), world.issue_public()
    copy = Path(shutil.copytree(public, tmp_path / "copy"))
    spiffe_id = read_identity(public)[0].spiffe_id
    issuer = EdgeEnrollingIssuer(internal, lambda: (world.address,), {})
    await asyncio.to_thread(issuer.issue_to, public, spiffe_id)
    world.ahead = HOUR
    with pytest.raises(CertificateSuperseded):
        await asyncio.to_thread(issuer.issue_to, copy, spiffe_id)


def at_once(function: Callable[[], object], times: int) -> list[object]:
    with ThreadPoolExecutor(times) as threads:
        return [each.result() for each in [threads.submit(function) for _ in range(times)]]


async def test_concurrent_renewals_of_one_directory_leave_the_last_issued_certificate(world: World) -> None:
    """A timer and the process itself may renew at once: the file must hold what was issued last."""
    directory = world.issue(WORKER)
    await asyncio.to_thread(at_once, lambda: client.renew(directory, world.address.mutual), 4)
    issued = [each for each in read_ledger(ledger_path(world.pki.home.pki)) if each.kind == "renewal"]
    assert len(issued) == 4
    assert int(issued[-1].serial, 16) == read_certificates(directory / CHAIN_FILE)[0].serial_number
    world.ahead = HOUR
    assert await asyncio.to_thread(client.renew, directory, world.address.mutual)


async def test_a_renewal_is_not_requested_when_its_result_cannot_be_written(world: World) -> None:
    directory = world.issue(WORKER)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(StoreError, match="cannot write"):
            await asyncio.to_thread(client.renew, directory, world.address.mutual)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not [each for each in read_ledger(ledger_path(world.pki.home.pki)) if each.kind == "renewal"]
    assert list(directory.glob(".*")) == []
    assert await asyncio.to_thread(client.renew, directory, world.address.mutual)


@pytest.mark.parametrize(
    ("hours", "most", "kept"),
    [
        pytest.param(90 * 24, 398 * 24, 90 * 24, id="longer than by default"),
        pytest.param(2, 398 * 24, 2, id="shorter than by default"),
        pytest.param(90 * 24, 30 * 24, 30 * 24, id="no longer than is allowed"),
    ],
)
async def test_renewal_keeps_the_lifetime(hours: float, most: float, kept: float, tmp_path: Path) -> None:
    pki = TestPki(tmp_path)
    directory = tmp_path / "long"
    LocalIssuer(pki.home, pki.config).issue_to(directory, WORKER, lifetime=dt.timedelta(hours=hours))
    authority = OnlineAuthority(pki.home.pki, PkiConfig(trust_domain=TRUST_DOMAIN, max_leaf_hours=most))
    server = CaServer(pki.identity(SpiffeId.process(TRUST_DOMAIN, Role.CA, "ca-1")), authority)
    mutual, _ = await server.start("127.0.0.1", 0, 0)
    for _ in range(2):
        await asyncio.to_thread(client.renew, directory, mutual)
        leaf = read_certificates(directory / CHAIN_FILE)[0]
        life = leaf.not_valid_after_utc - leaf.not_valid_before_utc - dt.timedelta(minutes=5)
        assert abs(life - dt.timedelta(hours=kept)) <= dt.timedelta(seconds=1)
    await server.close()
    authority.close()
