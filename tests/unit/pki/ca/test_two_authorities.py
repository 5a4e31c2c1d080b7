"""Two authorities of one home: the decisions of one also bind the other.

This holds when one of them is stopped, is cut off, or has a clock that is ahead.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509

from sluice.core.errors import CertificateRejected
from sluice.core.files.append_log import Disk
from sluice.pki.authorities.rotation_phases import Keep
from sluice.pki.authorities.rotation_store import RotationStore
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.ca.refusals import refusals_path
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.config import PkiConfig
from sluice.pki.errors import CertificateSuperseded, EnrolmentRefused, LedgerError
from sluice.pki.identities.join_tokens import mint
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.issuing.leaf import SignedChain
from sluice.pki.ledger.file import ledger_path, read_ledger, verify_ledger
from sluice.pki.revocation.crl import Reason, load_crls
from sluice.pki.revocation.store import RevocationStore, RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.key_identifiers import issuer_id, key_id
from sluice.pki.x509.profiles import AuthorityKind

CONFIG = PkiConfig()
INTERNAL = AuthorityKind.INTERNAL
WORKER = SpiffeId.process(CONFIG.trust_domain, Role.TASKMANAGER, "tm-1")
OTHER = SpiffeId.process(CONFIG.trust_domain, Role.TASKMANAGER, "tm-2")
MASTER = SpiffeId.process(CONFIG.trust_domain, Role.JOBMANAGER, "jm-1")
DRIVER = SpiffeId.driver(CONFIG.trust_domain, "a" * 32)
NOW = dt.datetime(2026, 5, 1, 12, tzinfo=dt.UTC)


def leaf_of(signed: SignedChain) -> x509.Certificate:
    return x509.load_pem_x509_certificates(signed.chain_pem.encode())[0]


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> dt.datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pki(tmp_path: Path, clock: Clock) -> Path:
    LocalIssuer(tmp_path / "pki", CONFIG, clock=clock).ensure_authorities()
    return tmp_path / "pki"


Pair = tuple[OnlineAuthority, OnlineAuthority]


@pytest.fixture
def pair(pki: Path, clock: Clock) -> Iterator[Pair]:
    both = OnlineAuthority(pki, CONFIG, clock=clock), OnlineAuthority(pki, CONFIG, clock=clock)
    yield both
    for each in both:
        each.close()


def new_token(pki: Path, now: dt.datetime = NOW, ttl: dt.timedelta = dt.timedelta(minutes=15)) -> str:
    record, token = mint(WORKER, AuthorityStore(pki).certificate(INTERNAL), now=now, ttl=ttl)
    TokenStore(pki).add(record, now=now)
    return token


def revoke(pki: Path, clock: Clock, leaf: x509.Certificate, reason: Reason = Reason.KEY_COMPROMISE) -> None:
    RevocationStore(pki, CONFIG, clock=clock).revoke(INTERNAL, [RevocationTarget.of(leaf, str(WORKER))], reason)


def test_enrolling_again_with_the_same_key_at_the_other_ca_gives_the_same_chain(pki: Path, pair: Pair) -> None:
    token, csr = new_token(pki), new_csr(WORKER)[1]
    first, again, once_more = (each.enrol(token, csr) for each in (pair[0], pair[1], pair[0]))
    assert first.chain_pem == again.chain_pem == once_more.chain_pem
    assert first.ca_pem == again.ca_pem
    assert [record.kind for record in read_ledger(ledger_path(pki))] == ["enrolment"]


def test_a_used_token_with_another_key_is_refused_by_both_authorities(pki: Path, pair: Pair) -> None:
    token = new_token(pki)
    pair[0].enrol(token, new_csr(WORKER)[1])
    for authority in pair:
        with pytest.raises(EnrolmentRefused, match="used already"):
            authority.enrol(token, new_csr(WORKER)[1])


def test_a_used_token_with_a_wrong_secret_gets_the_answer_of_an_unknown_token(pki: Path, pair: Pair) -> None:
    token, csr = new_token(pki), new_csr(WORKER)[1]
    pair[0].enrol(token, csr)
    head, secret, tail = token.rsplit("_", 2)
    guessed = "_".join((head, secret[::-1], tail))
    with pytest.raises(EnrolmentRefused, match="not known, or was used"):
        pair[1].enrol(guessed, csr)


def test_a_used_token_with_other_names_is_refused(pki: Path, pair: Pair) -> None:
    token = new_token(pki)
    pair[0].enrol(token, new_csr(WORKER)[1])
    with pytest.raises(EnrolmentRefused, match="used already"):
        pair[1].enrol(token, new_csr(OTHER)[1])


@pytest.mark.parametrize("since", ["revoked", "renewed", "enrolled anew", "expired", "forgotten", "damaged"])
def test_a_lost_answer_is_not_repeated_when_it_is_outdated(since: str, pki: Path, pair: Pair, clock: Clock) -> None:
    token, csr = new_token(pki), new_csr(WORKER)[1]
    leaf = leaf_of(pair[0].enrol(token, csr))
    kept = pki / "ca" / "tokens" / "used" / f"{token.split('_')[1]}.json"
    match since:
        case "revoked":
            revoke(pki, clock, leaf, Reason.SUPERSEDED)
        case "renewed":
            pair[0].renew(leaf, new_csr(WORKER)[1])
        case "enrolled anew":
            pair[1].enrol(new_token(pki), new_csr(WORKER)[1])
        case "expired":
            clock.now += dt.timedelta(minutes=16)
        case "forgotten":
            kept.unlink()
        case "damaged":
            kept.write_text("{")
    with pytest.raises(EnrolmentRefused):
        pair[1].enrol(token, csr)


def test_a_lost_answer_is_not_repeated_for_a_revoked_identity(pki: Path, pair: Pair, clock: Clock) -> None:
    token, csr = new_token(pki), new_csr(WORKER)[1]
    revoke(pki, clock, leaf_of(pair[0].enrol(token, csr)))
    with pytest.raises(CertificateRejected, match="was revoked"):
        pair[1].enrol(token, csr)


def test_a_token_stays_valid_when_its_ledger_record_was_never_written(pki: Path, clock: Clock) -> None:
    """The answer was stored but not recorded: the token is still good, and nothing was issued."""
    token, csr = new_token(pki), new_csr(WORKER)[1]
    full = OnlineAuthority(pki, CONFIG, clock=clock, disk=NoRoom())
    with pytest.raises(LedgerError):
        full.enrol(token, csr)
    assert list((pki / "ca" / "tokens" / "used").glob("*.json"))
    other = OnlineAuthority(pki, CONFIG, clock=clock)
    leaf = leaf_of(other.enrol(token, csr))
    assert [record.serial for record in read_ledger(ledger_path(pki))] == [f"{leaf.serial_number:x}"]
    full.close()
    other.close()


def test_stored_answers_are_removed_when_their_tokens_expire(pki: Path, pair: Pair, clock: Clock) -> None:
    pair[0].enrol(new_token(pki), new_csr(WORKER)[1])
    kept = pki / "ca" / "tokens" / "used"
    assert len(list(kept.glob("*.json"))) == 1
    clock.now += dt.timedelta(minutes=16)
    new_token(pki, clock.now)
    assert list(kept.glob("*.json")) == []


class NoRoom(Disk):
    """A disk without room: only half of each write fits."""

    def write(self, descriptor: int, data: bytes) -> int:
        """Write only half of the data."""
        return super().write(descriptor, data[: len(data) // 2])


def test_a_full_disk_of_one_authority_does_not_stop_the_other_from_issuing(pki: Path, clock: Clock) -> None:
    full = OnlineAuthority(pki, CONFIG, clock=clock, disk=NoRoom())
    other = OnlineAuthority(pki, CONFIG, clock=clock)
    for _ in range(2):
        with pytest.raises(LedgerError):
            full.issue_job(MASTER, str(DRIVER), new_csr(DRIVER)[1])
        other.issue_job(MASTER, str(DRIVER), new_csr(DRIVER)[1])
    assert verify_ledger(ledger_path(pki)).count == 2
    full.close()
    other.close()


def test_a_certificate_renewed_at_one_authority_is_superseded_at_both(pki: Path, pair: Pair, clock: Clock) -> None:
    first = leaf_of(pair[0].enrol(new_token(pki), new_csr(WORKER)[1]))
    second = leaf_of(pair[1].renew(first, new_csr(WORKER)[1]))
    third = leaf_of(pair[0].renew(first, new_csr(WORKER)[1]))
    assert third.serial_number != second.serial_number, "within the overlap: the answer may have been lost"
    clock.now += dt.timedelta(minutes=20)
    for authority in pair:
        with pytest.raises(CertificateSuperseded):
            authority.renew(first, new_csr(WORKER)[1])
    assert pair[1].renew(third, new_csr(WORKER)[1])
    refused = [record for record in read_ledger(ledger_path(pki)) if record.event == "refused"]
    assert len(refused) == 1, "both know that it was recorded a moment ago"
    assert refusals_path(pki).read_text().count('"serial"') == 1


@pytest.mark.parametrize("skew", [dt.timedelta(minutes=4), dt.timedelta(hours=2), dt.timedelta(hours=-2)])
def test_differing_clocks_neither_repeat_a_serial_nor_lift_a_revocation(
    skew: dt.timedelta, pki: Path, clock: Clock
) -> None:
    def wrong() -> dt.datetime:
        return clock.now + skew

    right_one = OnlineAuthority(pki, CONFIG, clock=clock)
    wrong_one = OnlineAuthority(pki, CONFIG, clock=wrong)
    token = new_token(pki, ttl=dt.timedelta(hours=24))
    leaf = leaf_of(wrong_one.enrol(token, new_csr(WORKER)[1]))
    with pytest.raises(EnrolmentRefused):
        right_one.enrol(token, new_csr(WORKER)[1])
    numbers: list[int] = []
    for each in (clock, wrong, clock, wrong):
        store = RevocationStore(pki, CONFIG, clock=each)
        store.revoke(INTERNAL, [RevocationTarget.of(leaf, str(WORKER))], Reason.KEY_COMPROMISE)
        store.refresh(INTERNAL, force=True)
        numbers += store.numbers(INTERNAL).values()
        (listed,) = load_crls(next(pki.glob("revocation/internal-*/crl.pem")).read_bytes())
        assert listed.get_revoked_certificate_by_serial_number(leaf.serial_number) is not None
    assert numbers == sorted(set(numbers)), "numbers of lists grow strictly"
    for authority in (right_one, wrong_one):
        with pytest.raises(CertificateRejected, match="was revoked"):
            authority.enrol(new_token(pki, ttl=dt.timedelta(hours=24)), new_csr(WORKER)[1])
    serials = [record.serial for record in read_ledger(ledger_path(pki)) if record.serial]
    assert len(serials) == len(set(serials))
    right_one.close()
    wrong_one.close()


def test_an_authority_that_was_paused_during_a_rotation_signs_with_the_new_key(
    pki: Path, pair: Pair, clock: Clock
) -> None:
    """It was stopped from before the rotation until after its end, with the old key in memory."""
    stopped, other = pair
    stopped.issue_job(MASTER, str(DRIVER), new_csr(DRIVER)[1])
    rotation = RotationStore(pki)
    rotation.begin(INTERNAL, CONFIG, clock.now)
    rotation.switch(Keep.NEW, clock.now)
    other.issue_job(MASTER, str(DRIVER), new_csr(DRIVER)[1])
    rotation.end(Keep.NEW)
    rotation.close()
    today = key_id(AuthorityStore(pki).certificate(INTERNAL))
    assert issuer_id(leaf_of(stopped.issue_job(MASTER, str(DRIVER), new_csr(DRIVER)[1]))) == today
    assert len(x509.load_pem_x509_certificates(stopped.anchors())) == 1


def test_a_certificate_recorded_after_its_identity_was_revoked_is_not_handed_out(pki: Path, clock: Clock) -> None:
    """The identity is revoked while its next certificate is being signed."""
    first = OnlineAuthority(pki, CONFIG, clock=clock)
    leaf = leaf_of(first.enrol(new_token(pki), new_csr(WORKER)[1]))
    first.close()
    late = OnlineAuthority(pki, CONFIG, clock=clock, disk=Between(lambda: revoke(pki, clock, leaf)))
    with pytest.raises(CertificateRejected, match="was revoked"):
        late.renew(leaf, new_csr(WORKER)[1])
    late.close()


class Between(Disk):
    """A disk that calls a function when a record is about to be written."""

    def __init__(self, what: Callable[[], None]) -> None:
        self._what = what

    def write(self, descriptor: int, data: bytes) -> int:
        """Call the function, then write; the authority has already decided to issue."""
        self._what()
        return super().write(descriptor, data)
