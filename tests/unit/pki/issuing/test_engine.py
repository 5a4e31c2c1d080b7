"""The issuing engine: it refuses before it signs, and nothing leaves unrecorded."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.core.errors import CertificateRejected, StoreError
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.errors import LedgerError
from sluice.pki.issuing.engine import IssuingEngine
from sluice.pki.issuing.leaf import IssuedLeaf, LeafRequest, renewal_request
from sluice.pki.ledger.file import Ledger, ledger_path, read_ledger
from sluice.pki.revocation.crl import Reason
from sluice.pki.revocation.store import RevocationTarget
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import check_csr, new_csr
from sluice.pki.x509.key_identifiers import fingerprint, issuer_id, key_id
from sluice.pki.x509.profiles import AuthorityKind, Names, workload_profile

CONFIG = PkiConfig()
WORKER = SpiffeId.process(CONFIG.trust_domain, Role.TASKMANAGER, "tm-1")
INTERNAL = AuthorityKind.INTERNAL


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    AuthorityStore(tmp_path / "pki").ensure(CONFIG, utc_now())
    return tmp_path / "pki"


def request(spiffe_id: SpiffeId = WORKER, lifetime: dt.timedelta | None = None) -> LeafRequest:
    """A request with the key of a CSR."""
    names = Names(spiffe_id)
    key = check_csr(new_csr(spiffe_id)[1], names)
    return LeafRequest(names, workload_profile(spiffe_id.role, CONFIG), lifetime, key=key, kind="enrolment")


def revoke(engine: IssuingEngine) -> None:
    engine.revocations.revoke(INTERNAL, [RevocationTarget(7, str(WORKER))], Reason.KEY_COMPROMISE)


def test_a_revoked_identity_is_refused(pki: Path) -> None:
    engine = IssuingEngine(pki, CONFIG)
    revoke(engine)
    with pytest.raises(CertificateRejected, match="was revoked at"):
        engine.issue(request())
    assert engine.issue(request(SpiffeId.process(CONFIG.trust_domain, Role.TASKMANAGER, "tm-2"))).chain_pem


def test_reinstating_lifts_the_revocation_only_once_the_leaf_is_signed(pki: Path) -> None:
    engine = IssuingEngine(pki, CONFIG)
    revoke(engine)
    with pytest.raises(CertificateRejected, match="lifetime"):
        engine.issue(request(lifetime=dt.timedelta(days=4000)), reinstate=True)
    assert engine.revocations.barred(INTERNAL, WORKER) is not None
    engine.issue(request(), reinstate=True)
    assert engine.revocations.barred(INTERNAL, WORKER) is None


def test_another_trust_domain_is_refused(pki: Path) -> None:
    foreign = SpiffeId.process("other.local", Role.TASKMANAGER, "tm-1")
    with pytest.raises(CertificateRejected, match="not of trust domain"):
        IssuingEngine(pki, CONFIG).issue(request(foreign))


def test_issued_leaves_are_in_the_ledger_once_they_are_recorded(pki: Path) -> None:
    engine = IssuingEngine(pki, CONFIG)
    engine.ledger = Ledger(ledger_path(pki), clock=utc_now)
    issued = [engine.sign(request()), engine.sign(request())]
    assert list(read_ledger(ledger_path(pki))) == []
    engine.record(issued)
    assert [record.certificate for record in read_ledger(ledger_path(pki))] == [fingerprint(one.leaf) for one in issued]
    engine.ledger.close()


class BrokenLedger(Ledger):
    """A ledger that cannot be written."""

    def append_all(self, records: object) -> list[object]:  # type: ignore[override]  # it takes nothing
        """Always fails."""
        raise LedgerError(f"not written: {records!r}")


def test_a_leaf_that_cannot_be_recorded_is_not_handed_out(pki: Path, tmp_path: Path) -> None:
    engine = IssuingEngine(pki, CONFIG)
    engine.ledger = BrokenLedger(ledger_path(pki), clock=utc_now)
    with pytest.raises(LedgerError):
        engine.issue(request())
    with pytest.raises(LedgerError):
        engine.issue_to(tmp_path / "tm-1", LeafRequest(Names(WORKER), workload_profile(WORKER.role, CONFIG)))
    assert not (tmp_path / "tm-1").exists()
    engine.ledger.close()


@pytest.mark.parametrize("read_once", [False, True], ids=["each time", "once"])
def test_authorities_are_read_for_each_leaf_unless_read_once_is_set(read_once: bool, pki: Path, tmp_path: Path) -> None:
    engine = IssuingEngine(pki, CONFIG, read_once=read_once)
    before = engine.sign(request())
    store = AuthorityStore(pki)
    store.directory(INTERNAL).rename(tmp_path / "replaced")
    store.ensure(CONFIG, utc_now())
    after = engine.sign(request())
    assert (issuer_id(after.leaf) == issuer_id(before.leaf)) is read_once
    assert (issuer_id(after.leaf) == key_id(store.certificate(INTERNAL))) is not read_once


def test_a_leaf_whose_key_is_on_another_machine_is_not_written(pki: Path, tmp_path: Path) -> None:
    engine = IssuingEngine(pki, CONFIG)
    with pytest.raises(StoreError, match="is not on this machine"):
        engine.write(tmp_path / "tm-1", engine.sign(request()))


def test_the_repr_of_an_issued_leaf_shows_no_key(pki: Path) -> None:
    own: IssuedLeaf = IssuingEngine(pki, CONFIG).sign(LeafRequest(Names(WORKER), workload_profile(WORKER.role, CONFIG)))
    assert own.own_key
    assert "PrivateKey" not in repr(own)


@pytest.mark.parametrize("hours", [2, 24, 48])
def test_a_renewal_request_asks_for_the_same_names_and_lifetime(hours: int, pki: Path) -> None:
    leaf: x509.Certificate = IssuingEngine(pki, CONFIG).sign(request(lifetime=dt.timedelta(hours=hours))).leaf
    successor = renewal_request(leaf, CONFIG)
    assert successor.names == Names(WORKER)
    assert (successor.lifetime or successor.profile.lifetime) == dt.timedelta(hours=hours)
    assert successor.key is None
