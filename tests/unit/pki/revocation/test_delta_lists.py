"""Large CRLs in parts: a complete CRL and its delta equal the new complete CRL."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings, strategies as st

from sluice.core.errors import CrlRejected, PeerRefused
from sluice.core.home import Home
from sluice.pki.agent.policy import ManagedIdentity
from sluice.pki.agent.published_identities import PublishedIdentities
from sluice.pki.agent.renewer import IdentityRenewer
from sluice.pki.authorities.signing import Authority, create_intermediate, create_root
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_certificates
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.revocation import delta_crl as delta_lists
from sluice.pki.revocation.crl import (
    EXPIRY_GRACE,
    Reason,
    Revocation,
    RevocationList,
    is_delta,
    load_crls,
    sign_crl,
)
from sluice.pki.revocation.crl_files import (
    COMPLETE_LISTS_FILE,
    CRL_FILE,
    applies_deltas,
    install_crls,
    push_crls,
    take_newer,
)
from sluice.pki.revocation.delta_crl import BASE_FILE, DELTA_FILE, DELTA_THRESHOLD_BYTES
from sluice.pki.revocation.revoked_peers import RevokedPeers
from sluice.pki.revocation.store import RevocationStore, RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import AuthorityKind

INTERNAL = AuthorityKind.INTERNAL
NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
CONFIG = PkiConfig()
ROOT = create_root(CONFIG, NOW)
AUTHORITY = create_intermediate(INTERNAL, ROOT, CONFIG, NOW)
FOREIGN = create_intermediate(INTERNAL, ROOT, CONFIG, NOW)
ANCHORS = (AUTHORITY.certificate,)
JOB = "0123456789abcdef0123456789abcdef"
MANY = 1600
"""Entries of a list that is larger than the threshold."""


def revoked(*serials: int, reason: Reason = Reason.SUPERSEDED) -> list[Revocation]:
    return [Revocation(f"{serial:x}", NOW, reason) for serial in serials]


def signed(
    entries: Sequence[Revocation],
    number: int,
    base: int | None = None,
    *,
    by: Authority = AUTHORITY,
    now: dt.datetime = NOW,
    days: int = 1,
) -> bytes:
    return sign_crl(by, entries, number=number, now=now, lifetime=days * DAY, base_number=base)


Known = dict[bytes, RevocationList]


def read(pem: bytes, known: Known | None = None, now: dt.datetime = NOW) -> tuple[Known, list[CrlRejected]]:
    """Return what a process knows after reading ``pem``, and the CRLs that it rejected."""
    return take_newer(known or {}, load_crls(pem), ANCHORS, now)


def only(known: Known) -> RevocationList:
    (found,) = known.values()
    return found


SERIALS = st.sets(st.integers(1, 2**64), max_size=30)


@settings(max_examples=60)
@given(SERIALS, SERIALS, SERIALS, st.tuples(st.integers(0, 50), st.integers(1, 50)), st.sampled_from(Reason))
def test_a_complete_crl_and_its_delta_equal_the_new_complete_crl(
    first: set[int], more: set[int], later: set[int], numbers: tuple[int, int], reason: Reason
) -> None:
    """For readers that know nothing, the base, or base and an earlier delta; in any order in the file."""
    more, later = more - first, later - first - more
    number, step = numbers
    base = signed(revoked(*first), number)
    early = signed(revoked(*more, reason=reason), number + step, number)
    delta = signed(revoked(*more, *later, reason=reason), number + 2 * step, number)
    new = only(read(signed([*revoked(*first), *revoked(*more, *later, reason=reason)], number + 2 * step))[0])
    for before in ({}, read(base)[0], read(base + early)[0], read(early + base)[0]):
        for file in (base + delta, delta + base, base + early + delta):
            known, refused = read(file, before)
            assert not refused
            assert only(known).number == new.number
            assert only(known).revoked == new.revoked
            assert only(known).pem == base + delta
            # And back: the complete list of the same number may take its place.
            assert only(read(new.pem, known)[0]) == new


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 12), SERIALS), max_size=8))
def test_crl_numbers_never_decrease_and_no_revocation_is_lost_in_any_order_of_arrival(
    offers: list[tuple[bool, int, int, set[int]]],
) -> None:
    """Honest CRLs grow with their number; they arrive in any order, complete and as deltas."""
    known: Known = {}
    for whole, number, base, _ in offers:
        pem = signed(revoked(*range(1, number + 2)), number)
        if not whole:
            pem = signed(revoked(*range(base + 2, number + 2)), number, base)
        before = only(known) if known else None
        known, _ = read(pem, known)
        if before is not None:
            assert only(known).number >= before.number
            assert set(only(known).revoked) >= set(before.revoked)
        if known:
            assert set(only(known).revoked) == set(range(1, only(known).number + 2))


def forged_delta() -> bytes:
    return _built(ec.generate_private_key(ec.SECP256R1()), critical=True)


def _built(
    key: ec.EllipticCurvePrivateKey,
    *,
    critical: bool,
    reasons: Sequence[tuple[int, x509.ReasonFlags]] = (),
    base: int | None = 5,
    number: int = 6,
) -> bytes:
    """Return a CRL that our authorities would not make, by default number 6; a delta if ``base`` is set."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(AUTHORITY.certificate.subject)
        .last_update(NOW)
        .next_update(NOW + DAY)
        .add_extension(x509.CRLNumber(number), critical=False)
    )
    if base is not None:
        builder = builder.add_extension(x509.DeltaCRLIndicator(base), critical=critical)
    for serial, reason in reasons:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(NOW)
        builder = builder.add_revoked_certificate(entry.add_extension(x509.CRLReason(reason), critical=False).build())
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


def by_hand(
    *reasons: tuple[int, x509.ReasonFlags], base: int | None = 5, number: int = 6, critical: bool = True
) -> bytes:
    assert isinstance(AUTHORITY.key, ec.EllipticCurvePrivateKey)
    return _built(AUTHORITY.key, critical=critical, reasons=reasons, base=base, number=number)


BASE = signed(revoked(1, 2, 3), 5)
GOOD = signed(revoked(4), 6, 5)
REFUSED = [
    pytest.param(signed(revoked(4), 9, 6), "only number 5 is here", id="of a newer base"),
    pytest.param(signed(revoked(4), 5, 5), "is older than list number 5", id="not newer than the base"),
    pytest.param(signed(revoked(4), 4, 3), "is older than list number 5", id="older than the base"),
    pytest.param(forged_delta(), "not signed by its issuer", id="forged"),
    pytest.param(signed(revoked(4), 6, 5, by=FOREIGN), "not trusted here", id="another authority"),
    pytest.param(signed(revoked(4), 6, 5, now=NOW - 2 * DAY), "expired", id="expired"),
    pytest.param(signed(revoked(4), 6, 5, now=NOW + DAY), "in the future", id="from the future"),
    pytest.param(by_hand(critical=False), "does not say critically", id="indicator not critical"),
]


@pytest.mark.parametrize(("delta", "why"), REFUSED)
def test_a_bad_delta_changes_nothing_and_is_refused_with_the_reason(delta: bytes, why: str) -> None:
    before, _ = read(BASE)
    for file in (delta, BASE + delta):
        known, (refused,) = read(file, before)
        assert known == before
        assert why in refused.what


def test_the_good_delta_that_the_bad_ones_are_derived_from_is_accepted() -> None:
    known, refused = read(BASE + GOOD)
    assert not refused
    assert set(only(known).revoked) == {1, 2, 3, 4}


def test_a_delta_without_its_base_is_refused() -> None:
    known, (refused,) = read(GOOD)
    assert not known
    assert "no complete list" in refused.what


def test_a_reader_that_knows_a_delta_refuses_its_base_alone_and_earlier_deltas() -> None:
    before, _ = read(BASE + signed(revoked(4, 5), 8, 5))
    for file in (BASE, BASE + GOOD, GOOD, signed(revoked(9), 7)):
        known, refused = read(file, before)
        assert known == before
        assert "older" in refused[-1].what


def test_a_newer_complete_crl_replaces_base_and_delta() -> None:
    before, _ = read(BASE + GOOD)
    known, refused = read(signed(revoked(1, 2, 3, 4, 5), 7), before)
    assert not refused
    assert only(known).base is None


def test_a_delta_lifts_only_revocations_that_were_on_hold() -> None:
    hold, lift = x509.ReasonFlags.certificate_hold, x509.ReasonFlags.remove_from_crl
    base = by_hand((1, hold), (2, x509.ReasonFlags.key_compromise), base=None, number=5)
    known, refused = read(base + by_hand((1, lift), (2, lift), (3, lift)))
    assert not refused
    assert set(only(known).revoked) == {2}


def test_a_base_with_a_delta_expires_when_the_first_of_them_does() -> None:
    found = only(read(signed(revoked(1), 5) + signed(revoked(2), 6, 5, days=20))[0])
    assert found.next_update == NOW + DAY
    assert found.expired_at(NOW + DAY + 2 * EXPIRY_GRACE)


class World:
    """A home with an identity directory, whose internal authority has revoked many certificates."""

    def __init__(self, root: Path) -> None:
        self.now = NOW
        self.home = Home.at(root)
        self.issuer = LocalIssuer(self.home, CONFIG, clock=self.clock)
        self.issuer.ensure_authorities()
        self.store = self.issuer.revocations
        self.taskmanager = self.issued(Role.TASKMANAGER, "tm-1")
        self.revoke(*range(1, MANY + 1))

    def clock(self) -> dt.datetime:
        return self.now

    def issued(self, role: Role, name: str) -> Path:
        directory = self.home.identity(role, name)
        self.issuer.issue_to(directory, SpiffeId.process("sluice.local", role, name))
        return directory

    def revoke(self, *serials: int) -> None:
        self.store.revoke(INTERNAL, [RevocationTarget(serial) for serial in serials], Reason.SUPERSEDED)

    def push(self) -> None:
        assert push_crls(self.home, self.store.lists(), self.now)[1] == []

    def kept(self, name: str) -> Path:
        """Return the path of a file beside the internal authority's CRL."""
        return next(self.home.pki.glob("revocation/internal-*")) / name

    def known_in(self, directory: Path) -> RevokedPeers:
        """Return the revocations known to a Python process that starts with ``directory``."""
        anchors = tuple(read_certificates(directory / "ca.pem"))
        return RevokedPeers(directory, lambda: anchors, clock=self.clock)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "home")


def parts(directory: Path) -> list[bool]:
    """Return for each CRL in a directory whether it is a delta."""
    return [is_delta(crl) for crl in load_crls((directory / CRL_FILE).read_bytes())]


def test_a_revocation_sends_a_small_delta_to_python_processes(world: World) -> None:
    world.push()
    assert parts(world.taskmanager) == [False]
    base = (world.taskmanager / CRL_FILE).read_bytes()
    assert len(base) > DELTA_THRESHOLD_BYTES
    for count in (1, 2, 3):
        world.revoke(MANY + count)
        world.push()
        assert parts(world.taskmanager) == [False, True]
        assert (world.taskmanager / CRL_FILE).read_bytes().startswith(base), "the base is what they know already"
        assert len(world.kept(DELTA_FILE).read_bytes()) < 1500
        (found,) = world.known_in(world.taskmanager).lists
        current = world.store.current(INTERNAL)
        assert current is not None
        assert found.number == current.number == count + 1
        assert found.revoked == current.revoked
        assert set(found.revoked) == set(range(1, MANY + count + 1))


def test_readers_that_do_not_apply_deltas_get_the_complete_crl(world: World) -> None:
    """JVMs, Envoy, identities that asked for complete CRLs, and newly issued ones."""
    jvm = world.issued(Role.ZOOKEEPER, "zk-1")
    envoy = world.issued(Role.GATEWAY, "envoy")
    asked = world.issued(Role.TASKMANAGER, "tm-2")
    (asked / COMPLETE_LISTS_FILE).touch()
    with_peers = world.issued(Role.TASKMANAGER, "tm-3")
    (with_peers / "peers").write_text("spiffe://sluice.local/job/*\n")
    executor = world.home.root / "work" / "tm-1" / "jobs" / JOB / "executor-1" / "identity"
    world.issuer.issue_to(executor, SpiffeId.executor("sluice.local", JOB, 1))
    world.push()
    world.revoke(MANY + 1)
    world.push()
    fresh = world.issued(Role.TASKMANAGER, "tm-4")
    for directory in (jvm, envoy, asked, with_peers, executor, fresh):
        assert parts(directory) == [False], directory
        assert MANY + 1 in world.known_in(directory).lists[0].revoked
    assert parts(world.taskmanager) == [False, True]
    assert applies_deltas(world.home, world.taskmanager)
    assert not applies_deltas(world.home, world.home.root / "taskmanager" / "tm-1")


def test_a_running_process_follows_successive_deltas_and_the_next_complete_crl(world: World) -> None:
    world.push()
    anchors = tuple(read_certificates(world.taskmanager / "ca.pem"))
    process = RevokedPeers(world.taskmanager, lambda: anchors, clock=world.clock, pace_seconds=0)
    victim = read_certificates(world.issued(Role.TASKMANAGER, "victim") / "chain.pem")[0]
    process.check(victim)
    version = process.version
    world.store.revoke(INTERNAL, [RevocationTarget.of(victim)], Reason.SUPERSEDED)
    world.push()
    with pytest.raises(PeerRefused, match="was revoked"):
        process.check(victim)
    assert process.version == version + 1
    world.store.refresh(INTERNAL, force=True)
    world.push()
    assert parts(world.taskmanager) == [False]
    with pytest.raises(PeerRefused, match="was revoked"):
        process.check(victim)


def test_a_small_crl_is_not_split_into_base_and_delta(tmp_path: Path) -> None:
    world = World(tmp_path / "home")
    store = RevocationStore(tmp_path / "home" / "pki", CONFIG, clock=world.clock)
    for serial in (1, 2):
        store.revoke(AuthorityKind.EDGE, [RevocationTarget(serial)], Reason.SUPERSEDED)
    (directory,) = world.home.pki.glob("revocation/edge-*")
    assert sorted(path.name for path in directory.iterdir() if path.suffix == ".pem") == ["crl.pem"]


def test_a_long_delta_becomes_the_next_base(world: World) -> None:
    base = world.kept(BASE_FILE).read_bytes()
    world.revoke(*range(MANY + 1, MANY + delta_lists.MAX_DELTA_ENTRIES + 1))
    assert world.kept(BASE_FILE).read_bytes() == base
    world.revoke(MANY + delta_lists.MAX_DELTA_ENTRIES + 1)
    assert world.kept(BASE_FILE).read_bytes() == world.kept("crl.pem").read_bytes() != base
    assert not world.kept(DELTA_FILE).exists()


@pytest.mark.parametrize("name", [BASE_FILE, DELTA_FILE])
@pytest.mark.parametrize("content", [b"", b"garbage", None], ids=["empty", "garbage", "missing"])
def test_damaged_base_or_delta_files_lose_no_revocation_and_are_repaired(
    world: World, name: str, content: bytes | None
) -> None:
    world.push()
    world.revoke(MANY + 1)
    world.kept(name).unlink()
    if content is not None:
        world.kept(name).write_bytes(content)
    again = RevocationStore(world.home.pki, CONFIG, clock=world.clock)
    assert push_crls(world.home, again.lists(), world.now)[1] == []
    assert set(world.known_in(world.taskmanager).lists[0].revoked) == set(range(1, MANY + 2))
    for serial in (MANY + 2, MANY + 3):
        world.revoke(serial)
        world.push()
        assert set(world.known_in(world.taskmanager).lists[0].revoked) == set(range(1, serial + 1))
    assert parts(world.taskmanager) == [False, True]


def test_a_new_base_is_made_when_an_entry_leaves_the_crl(world: World) -> None:
    """A delta cannot say that an entry was removed, and its base would keep it: a refresh starts anew."""
    world.store.revoke(INTERNAL, [RevocationTarget(2**80, not_after=NOW + dt.timedelta(hours=1))], Reason.SUPERSEDED)
    for hours in (13, 13):
        world.now += dt.timedelta(hours=hours)
        assert world.store.refresh(INTERNAL)
    world.revoke(MANY + 1)
    world.push()
    found = world.known_in(world.taskmanager).lists[0]
    assert found.base is not None
    assert 2**80 not in found.revoked
    assert MANY + 1 in found.revoked


def test_complete_and_split_forms_of_the_same_crl_do_not_keep_replacing_each_other(world: World) -> None:
    """CRLs arrive by more than one way, and the reader should read each only once."""
    world.push()
    world.revoke(MANY + 1)
    world.push()
    in_parts = (world.taskmanager / CRL_FILE).read_bytes()
    current = world.store.current(INTERNAL)
    assert current is not None
    assert not install_crls(world.taskmanager, current.pem, world.now)
    assert (world.taskmanager / CRL_FILE).read_bytes() == in_parts
    (world.taskmanager / COMPLETE_LISTS_FILE).touch()
    assert install_crls(world.taskmanager, current.pem, world.now)
    assert parts(world.taskmanager) == [False]
    assert not install_crls(world.taskmanager, current.in_parts, world.now)
    assert parts(world.taskmanager) == [False]


def test_base_and_delta_do_not_expire_while_crls_are_refreshed_in_time(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Each revocation renews the validity of the complete CRL, but not that of the base of its delta."""
    for hour in range(1, 60):
        world.now = NOW + dt.timedelta(hours=hour)
        if hour % 7 == 0:
            world.revoke(MANY + hour)
        world.store.refresh(INTERNAL)
        world.push()
        found = world.known_in(world.taskmanager).lists[0]
        assert found.next_update >= world.now
    assert "gets complete revocation lists" not in caplog.text, "a push had to do without the delta"


def test_a_delta_alone_is_refused_without_its_base_and_installed_beside_it_otherwise(world: World) -> None:
    world.push()
    before = (world.taskmanager / CRL_FILE).read_bytes()
    world.revoke(MANY + 1)
    (world.taskmanager / CRL_FILE).unlink()
    with pytest.raises(CrlRejected, match="no complete list"):
        install_crls(world.taskmanager, world.kept(DELTA_FILE).read_bytes(), world.now)
    (world.taskmanager / CRL_FILE).write_bytes(before)
    assert install_crls(world.taskmanager, world.kept(DELTA_FILE).read_bytes(), world.now)
    assert parts(world.taskmanager) == [False, True]


async def test_the_agent_gives_complete_crls_to_its_callers(world: World) -> None:
    world.push()
    world.revoke(MANY + 1)
    world.push()
    assert parts(world.taskmanager) == [False, True]
    identity = SpiffeId.process("sluice.local", Role.TASKMANAGER, "tm-1")
    board = PublishedIdentities(world.clock)
    keeper = IdentityRenewer(
        ManagedIdentity(identity, world.taskmanager), world.issuer, board, world.clock, lambda: 0.5
    )
    await keeper.step()
    for serial in (MANY + 1, MANY + 2):
        (found,) = board.lists(board.valid([identity]))
        assert found.base is None
        assert serial in found.revoked
        assert not is_delta(x509.load_der_x509_crl(found.der))
        world.revoke(MANY + 2)
        world.push()
        await keeper.step()
