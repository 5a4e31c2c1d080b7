"""Renewal of one identity, with an issuer that fails and a clock that the test advances."""

from __future__ import annotations

import asyncio
import datetime as dt
import logging
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from sluice.core.errors import CertificateRejected
from sluice.pki.agent.policy import ManagedIdentity
from sluice.pki.agent.published_identities import PublishedIdentities
from sluice.pki.agent.renewer import IdentityRenewer
from sluice.pki.authorities.rotation_phases import Keep
from sluice.pki.authorities.rotation_store import RotationStore
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_identity
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.store import RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.trust.anchor_files import sides_of, update_anchors
from sluice.pki.trust.reporter import Reporter
from sluice.pki.trust.reports import read_reports
from sluice.pki.x509.key_identifiers import key_id
from sluice.pki.x509.profiles import AuthorityKind

ME = SpiffeId.process("sluice.local", Role.TASKMANAGER, "tm-1")


class FlakyIssuer:
    """The local issuer with injected failures and delays."""

    def __init__(self, issuer: LocalIssuer) -> None:
        self._issuer = issuer
        self.failure: Exception | None = None
        self.asked = 0
        self.answers = threading.Event()
        self.answers.set()

    def issue_to(
        self,
        directory: Path,
        spiffe_id: SpiffeId,
        *,
        dns: Sequence[str] = (),
        ips: Sequence[str] = (),
        lifetime: dt.timedelta | None = None,
        accept: Sequence[str] = (),
    ) -> None:
        """See :meth:`sluice.pki.issuing.issuer.DirectoryIssuer.issue_to`."""
        self.asked += 1
        assert self.answers.wait(30)
        if self.failure is not None:
            raise self.failure
        self._issuer.issue_to(directory, spiffe_id, dns=dns, ips=ips, lifetime=lifetime, accept=accept)


class World:
    """An identity renewer and everything that it needs."""

    def __init__(self, root: Path) -> None:
        self.now = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
        self.pki = root / "pki"
        self.local = local = LocalIssuer(self.pki, PkiConfig(), clock=self.clock)
        local.ensure_authorities()
        self.issuer = FlakyIssuer(local)
        self.board = PublishedIdentities(self.clock)
        self.directory = root / "ids" / "tm-1"
        self.managed = managed = ManagedIdentity(
            ME, self.directory, dns=("tm.example.org",), accept=("spiffe://sluice.local/job/*",)
        )
        self.keeper = IdentityRenewer(managed, self.issuer, self.board, self.clock, lambda: 0.5)
        self.impatient = IdentityRenewer(managed, self.issuer, self.board, self.clock, lambda: 0.5, patience=0)

    def clock(self) -> dt.datetime:
        """Return the time that the test has set."""
        return self.now

    def served(self) -> int | None:
        """Return the serial number of the published certificate, or None."""
        valid = self.board.valid([ME])
        return valid[0].leaf.serial_number if valid else None

    async def after(self, **passed: float) -> int | None:
        """Let time pass, run one step, and return the serial number of the published certificate."""
        self.now += dt.timedelta(**passed)
        await self.keeper.step()
        return self.served()


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A world without an identity yet."""
    return World(tmp_path)


async def test_an_identity_is_issued_kept_and_renewed_at_half_of_its_lifetime(world: World) -> None:
    first = await world.after(hours=0)
    assert first is not None
    assert await world.after(hours=11) == first
    second = await world.after(hours=2)
    assert second != first
    assert world.issuer.asked == 2
    assert (world.directory / "peers").read_text() == "spiffe://sluice.local/job/*\n"
    assert (world.directory / "identity.p12").stat().st_mode & 0o777 == 0o600


async def test_an_unusable_crl_is_repaired_at_the_start_before_an_identity_is_served(world: World) -> None:
    first = await world.after(hours=0)
    leaf = read_identity(world.directory)[0].leaf
    world.local.revocations.revoke(AuthorityKind.INTERNAL, [RevocationTarget.of(leaf)], Reason.SUPERSEDED)
    (world.directory / "crl.pem").write_bytes(b"garbage")
    board = PublishedIdentities(world.clock)
    await IdentityRenewer(world.managed, world.issuer, board, world.clock, lambda: 0.5).step()
    (material,) = board.valid([ME])
    assert material.leaf.serial_number != first, "issued anew, with the list"
    (found,) = board.lists([material])
    assert set(found.revoked) == {first}


async def test_a_failing_issuer_is_retried_with_pauses_while_the_old_identity_is_served(world: World) -> None:
    first = await world.after(hours=0)
    world.issuer.failure = CertificateRejected("the authority is away")
    assert await world.after(hours=13) == first
    assert await world.after(seconds=0.1) == first
    assert world.issuer.asked == 2, "a retry came without a pause"
    for failures in range(2, 6):
        await world.after(minutes=6)
        assert world.keeper.failures == failures
    world.issuer.failure = None
    assert await world.after(minutes=6) != first
    assert world.keeper.failures == 0


@pytest.mark.parametrize("failure", [CertificateRejected("no"), ConnectionRefusedError("away"), OSError(28, "full")])
async def test_the_renewer_recovers_from_any_error_of_the_issuer(world: World, failure: Exception) -> None:
    world.issuer.failure = failure
    assert await world.after(hours=0) is None
    world.issuer.failure = None
    assert await world.after(seconds=5) is not None


async def test_each_level_of_urgency_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    await world.after(hours=0)
    world.issuer.failure = CertificateRejected("the authority is away")
    caplog.set_level(logging.WARNING)
    for hours in (13, 5.5, 0.1, 4, 0.1, 2, 0.1):
        await world.after(hours=hours)
    told = [(record.levelno, record.getMessage().split()[1]) for record in caplog.records if " UTC " in record.message]
    assert told == [(logging.WARNING, "expires"), (logging.ERROR, "expires"), (logging.CRITICAL, "expired")]


async def test_an_expired_identity_is_not_served(world: World) -> None:
    await world.after(hours=0)
    world.issuer.failure = CertificateRejected("the authority is away")
    assert await world.after(hours=25) is None


async def test_a_damaged_directory_is_reissued_while_the_last_good_identity_is_served(world: World) -> None:
    first = await world.after(hours=0)
    (world.directory / "chain.pem").write_text("garbage")
    world.issuer.failure = CertificateRejected("the authority is away")
    assert await world.after(seconds=1) == first
    world.issuer.failure = None
    assert await world.after(minutes=6) not in {None, first}


async def test_an_identity_of_another_process_in_the_directory_is_replaced(world: World) -> None:
    world.issuer.issue_to(world.directory, SpiffeId.process("sluice.local", Role.TASKMANAGER, "tm-2"))
    assert await world.after(hours=0) is not None
    assert read_identity(world.directory)[0].spiffe_id == ME


async def test_an_identity_renewed_by_another_program_is_loaded_and_published(world: World) -> None:
    first = await world.after(hours=0)
    seen = world.board.generation
    waiting = asyncio.create_task(world.board.change(seen))
    world.issuer.issue_to(world.directory, ME)
    assert await world.after(seconds=1) != first
    assert await waiting == seen + 1


async def test_nothing_is_published_when_nothing_changed(world: World) -> None:
    await world.after(hours=0)
    seen = world.board.generation
    for _ in range(3):
        await world.after(seconds=1)
    assert world.board.generation == seen


async def test_a_new_certificate_is_issued_when_the_clock_jumps_back(world: World) -> None:
    first = await world.after(hours=0)
    assert await world.after(minutes=-2) == first, "within the backdating"
    world.now += dt.timedelta(hours=1)
    second = await world.after(hours=12)
    world.issuer.failure = CertificateRejected("the authority is away")
    assert await world.after(hours=-12) is None, "not valid yet: not served"
    assert second is not None


async def test_a_hanging_issuer_is_asked_once_and_expiry_warnings_are_still_logged(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    first = await world.after(hours=0)
    world.issuer.answers.clear()
    for hours in (13, 6, 3):
        world.now += dt.timedelta(hours=hours)
        await world.impatient.step()
        assert world.served() == first
    assert [record.levelno for record in caplog.records if record.levelno > logging.INFO] == [
        logging.WARNING,
        logging.ERROR,
    ]
    world.issuer.answers.set()
    while world.served() == first:
        await world.impatient.step()
        await asyncio.sleep(0)
    assert world.issuer.asked == 2


async def test_an_identity_is_renewed_at_once_after_a_rotation_and_reported(world: World) -> None:
    """The first anchor in the directory is the authority that signs now."""
    reporter = Reporter(world.directory, "agent")
    keeper = IdentityRenewer(
        world.keeper.identity, world.issuer, world.board, world.clock, lambda: 0.5, reporter=reporter
    )
    await keeper.step()
    ((before,), _) = read_reports(world.directory)
    store = RotationStore(world.pki)
    store.begin(AuthorityKind.INTERNAL, PkiConfig(), world.now)
    (side, _) = sides_of(world.pki)
    update_anchors(world.directory, side)
    await keeper.step()
    ((prepared,), _) = read_reports(world.directory)
    assert (prepared.leaf, len(prepared.anchors), world.issuer.asked) == (before.leaf, 2, 1)
    store.switch(Keep.NEW, world.now)
    (side, _) = sides_of(world.pki)
    update_anchors(world.directory, side)
    await keeper.step()
    ((after,), _) = read_reports(world.directory)
    assert (after.program, after.issuer, world.issuer.asked) == ("agent", key_id(side.bundle[0]), 2)
    assert after.issuer != before.issuer
    await keeper.step()
    assert world.issuer.asked == 2, "once is enough"
    reporter.close()
    assert read_reports(world.directory) == ([], [])


async def test_a_pause_after_a_failure_does_not_outlast_a_clock_that_is_set_back(world: World) -> None:
    """The clock is 14 hours ahead when the renewal fails, until the machine knows the time."""
    first = await world.after()
    world.issuer.failure = CertificateRejected("not now")
    assert await world.after(hours=14) == first
    world.issuer.failure = None
    assert await world.after(hours=-1, minutes=-30) not in {first, None}, "it is due, and the pause is longer than any"
