"""A copied key is detected: of two renewals with one certificate, one is refused and reported.

The refusal is also recorded in the ledger.
"""

from __future__ import annotations

import datetime as dt
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import HealthCheck, given, settings, strategies as st

from sluice.core.home import Home
from sluice.gateway.ui.certificates import pki_view
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.authority import REFUSED, OnlineAuthority
from sluice.pki.ca.refusals import (
    ATTENTION,
    MAX_REFUSALS,
    Refusal,
    Refusals,
    needing_attention,
    refusals_path,
)
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.config import PkiConfig
from sluice.pki.errors import CertificateSuperseded, IssuanceRefused
from sluice.pki.identities.join_tokens import mint
from sluice.pki.inspect.doctor.examine import judge
from sluice.pki.inspect.doctor.scan import read_home
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.issuing.leaf import SignedChain
from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.ledger.generations import DEFAULT_OVERLAP, Generations, overlap_for
from sluice.pki.ledger.records import LedgerRecord
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.store import RevocationStore, RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.profiles import AuthorityKind
from sluice.runtime.rest.trust_facts import trust_facts
from sluice.runtime.ui.trust_map import TrustMap
from sluice.runtime.ui.trust_warnings import trust_warnings
from tests.integration.pki.test_command import Command, sluice_pki  # noqa: F401  a fixture

CONFIG = PkiConfig(trust_domain="td")
START = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
WORKER = SpiffeId.process("td", Role.TASKMANAGER, "tm-1")
OTHER = SpiffeId.process("td", Role.TASKMANAGER, "tm-2")
INTERNAL = AuthorityKind.INTERNAL
MINUTE, HOUR = dt.timedelta(minutes=1), dt.timedelta(hours=1)


class World:
    """An online authority with a clock that the test advances."""

    def __init__(self, root: Path, config: PkiConfig = CONFIG) -> None:
        self.now = START
        self.config = config
        self.home = Home.at(root).create()
        LocalIssuer(self.home, config, clock=self.clock).ensure_authorities()
        self.authority = self.start()

    def clock(self) -> dt.datetime:
        """Return the time that the test has set."""
        return self.now

    def start(self) -> OnlineAuthority:
        """Open the authority from what is on disk."""
        return OnlineAuthority(self.home.pki, self.config, clock=self.clock)

    def restart(self) -> None:
        """Reopen the authority, which then knows only what is on disk."""
        self.authority.close()
        self.authority = self.start()

    def enrol(self, spiffe_id: SpiffeId = WORKER) -> x509.Certificate:
        """Issue a first certificate for a join token."""
        record, text = mint(spiffe_id, AuthorityStore(self.home.pki).certificate(INTERNAL), now=self.now)
        TokenStore(self.home.pki).add(record, now=self.now)
        return leaf_of(self.authority.enrol(text, new_csr(spiffe_id)[1]))

    def renew(self, current: x509.Certificate, spiffe_id: SpiffeId = WORKER) -> x509.Certificate:
        """Renew ``current`` as anyone with its key could."""
        return leaf_of(self.authority.renew(current, new_csr(spiffe_id)[1]))

    def by_hand(self) -> x509.Certificate:
        """Issue a certificate on the authority's machine without the online authority."""
        issuer = LocalIssuer(self.home, self.config, clock=self.clock)
        return leaf_of(issuer.sign_csr(new_csr(WORKER)[1], WORKER))

    def refused(self) -> list[LedgerRecord]:
        """Return the refusals in the ledger."""
        return [record for record in read_ledger(ledger_path(self.home.pki)) if record.event == "refused"]


def leaf_of(signed: SignedChain) -> x509.Certificate:
    return x509.load_pem_x509_certificates(signed.chain_pem.encode())[0]


def is_refused(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except CertificateSuperseded:
        return True
    return False


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "home")


@pytest.mark.parametrize("thief_first", [True, False])
@pytest.mark.parametrize("apart", [dt.timedelta(seconds=1), DEFAULT_OVERLAP, 2 * HOUR])
def test_a_thief_and_the_owner_cannot_both_keep_renewing_one_certificate(
    world: World, apart: dt.timedelta, *, thief_first: bool
) -> None:
    """Both renew at half of the lifetime: one of them is refused at the next renewal at the latest."""
    has = dict.fromkeys(("owner", "thief"), world.enrol())
    order = ("thief", "owner") if thief_first else ("owner", "thief")
    refused: set[str] = set()
    for _ in range(3):
        world.now += 12 * HOUR - apart
        for who in order:
            try:
                has[who] = has[who] if who in refused else world.renew(has[who])
            except CertificateSuperseded:
                refused.add(who)
            world.now += apart
        world.now -= apart
    assert len(refused) == 1
    assert {record.identity for record in world.refused()} == {str(WORKER)}


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(16, 11 * 60)), min_size=12, max_size=16))
def test_of_two_holders_with_renewals_beyond_the_overlap_only_one_can_renew(
    steps: list[tuple[bool, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("home"))
    first = world.enrol()
    has, turns = {True: first, False: first}, {True: 0, False: 0}
    refused = False
    for who, minutes in steps:
        world.now += minutes * MINUTE
        if not has[who].not_valid_before_utc <= world.now <= has[who].not_valid_after_utc:
            continue
        try:
            has[who] = world.renew(has[who])
            turns[who] += 1
        except CertificateSuperseded:
            refused = True
    world.authority.close()
    assert refused or not all(turns.values()), "both renewed, and nobody noticed"
    assert not (refused and all(turns.values())), "with so long between any two, the second was refused at once"


def test_a_renewal_whose_answer_was_lost_can_be_repeated_with_the_old_key(world: World) -> None:
    had = world.enrol()
    world.now += 12 * HOUR
    world.renew(had)  # never arrives
    for _ in range(3):
        world.now += 4 * MINUTE
        received = world.renew(had)
    world.now += 12 * HOUR
    assert world.renew(received), "what arrived last is the newest"
    assert not world.refused()


def test_the_overlap_counts_from_the_first_successor_certificate(world: World) -> None:
    had = world.enrol()
    world.renew(had)
    world.now += DEFAULT_OVERLAP
    world.renew(had)
    world.now += dt.timedelta(seconds=1)
    with pytest.raises(CertificateSuperseded, match="howto/stolen-key"):
        world.renew(had)


@pytest.mark.parametrize(
    ("hours", "minutes"), [pytest.param(24, 15, id="a day"), pytest.param(0.5, 7.5, id="half an hour")]
)
def test_overlap_is_shorter_than_the_time_between_renewals(tmp_path: Path, hours: float, minutes: float) -> None:
    config = PkiConfig(trust_domain="td", leaf_hours=hours, backdate_minutes=0)
    world = World(tmp_path / "home", config)
    had = world.enrol()
    assert overlap_for(had, DEFAULT_OVERLAP) == minutes * MINUTE
    world.renew(had)
    world.now += minutes * MINUTE
    world.renew(had)
    world.now += dt.timedelta(seconds=1)
    assert is_refused(lambda: world.renew(had))


def test_superseded_certificates_and_refusals_are_known_after_a_restart(world: World) -> None:
    had = world.enrol()
    newest = world.renew(had)
    world.now += HOUR
    world.restart()
    assert is_refused(lambda: world.renew(had))
    world.restart()
    assert len(needing_attention(world.home, world.now)) == 1
    assert world.renew(newest)


def test_the_newest_certificate_can_be_renewed_after_the_clock_was_set_back(world: World) -> None:
    world.now += HOUR
    had = world.enrol()
    newest = world.renew(had)
    world.now -= 4 * MINUTE
    assert world.renew(newest)
    assert not world.refused()


def test_a_certificate_from_before_the_ledger_can_be_renewed_only_once(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home").create()
    issuer = LocalIssuer(home, CONFIG, clock=lambda: START)
    issuer.ensure_authorities()
    old = leaf_of(issuer.sign_csr(new_csr(WORKER)[1], WORKER))
    world = World(tmp_path / "home")
    world.now += 6 * HOUR
    newest = world.renew(old)
    world.now += HOUR
    assert is_refused(lambda: world.renew(old))
    assert world.renew(newest)


def test_after_a_ledger_restore_the_newer_certificate_is_known_by_its_start_date(world: World, tmp_path: Path) -> None:
    older = world.enrol()
    shutil.copy2(ledger_path(world.home.pki), tmp_path / "copy")
    world.now += 12 * HOUR
    newest = world.renew(older)
    world.authority.close()
    shutil.copy2(tmp_path / "copy", ledger_path(world.home.pki))
    world.authority = world.start()
    world.now += HOUR
    renewed = world.renew(newest)
    world.now += HOUR
    assert is_refused(lambda: world.renew(older))
    assert world.renew(renewed)


def test_a_manually_issued_certificate_starts_the_overlap_of_the_previous_one(world: World) -> None:
    had = world.enrol()
    by_hand = world.by_hand()
    world.now += HOUR
    assert not is_refused(lambda: world.renew(had)), "the note was taken in a moment ago: the overlap begins with it"
    world.now += HOUR
    assert is_refused(lambda: world.renew(had))
    assert is_refused(lambda: world.renew(by_hand))


def test_a_holder_who_lost_the_newest_certificate_can_enrol_again_with_a_token(world: World) -> None:
    restored = world.enrol()
    world.renew(restored)
    world.now += HOUR
    assert is_refused(lambda: world.renew(restored))
    again = world.enrol()
    world.now += HOUR
    assert world.renew(again)


def test_a_refusal_does_not_affect_other_identities(world: World) -> None:
    mine, others = world.enrol(), world.enrol(OTHER)
    world.renew(mine)
    world.now += HOUR
    assert is_refused(lambda: world.renew(mine))
    assert world.renew(others, OTHER)


def test_refusal_is_recorded_logged_counted_and_shown(world: World, caplog: pytest.LogCaptureFixture) -> None:
    stolen = world.enrol()
    newest = world.renew(stolen)
    world.now += HOUR
    before = REFUSED.labels("renewal")._value.get()
    for _ in range(4):
        assert is_refused(lambda: world.renew(stolen))
        world.now += 10 * MINUTE
    assert REFUSED.labels("renewal")._value.get() - before == 4
    (record,) = world.refused()
    serial = f"{stolen.serial_number:x}"
    assert (record.kind, record.identity, record.serial) == ("renewal", str(WORKER), serial)
    told = f"an older certificate of {WORKER} (serial {serial}) was shown for renewal"
    assert [each.levelno for each in caplog.records if told in each.getMessage()] == [logging.ERROR]
    (refusal,) = needing_attention(world.home, world.now)
    assert refusal.newest == f"{newest.serial_number:x}"
    problems = [each for each in judge(read_home(world.home, running=False), world.now) if each.code.startswith("supe")]
    assert [(each.code, told in each.what) for each in problems] == [("superseded-shown", True)]
    facts = trust_facts("", newest, [], superseded=[refusal.describe()])
    assert [each.tone for each in trust_warnings(TrustMap({}, ()), facts, 0) if serial in each.text] == ["bad"]
    page = pki_view(world.home, CONFIG, world.now.timestamp())
    assert [told in problem for problem in page.problems] == [True]
    world.now += HOUR
    assert is_refused(lambda: world.renew(stolen))
    assert len(world.refused()) == 2, "again after an hour"


def test_the_ledger_command_shows_refused_renewals(world: World, sluice_pki: Command) -> None:  # noqa: F811
    stolen = world.enrol()
    world.renew(stolen)
    world.now += HOUR
    assert is_refused(lambda: world.renew(stolen))
    shown = sluice_pki("ledger", "show").out
    assert f"REFUSED    {WORKER}  showed the superseded certificate {stolen.serial_number:x} for renewal" in shown
    assert sluice_pki("ledger", "verify").code == 0


@pytest.mark.parametrize("how", ["revoked", "days later"])
def test_a_refusal_needs_no_attention_after_a_revocation_or_some_days(how: str, world: World) -> None:
    stolen = world.enrol()
    world.renew(stolen)
    world.now += HOUR
    assert is_refused(lambda: world.renew(stolen))
    if how == "revoked":
        store = RevocationStore(world.home.pki, CONFIG, clock=world.clock)
        store.revoke(INTERNAL, [RevocationTarget.of(stolen, str(WORKER))], Reason.SUPERSEDED)
    else:
        world.now += ATTENTION
    assert needing_attention(world.home, world.now) == ()


def test_a_damaged_refusals_file_stops_neither_the_authority_nor_refusals(world: World) -> None:
    stolen = world.enrol()
    newest = world.renew(stolen)
    refusals_path(world.home.pki).write_bytes(b"{")
    world.now += HOUR
    world.restart()
    assert world.renew(newest)
    assert is_refused(lambda: world.renew(stolen))
    assert len(needing_attention(world.home, world.now)) == 1


def test_the_number_of_remembered_refusals_is_bounded(tmp_path: Path) -> None:
    refusals = Refusals(tmp_path)
    known: dict[tuple[AuthorityKind, str], Refusal] = refusals._known
    each = Refusal(
        identity=str(WORKER), authority=INTERNAL, serial="ffff", newest="1", not_after=START, first=START, last=START
    )
    for number in range(MAX_REFUSALS + 5):
        known[INTERNAL, f"{number:x}"] = each
    assert refusals.add(each)
    assert len(known) == MAX_REFUSALS
    assert (INTERNAL, "ffff") in known


def test_certificates_of_jobs_and_users_are_not_tracked_for_renewal(tmp_path: Path) -> None:
    """Whoever may request them renews them; the previous certificate does not matter."""
    generations = Generations()
    for identity in (SpiffeId.driver("td", "a" * 32), SpiffeId.process("td", Role.USER, "ada")):
        for serial in ("1", "2"):
            generations.take(
                LedgerRecord(
                    event="issued", kind="job", identity=str(identity), serial=serial,
                    time=START.isoformat(), not_after=(START + HOUR).isoformat(),
                )
            )  # fmt: skip
        assert generations.newest(INTERNAL, identity) is None
    world = World(tmp_path / "home")
    driver = SpiffeId.driver("td", "a" * 32)
    certificate = leaf_of(
        world.authority.issue_job(SpiffeId.process("td", Role.JOBMANAGER, "jm"), str(driver), new_csr(driver)[1])
    )
    with pytest.raises(IssuanceRefused, match="not renewed here"):
        world.authority.renew(certificate, new_csr(driver)[1])


def test_certificates_issued_before_a_restoration_cannot_be_renewed(world: World) -> None:
    first = world.enrol()
    by_hand = world.by_hand()
    world.now += MINUTE
    world.authority.take_notes()
    world.authority._ledger.append(LedgerRecord(event="restored", requester="backup:1"))
    for restarted in (False, True):
        if restarted:
            world.restart()
        for certificate in (first, by_hand):
            with pytest.raises(CertificateSuperseded, match="older than the restoration"):
                world.renew(certificate)
    world.now += MINUTE
    joined = world.enrol()
    world.now += MINUTE
    newest = world.renew(joined)
    world.renew(newest)
    with pytest.raises(CertificateSuperseded):
        world.renew(first)
    refused = [each for each in read_ledger(ledger_path(world.home.pki)) if each.event == "refused"]
    assert {int(each.serial, 16) for each in refused} == {first.serial_number, by_hand.serial_number}


def test_the_overlap_does_not_apply_across_a_restoration(world: World) -> None:
    first = world.enrol()
    second = world.renew(first)
    world.authority._ledger.append(LedgerRecord(event="restored", requester="backup:1"))
    for certificate in (first, second):
        with pytest.raises(CertificateSuperseded):
            world.renew(certificate)
