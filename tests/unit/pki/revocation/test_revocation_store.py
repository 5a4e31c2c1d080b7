"""Revocations and the CRLs signed from them: nothing is lost, and no bad CRL is given out."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
from pathlib import Path

import pytest

from sluice.core.clock import utc_now
from sluice.core.errors import CertificateRejected, CrlRejected, StoreError
from sluice.core.files import LOCK_PATIENCE_SECONDS, locked
from sluice.core.home import Home
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_certificates
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.issuing.leaf import SignedChain
from sluice.pki.revocation.crl import Reason, Revocation
from sluice.pki.revocation.crl_files import (
    CRL_FILE,
    identity_directories,
    install_crls,
    push_crls,
)
from sluice.pki.revocation.store import RevocationStore, RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509.profiles import AuthorityKind
from sluice.runtime.messages import CsrToSign, ExecutorLaunch
from sluice.runtime.sandbox import IsolationConfig, IsolationLevel, Sandbox
from sluice.runtime.taskmanager.processes.executor import ExecutorProcess

INTERNAL, EDGE, ROOT = AuthorityKind.INTERNAL, AuthorityKind.EDGE, AuthorityKind.ROOT
START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)
TASKMANAGER = SpiffeId.process("sluice.local", Role.TASKMANAGER, "tm-1")
JOB = "0123456789abcdef0123456789abcdef"


class World:
    """A home with authorities, under a clock that the test moves."""

    def __init__(self, root: Path, now: dt.datetime = START) -> None:
        self.now = now
        self.home = Home.at(root)
        self.issuer = LocalIssuer(self.home, PkiConfig(), clock=lambda: self.now)
        self.issuer.ensure_authorities()
        self.store = self.issuer.revocations
        self.again = RevocationStore(self.home.pki, PkiConfig(), clock=lambda: self.now)

    def issue(self, directory: Path, spiffe_id: SpiffeId = TASKMANAGER) -> RevocationTarget:
        """Issue an identity and return its revocation target."""
        self.issuer.issue_to(directory, spiffe_id)
        return RevocationTarget.of(read_certificates(directory / "chain.pem")[0], str(spiffe_id))

    def record(self) -> Path:
        """Return the path of the internal authority's record of revocations."""
        (found,) = self.home.pki.glob("revocation/internal-*/revoked.json")
        return found


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "home")


def test_a_crl_lists_the_revoked_certificates_and_its_number_grows(world: World, tmp_path: Path) -> None:
    target = world.issue(tmp_path / "tm")
    assert world.store.current(INTERNAL) is None
    (added,) = world.store.revoke(INTERNAL, [target], Reason.SUPERSEDED)
    assert (added.identity, added.not_after, added.barred) == (str(TASKMANAGER), START + 24 * HOUR, False)
    first = world.store.current(INTERNAL)
    assert first is not None
    assert (first.number, set(first.revoked)) == (1, {target.serial})
    assert world.store.revoke(INTERNAL, [target], Reason.KEY_COMPROMISE) == (), "the first reason stays"
    world.store.revoke(INTERNAL, [RevocationTarget(7)], Reason.UNSPECIFIED)
    second = world.again.current(INTERNAL)
    assert second is not None
    assert (second.number, set(second.revoked)) == (2, {target.serial, 7})
    assert (world.record().stat().st_mode & 0o777, world.record().parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize(
    ("kind", "reason", "serial", "why"),
    [
        pytest.param(INTERNAL, Reason.CA_COMPROMISE, 5, "reason to revoke an authority", id="ca-compromise of a leaf"),
        pytest.param(INTERNAL, Reason.SUPERSEDED, 0, "not the serial number", id="zero"),
        pytest.param(INTERNAL, Reason.SUPERSEDED, -5, "not the serial number", id="negative"),
        pytest.param(EDGE, Reason.SUPERSEDED, 2**160, "not the serial number", id="too long"),
    ],
)
def test_a_revocation_with_an_invalid_serial_number_or_reason_is_refused(
    world: World, kind: AuthorityKind, reason: Reason, serial: int, why: str
) -> None:
    with pytest.raises(CertificateRejected, match=why):
        world.store.revoke(kind, [RevocationTarget(serial)], reason)
    assert world.store.current(kind) is None


def test_an_edge_user_and_an_intermediate_can_be_revoked(world: World, tmp_path: Path) -> None:
    ada = SpiffeId.process("sluice.local", Role.USER, "ada")
    user = world.issue(tmp_path / "ada", ada)
    world.store.revoke(EDGE, [user], Reason.PRIVILEGE_WITHDRAWN)
    world.store.revoke(ROOT, [RevocationTarget(9)], Reason.CA_COMPROMISE)
    edge, root = world.store.current(EDGE), world.store.current(ROOT)
    assert edge is not None
    assert root is not None
    assert edge.revoked[user.serial].reason == "privilegeWithdrawn"
    assert root.revoked[9].reason == "cACompromise"
    assert world.store.current(INTERNAL) is None
    with pytest.raises(CertificateRejected, match="privilege-withdrawn"):
        world.issue(tmp_path / "ada", ada)


def test_crls_are_signed_again_at_half_of_their_lifetime(world: World) -> None:
    assert world.store.refresh_all() == ([ROOT, INTERNAL, EDGE], [])
    for hours, signed in ((0, False), (12, False), (13, True), (13, False)):
        world.now = START + hours * HOUR
        assert world.store.refresh(INTERNAL) is signed
    assert world.store.refresh(INTERNAL, force=True)


def test_an_expired_crl_is_not_given_out_and_is_replaced(world: World) -> None:
    world.store.refresh(INTERNAL)
    world.now = START + 25 * HOUR
    with pytest.raises(CrlRejected, match="expired"):
        world.store.current(INTERNAL)
    assert world.store.lists() == []
    assert world.store.refresh(INTERNAL)
    assert [each.number for each in world.store.lists()] == [2]


def test_an_expired_certificate_leaves_the_crl_one_crl_after_its_expiry(world: World, tmp_path: Path) -> None:
    target = world.issue(tmp_path / "tm")
    world.store.revoke(INTERNAL, [target, RevocationTarget(7)], Reason.SUPERSEDED)
    seen = []
    for hours in (13, 26, 39):
        world.now = START + hours * HOUR
        world.store.refresh(INTERNAL)
        current = world.store.current(INTERNAL)
        assert current is not None
        seen.append({serial == 7 for serial in current.revoked})
    assert seen == [{True, False}, {True, False}, {True}], "unknown expiry: stays; RFC 5280, 3.3: one list beyond"


def test_a_refresh_repairs_a_crash_between_the_record_and_the_crl(world: World) -> None:
    world.store.refresh(INTERNAL)
    path = world.record().with_name(CRL_FILE)
    before = path.read_bytes()
    world.store.revoke(INTERNAL, [RevocationTarget(7)], Reason.SUPERSEDED)
    path.write_bytes(before)
    assert world.again.refresh(INTERNAL)
    current = world.again.current(INTERNAL)
    assert current is not None
    assert (current.number, set(current.revoked)) == (3, {7})


@pytest.mark.parametrize("content", [b"", b"{", b'{"number": 1, "extra": 2}', b'{"revoked": [{"serial": "xyz"}]}'])
def test_a_damaged_revocation_record_is_an_error_and_the_last_crl_is_kept(world: World, content: bytes) -> None:
    world.store.revoke(INTERNAL, [RevocationTarget(7)], Reason.SUPERSEDED)
    before = world.store.current(INTERNAL)
    world.record().write_bytes(content)
    with pytest.raises(StoreError, match="damaged"):
        world.again.revoke(INTERNAL, [RevocationTarget(8)], Reason.SUPERSEDED)
    assert world.again.refresh_all()[1]
    assert world.again.current(INTERNAL) == before
    world.record().unlink()
    with pytest.raises(StoreError, match="missing"):
        world.again.refresh(INTERNAL, force=True)


def test_an_authority_without_its_key_keeps_its_last_crl(world: World) -> None:
    world.store.refresh_all()
    (world.home.pki / "authorities" / "root" / "key.pem").unlink()
    world.now = START + 13 * HOUR
    signed, problems = world.store.refresh_all()
    assert signed == [INTERNAL, EDGE]
    assert "bring it back" in problems[0]
    assert world.store.current(ROOT) is not None


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason is not Reason.CA_COMPROMISE])
def test_an_identity_revoked_for_a_barring_reason_is_not_certified_again_until_reinstated(
    world: World, tmp_path: Path, reason: Reason
) -> None:
    world.store.revoke(INTERNAL, [world.issue(tmp_path / "tm")], reason)
    if reason is Reason.SUPERSEDED:
        world.issue(tmp_path / "tm")
        return
    with pytest.raises(CertificateRejected, match="was revoked"):
        world.issue(tmp_path / "tm")
    world.issue(tmp_path / "other", SpiffeId.process("sluice.local", Role.TASKMANAGER, "tm-10"))
    world.store.reinstate(INTERNAL, TASKMANAGER)
    target = world.issue(tmp_path / "tm")
    assert not world.store.is_revoked(INTERNAL, target.serial)
    assert len(world.store.revocations(INTERNAL)) == 1, "the old certificate stays revoked"


def test_a_push_gives_each_identity_directory_the_crl_of_its_own_authority(world: World) -> None:
    home = world.home
    internal = [
        home.identity(Role.TASKMANAGER, "tm-1"),
        home.work("tm-1") / "jobs" / JOB / "driver-1" / "identity",
        home.work("tm-1") / "jobs" / JOB / "executor-3" / "identity",
    ]
    world.issue(internal[0])
    world.issue(internal[1], SpiffeId.driver("sluice.local", JOB))
    world.issue(internal[2], SpiffeId.executor("sluice.local", JOB, 3))
    edge = home.identity(Role.GATEWAY, "envoy")
    world.issuer.issue_edge_server(edge, SpiffeId.process("sluice.local", Role.GATEWAY, "envoy"), dns=["localhost"])
    assert identity_directories(home) == sorted([*internal, edge])
    world.store.refresh_all()
    lists = {each.issuer_key: each.pem for each in world.store.lists()}
    assert push_crls(home, world.store.lists(), world.now) == (sorted([*internal, edge]), [])
    assert {(path / CRL_FILE).read_bytes() for path in internal} == {_current(world, INTERNAL)}
    assert (edge / CRL_FILE).read_bytes() == _current(world, EDGE)
    assert len(lists) == 3
    assert push_crls(home, world.store.lists(), world.now) == ([], []), "nothing new, nothing written"
    (internal[0] / "ca.pem").write_bytes(b"garbage")
    world.store.revoke(INTERNAL, [RevocationTarget(7)], Reason.SUPERSEDED)
    changed, failed = push_crls(home, world.store.lists(), world.now)
    assert changed == sorted(internal[1:]), "one bad directory does not keep the news from the others"
    assert len(failed) == 1


def _current(world: World, kind: AuthorityKind) -> bytes:
    current = world.store.current(kind)
    assert current is not None
    return current.pem


def test_a_new_identity_directory_has_the_crl_from_the_start(world: World, tmp_path: Path) -> None:
    world.issue(tmp_path / "before")
    assert not (tmp_path / "before" / CRL_FILE).exists()
    world.store.revoke(INTERNAL, [RevocationTarget(7)], Reason.SUPERSEDED)
    world.issue(tmp_path / "after", SpiffeId.driver("sluice.local", JOB))
    assert (tmp_path / "after" / CRL_FILE).read_bytes() == _current(world, INTERNAL)


async def test_an_executor_gets_the_crl_with_its_certificate(tmp_path: Path) -> None:
    """Its key is made by the TaskManager, so it gets only what the authority sends back."""
    world = World(tmp_path / "present", utc_now())
    world.store.revoke(INTERNAL, [RevocationTarget(7)], Reason.SUPERSEDED)
    spiffe_id = SpiffeId.executor("sluice.local", JOB, 3)

    async def sign(request: CsrToSign) -> SignedChain:
        return world.issuer.sign_csr(request.csr_pem, spiffe_id)

    launch = ExecutorLaunch(
        job_id=JOB, allocation_id="slot", executor_id=3, app_id="app", driver_url="", resource_profile_id=0, cores=1,
        memory_mb=512, startup_conf={}, java_options=(), spark_auth_secret=JOB, python="python",
    )  # fmt: skip
    sandbox = Sandbox.prepare(IsolationConfig(level=IsolationLevel.NONE))
    process = ExecutorProcess(
        launch, tmp_path / "jobs", host="127.0.0.1", trust_domain="sluice.local", sign=sign, sandbox=sandbox
    )
    await process.renew_identity()
    assert (process.directory / "identity" / CRL_FILE).read_bytes() == _current(world, INTERNAL)
    assert TlsIdentity(process.directory / "identity").revoked_peers.version == 1


def test_a_bad_crl_never_replaces_a_good_one_in_a_directory(world: World, tmp_path: Path) -> None:
    world.issue(tmp_path / "tm")
    world.store.revoke(INTERNAL, [RevocationTarget(7)], Reason.SUPERSEDED)
    older = _current(world, INTERNAL)
    world.store.revoke(INTERNAL, [RevocationTarget(8)], Reason.SUPERSEDED)
    good = _current(world, INTERNAL)
    world.store.refresh(EDGE)
    stranger = World(tmp_path / "stranger")
    stranger.store.refresh(INTERNAL)
    assert install_crls(tmp_path / "tm", good, world.now)
    late = world.now + 25 * HOUR
    for pem, now in (
        (b"garbage", START), (older, START), (_current(world, EDGE), START), (_current(stranger, INTERNAL), START),
        (good + b"garbage", START), (good, late),
    ):  # fmt: skip
        with pytest.raises(CrlRejected):
            install_crls(tmp_path / "tm", pem, now)
        assert (tmp_path / "tm" / CRL_FILE).read_bytes() == good
    assert not install_crls(tmp_path / "tm", good, world.now)
    (tmp_path / "tm" / CRL_FILE).write_bytes(b"garbage")
    assert install_crls(tmp_path / "tm", good, world.now), "what is damaged can be repaired"


def test_a_restored_authority_continues_with_crl_numbers_above_any_it_may_have_published(tmp_path: Path) -> None:
    world = World(tmp_path / "home")
    own, other = (world.issue(tmp_path / name) for name in ("one", "two"))
    world.store.revoke(INTERNAL, [own], Reason.SUPERSEDED)
    lost = Revocation(f"{other.serial:x}", START, Reason.KEY_COMPROMISE, str(TASKMANAGER), other.not_after, barred=True)
    again = Revocation(f"{own.serial:x}", START, Reason.KEY_COMPROMISE, str(TASKMANAGER), own.not_after, barred=True)
    assert world.store.continue_from(INTERNAL, {other.issuer: (lost, again), "0" * 40: (lost,)}, above=10**9) == 1
    current = world.again.current(INTERNAL)
    assert current is not None
    assert current.number > 10**9
    assert set(current.revoked) == {own.serial, other.serial}
    assert world.again.barred(INTERNAL, TASKMANAGER) is not None
    assert not world.again.refresh(INTERNAL)
    # A lower floor takes no number back.
    world.store.continue_from(INTERNAL, {}, above=5)
    later = world.again.current(INTERNAL)
    assert later is not None
    assert later.number > current.number


def test_a_restored_authority_without_its_key_remembers_the_lowest_crl_number_to_use(tmp_path: Path) -> None:
    world = World(tmp_path / "home")
    world.store.refresh(ROOT)
    (world.home.pki / "authorities" / "root" / "key.pem").rename(tmp_path / "key.pem")
    world.store.continue_from(ROOT, {}, above=10**9)
    assert set(world.again.numbers(ROOT).values()) == {10**9}
    (tmp_path / "key.pem").rename(world.home.pki / "authorities" / "root" / "key.pem")
    assert world.again.refresh(ROOT)
    current = world.again.current(ROOT)
    assert current is not None
    assert current.number > 10**9


def test_an_identity_stays_barred_after_its_revoked_certificate_has_expired(world: World, tmp_path: Path) -> None:
    target = world.issue(tmp_path / "tm")
    world.store.revoke(INTERNAL, [target], Reason.KEY_COMPROMISE)
    for hours in (13, 26, 39, 52):
        world.now = START + hours * HOUR
        world.store.refresh(INTERNAL)
    assert world.again.barred(INTERNAL, TASKMANAGER) is not None
    with pytest.raises(CertificateRejected, match="key-compromise"):
        world.issue(tmp_path / "tm")
    world.store.reinstate(INTERNAL, TASKMANAGER)
    world.now += 13 * HOUR
    world.store.refresh(INTERNAL)
    current = world.store.current(INTERNAL)
    assert current is not None
    assert not current.revoked, "lifted: it is dropped like the others"


def test_a_job_that_locks_all_its_identities_delays_a_push_of_crls_only_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = world.home.root / "work" / "tm-1" / "jobs" / JOB
    identities = [jobs / f"executor-{number}" / "identity" for number in range(4)]
    for number, directory in enumerate(identities):
        world.issue(directory, SpiffeId.executor("sluice.local", JOB, number))
    world.store.revoke(INTERNAL, [RevocationTarget(7)], Reason.SUPERSEDED)
    waits: list[float | None] = []

    def held(directory: Path, *, patience: float | None = None) -> contextlib.AbstractContextManager[None]:
        waits.append(patience)
        return locked(directory, patience=0)

    monkeypatch.setattr("sluice.pki.revocation.crl_files.locked", held)
    with contextlib.ExitStack() as stack:
        for directory in identities:
            stack.enter_context(locked(directory, patience=0))
        _, failed = push_crls(world.home, world.store.lists(), world.now)
    assert len(failed) == len(identities)
    assert waits == [LOCK_PATIENCE_SECONDS, 0, 0, 0]
    assert push_crls(world.home, world.store.lists(), world.now) == (identities, [])


def test_the_revoked_certificate_of_a_host_leaves_the_crl_because_it_bars_nobody(world: World) -> None:
    """Revocations of ACME clients have names of hosts, and would fill the CRL for ever."""
    target = RevocationTarget(7, identity="db.example.org", not_after=START + HOUR)
    world.store.revoke(EDGE, [target], Reason.UNSPECIFIED)
    for hours in (13, 26, 39):
        world.now = START + hours * HOUR
        world.store.refresh(EDGE)
    current = world.store.current(EDGE)
    assert current is not None
    assert not current.revoked


def test_a_push_says_that_it_could_not_list_the_identities(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.store.revoke(INTERNAL, [RevocationTarget(7)], Reason.SUPERSEDED)

    def fail(_: Home) -> list[Path]:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("sluice.pki.revocation.crl_files.identity_directories", fail)
    changed, (told,) = push_crls(world.home, world.store.lists(), world.now)
    assert changed == []
    assert "Too many open files" in told
