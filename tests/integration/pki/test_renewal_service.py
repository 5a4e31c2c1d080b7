"""A process renews its own identity at a remote authority: real sockets, a clock that the test moves."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.core.errors import CertificateRejected, StoreError
from sluice.core.files import write_secret
from sluice.core.home import Home
from sluice.pki.agent.policy import ManagedIdentity
from sluice.pki.authorities.signing import (
    Authority,
    create_intermediate,
    create_root,
    to_pem,
)
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.address import CaAddress
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.ca.config import CaConfig
from sluice.pki.ca.process import online_ca
from sluice.pki.ca.protocol import (
    MAX_TRUST_ANSWER_BYTES,
    TRUST_PATH,
    TrustAnswer,
    TrustRequest,
    TrustSide,
)
from sluice.pki.ca.server import TRUST_PER_IDENTITY, CaServer
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.channels import Channel, server_policy
from sluice.pki.enrolment.client import fetch_trust
from sluice.pki.enrolment.enrolling_issuer import EnrollingIssuer
from sluice.pki.enrolment.join_token_file import JoinTokenFile
from sluice.pki.enrolment.renewal_service import EnrolledIdentity, RenewalService, subscribed_trust
from sluice.pki.enrolment.trust_subscription import TrustSubscription
from sluice.pki.errors import CaUnavailable, EnrolmentRefused, RateLimited
from sluice.pki.identities.directory import (
    CA_FILE,
    CHAIN_FILE,
    IdentityMaterial,
    read_certificates,
    read_identity,
)
from sluice.pki.identities.join_tokens import mint
from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import unverified_client_context
from sluice.pki.x509.keys import key_to_pem
from sluice.pki.x509.profiles import AuthorityKind
from sluice.pki.x509.verification import was_issued_by
from tests.hostile import HOSTILE_SERVERS, TRUST_DOMAIN, Hostile, TestPki, assert_refused
from tests.integration.pki.ca.test_ca_server import call, off_loop
from tests.outside import OutsideAuthority
from tests.waiting import until

WORKER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
GATEWAY = SpiffeId.process(TRUST_DOMAIN, Role.GATEWAY, "envoy")
DRIVER = SpiffeId.driver(TRUST_DOMAIN, "a" * 32)


class World:
    """An authority that can be stopped and started, and a machine that joins it."""

    def __init__(self, root: Path) -> None:
        self.pki = TestPki(root)
        self.home = Home.at(root / "joining").create()
        self.directory = self.home.identity(Role.TASKMANAGER, "tm-1")
        self.token = JoinTokenFile(root / "token")
        self.address: CaAddress | None = None
        self.passed = dt.timedelta(0)
        self._ca = AsyncExitStack()

    def clock(self) -> dt.datetime:
        """Return the current time of the joining machine."""
        return utc_now() + self.passed

    def locate_all(self) -> tuple[CaAddress, ...]:
        return (self.locate(),)

    def locate(self) -> CaAddress:
        """Return the authority's last address; before its first start, one where nothing listens."""
        return self.address or CaAddress(mutual=("127.0.0.1", 9), enrolment=("127.0.0.1", 9))

    async def start_ca(self) -> None:
        """Start the authority; after a restart it has another address but the same ledger."""
        self.address = await self._ca.enter_async_context(online_ca(self.pki.home, self.pki.config, CaConfig()))

    async def stop_ca(self) -> None:
        """Stop the authority."""
        await self._ca.aclose()

    def new_token(self, spiffe_id: SpiffeId = WORKER) -> str:
        """Write a fresh join token to the file where the joining process expects it."""
        certificate = AuthorityStore(self.pki.home.pki).certificate(AuthorityKind.INTERNAL)
        record, text = mint(spiffe_id, certificate, now=utc_now())
        TokenStore(self.pki.home.pki).add(record, now=utc_now())
        write_secret(self.token.path, text.encode())
        return text

    def keeper(self, *, join_seconds: float = 60.0) -> RenewalService[TrustSubscription]:
        """Return the renewal service that keeps the machine's identity."""
        issuer = EnrollingIssuer(self.locate_all, {WORKER: self.token}, clock=self.clock)
        kept = EnrolledIdentity(ManagedIdentity(WORKER, self.directory), issuer)
        follower = subscribed_trust(self.home, self.locate_all, [kept], clock=self.clock, draw=lambda: 0.0)
        return RenewalService([kept], follower, clock=self.clock, draw=lambda: 0.0, join_seconds=join_seconds)

    @property
    def material(self) -> IdentityMaterial:
        """The identity that is in the directory now."""
        return read_identity(self.directory)[0]

    @property
    def leaf(self) -> x509.Certificate:
        """The certificate alone, which can be read at any moment."""
        return read_certificates(self.directory / CHAIN_FILE)[0]

    def issued(self) -> list[str]:
        """Return how each certificate was requested, as the kinds in the ledger."""
        return [
            each.kind
            for each in read_ledger(ledger_path(self.pki.home.pki))
            if each.kind not in {"self", "local", "edge-local"}
        ]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    await made.stop_ca()


@asynccontextmanager
async def running(keeper: RenewalService[TrustSubscription]) -> AsyncIterator[None]:
    task = asyncio.create_task(keeper.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await keeper.close()


async def test_a_process_joins_with_its_token_once_and_renews_at_half_life(world: World) -> None:
    await world.start_ca()
    world.new_token()
    keeper = world.keeper()
    await keeper.start()
    assert not world.token.path.exists()
    first = world.material
    async with running(keeper):
        await until(lambda: keeper.follower.trust.version != "", "the trust did not arrive")
        world.passed = dt.timedelta(hours=13)
        await until(lambda: world.leaf != first.leaf, "it was not renewed")
        world.passed = dt.timedelta(0)
    assert world.material.key_pem != first.key_pem
    again = world.keeper()
    await again.start()
    await again.close()
    assert world.issued() == ["enrolment", "renewal"]


async def test_a_starting_process_waits_for_an_unavailable_authority(world: World) -> None:
    await world.start_ca()
    world.new_token()
    await world.stop_ca()
    keeper = world.keeper()
    starting = asyncio.create_task(keeper.start())
    await asyncio.sleep(0)
    await world.start_ca()
    await starting
    await keeper.close()
    assert world.issued() == ["enrolment"]


async def test_a_process_gives_up_joining_after_its_time_limit_and_keeps_the_token(world: World) -> None:
    world.new_token()
    keeper = world.keeper(join_seconds=0)
    with pytest.raises(CaUnavailable):
        await keeper.start()
    await keeper.close()
    assert world.token.path.exists()


async def test_a_token_that_was_used_is_refused_at_once(world: World) -> None:
    await world.start_ca()
    text = world.new_token()
    first = world.keeper()
    await first.start()
    await first.close()
    write_secret(world.token.path, text.encode())
    (world.directory / "key.pem").unlink()
    second = world.keeper()
    with pytest.raises(EnrolmentRefused):
        await second.start()
    await second.close()
    assert world.issued() == ["enrolment"]


async def test_a_process_keeps_its_certificate_while_the_authority_is_away_and_renews_after_its_restart(
    world: World,
) -> None:
    await world.start_ca()
    world.new_token()
    keeper = world.keeper()
    await keeper.start()
    first = world.leaf
    async with running(keeper):
        await until(lambda: keeper.follower.trust.version != "", "the trust did not arrive")
        await world.stop_ca()
        world.passed = dt.timedelta(hours=13)
        await until(lambda: keeper.renewers[0].failures > 0, "it did not try")
        assert world.leaf == first
        await world.start_ca()
        await until(lambda: world.leaf != first, "it did not go on")
        known = keeper.follower.trust.version
        world.pki.issuer.revocations.refresh(AuthorityKind.INTERNAL, force=True)
        await until(lambda: keeper.follower.trust.version != known, "the news did not arrive after the restart")


async def test_a_clock_that_jumps_past_the_expiry_and_back_leaves_the_certificate_in_use(world: World) -> None:
    """While it is wrong nothing can be renewed; once it is right again, everything works again."""
    await world.start_ca()
    world.new_token()
    keeper = world.keeper()
    await keeper.start()
    first = world.leaf
    async with running(keeper):
        world.passed = dt.timedelta(days=30)
        await until(lambda: keeper.renewers[0].failures > 0, "it did not try")
        assert world.leaf == first
        world.passed = dt.timedelta(0)
        known = keeper.follower.trust.version
        world.pki.issuer.revocations.refresh(AuthorityKind.INTERNAL, force=True)
        await until(lambda: keeper.follower.trust.version != known, "the news do not arrive any more")
        assert world.leaf == first


class Rotating(OnlineAuthority):
    """An authority in the phase in which its successor signs and both are trusted."""

    trusted: tuple[Authority, ...] = ()

    def anchors(self) -> bytes:
        """Return the anchors, that of the signing authority first."""
        return to_pem(*(each.certificate for each in self.trusted)) if self.trusted else super().anchors()


async def test_a_process_trusts_a_new_authority_first_and_renews_as_soon_as_it_signs(world: World) -> None:
    store = AuthorityStore(world.pki.home.pki)
    before = store.load(AuthorityKind.INTERNAL)
    now = utc_now()
    after = create_intermediate(AuthorityKind.INTERNAL, create_root(world.pki.config, now), world.pki.config, now)
    authority = Rotating(world.pki.home.pki, world.pki.config)
    own = world.pki.identity(SpiffeId.process(TRUST_DOMAIN, Role.CA, "ca-1"))
    server = CaServer(own, authority)
    mutual, enrolment = await server.start("127.0.0.1", 0, 0)
    world.address = CaAddress(mutual=mutual, enrolment=enrolment)
    world.new_token()
    keeper = world.keeper()
    await keeper.start()
    async with running(keeper):
        await until(lambda: keeper.follower.trust.version != "", "the trust did not arrive")
        authority.trusted = (before, after)
        await until(
            lambda: read_certificates(world.directory / CA_FILE) == [before.certificate, after.certificate],
            "the successor is not trusted",
        )
        assert was_issued_by(world.leaf, before.certificate)

        def replace() -> None:
            directory = store.directory(AuthorityKind.INTERNAL)
            (directory / "cert.pem").write_bytes(to_pem(after.certificate))
            (directory / "key.pem").write_bytes(key_to_pem(after.key))
            authority.trusted = (after, before)

        await server.call(replace)
        await until(lambda: was_issued_by(world.leaf, after.certificate), "it was not renewed at once")
        await until(
            lambda: read_certificates(world.directory / CA_FILE) == [after.certificate, before.certificate],
            "the predecessor is not trusted any more",
        )
    await server.close()
    authority.close()
    assert world.issued() == ["enrolment", "renewal"]


async def test_members_are_sent_the_internal_trust_and_only_gateways_the_edge_trust(world: World) -> None:
    await world.start_ca()
    member = await fetch_trust(world.pki.identity(WORKER), world.locate().mutual)
    gateway = await fetch_trust(world.pki.identity(GATEWAY), world.locate().mutual)
    store = AuthorityStore(world.pki.home.pki)
    assert member.internal is not None
    assert member.internal.ca_pem == store.certificate_file(AuthorityKind.INTERNAL).read_text()
    assert "BEGIN X509 CRL" in member.internal.crl_pem
    assert member.edge is None
    assert gateway.edge is not None
    assert gateway.edge.ca_pem == store.certificate_file(AuthorityKind.EDGE).read_text()


@pytest.mark.parametrize("spiffe_id", [DRIVER, SpiffeId.process(TRUST_DOMAIN, Role.CA, "ca-2")])
async def test_an_identity_without_access_to_the_authority_is_sent_no_trust(spiffe_id: SpiffeId, world: World) -> None:
    await world.start_ca()
    identity = world.pki.identity(spiffe_id)
    with pytest.raises(CaUnavailable):
        await fetch_trust(identity, world.locate().mutual)
    context = identity.client_context(server_policy(Channel.CA, TRUST_DOMAIN), alpn=("http/1.1",))
    await assert_refused(*world.locate().mutual, context)
    status, _ = await off_loop(call, world.locate().enrolment, unverified_client_context(), "POST", TRUST_PATH)
    assert status == 404


async def test_malformed_and_too_many_trust_requests_are_refused(world: World) -> None:
    await world.start_ca()
    identity = world.pki.identity(WORKER)
    with pytest.raises(CaUnavailable, match="400"):
        await fetch_trust(identity, world.locate().mutual, TrustRequest(known="x" * 65))
    burst = int(TRUST_PER_IDENTITY[0])
    answers = await asyncio.gather(
        *(fetch_trust(identity, world.locate().mutual) for _ in range(3 * burst)), return_exceptions=True
    )
    assert sum(isinstance(answer, TrustAnswer) for answer in answers) >= burst - 1
    assert any(isinstance(answer, RateLimited) for answer in answers)


Answer = Callable[[asyncio.StreamWriter], None]


@asynccontextmanager
async def answering(context: ssl.SSLContext, answer: Answer) -> AsyncIterator[tuple[str, int]]:
    """Run a server that gives the same answer to every request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            answer(writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with listening:
        yield listening.sockets[0].getsockname()[:2]


def says(body: bytes, status: str = "200 OK") -> Answer:
    head = f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
    return lambda writer: writer.write(head + body)


@pytest.mark.parametrize("case", HOSTILE_SERVERS)
async def test_trust_is_accepted_only_from_the_authority(case: Hostile, tmp_path: Path) -> None:
    pki = TestPki(tmp_path)
    own = SpiffeId.process(TRUST_DOMAIN, Role.CA, "ca-1")
    body = msgspec.json.encode(TrustAnswer(version="1", internal=TrustSide(ca_pem="x")))
    async with answering(pki.hostile(case, pretending=own).server_context(), says(body)) as address:
        with pytest.raises(CaUnavailable):
            await fetch_trust(pki.identity(WORKER), address)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(says(b"x" * (MAX_TRUST_ANSWER_BYTES + 1)), id="too large"),
        pytest.param(lambda writer: writer.write(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (13 << 20)), id="without end"),
        pytest.param(says(b"[" * 20_000), id="nested"),
        pytest.param(says(b'{"version": 1}'), id="wrong type"),
        pytest.param(says(b'{"version": "1", "evil": {}}'), id="a field more"),
        pytest.param(says(b"", "302 Found\r\nlocation: https://127.0.0.1:1/"), id="elsewhere"),
        pytest.param(says(b"{}", "500 Oops"), id="broken"),
        pytest.param(lambda writer: writer.write(b"\x00\xff" * 100), id="no HTTP"),
    ],
)
async def test_an_oversized_or_malformed_trust_answer_is_refused_and_changes_nothing(
    answer: Answer, world: World
) -> None:
    world.pki.issuer.issue_to(world.directory, WORKER)
    before = {path.name: path.read_bytes() for path in world.directory.iterdir()}
    own = world.pki.identity(SpiffeId.process(TRUST_DOMAIN, Role.CA, "ca-1"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.directory / "chain.pem", own.directory / "key.pem")
    context.set_alpn_protocols(["http/1.1"])
    keeper = world.keeper()
    async with answering(context, answer) as address:
        world.address = CaAddress(mutual=address, enrolment=address)
        with pytest.raises(CaUnavailable):
            await keeper.follower.ask()
    await keeper.close()
    assert {path.name: path.read_bytes() for path in world.directory.iterdir()} == before


async def test_malformed_or_unrelated_trust_anchors_are_not_installed(world: World, tmp_path: Path) -> None:
    """Even the authority itself cannot replace the anchors with ones unrelated to those in use."""
    world.pki.issuer.issue_to(world.directory, WORKER)
    foreign = OutsideAuthority(tmp_path / "foreign")
    before = (world.directory / CA_FILE).read_bytes()
    own = world.pki.identity(SpiffeId.process(TRUST_DOMAIN, Role.CA, "ca-1"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.directory / "chain.pem", own.directory / "key.pem")
    context.set_alpn_protocols(["http/1.1"])
    keeper = world.keeper()
    for ca_pem in (foreign.ca_file.read_bytes(), b"x"):
        body = msgspec.json.encode(TrustAnswer(version=str(len(ca_pem)), internal=TrustSide(ca_pem=ca_pem.decode())))
        async with answering(context, says(body)) as address:
            world.address = CaAddress(mutual=address, enrolment=address)
            with pytest.raises(StoreError):
                await keeper.follower.ask()
        assert (world.directory / CA_FILE).read_bytes() == before
        assert keeper.follower.trust.version == ""
    await keeper.close()


async def test_a_chosen_lifetime_is_refused_before_anything_is_sent(world: World) -> None:
    issuer = EnrollingIssuer(world.locate_all, {WORKER: world.token})
    with pytest.raises(CertificateRejected, match="lifetime"):
        await off_loop(issuer.issue_to, world.directory, WORKER, lifetime=dt.timedelta(hours=1))
