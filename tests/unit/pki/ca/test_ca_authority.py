"""The online authority without sockets: what it issues is on disk first, and a token works once."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.core.errors import CertificateRejected, StoreError
from sluice.core.files.append_log import Disk
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.ca.token_store import TokenStore
from sluice.pki.config import PkiConfig
from sluice.pki.errors import EnrolmentRefused, LedgerError
from sluice.pki.identities.join_tokens import mint
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.issuing.leaf import SignedChain
from sluice.pki.ledger.file import ledger_path, read_ledger
from sluice.pki.ledger.records import LedgerRecord, read_chain
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.tls.contexts import TlsIdentity
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.key_identifiers import fingerprint
from sluice.pki.x509.profiles import AuthorityKind

CONFIG = PkiConfig(trust_domain="td")
WORKER = SpiffeId.process("td", Role.TASKMANAGER, "tm-1")
MASTER = SpiffeId.process("td", Role.JOBMANAGER, "jm-1")
DRIVER = SpiffeId.driver("td", "a" * 32)


class CautiousDisk(Disk):
    """A disk that remembers what survives a power failure: only what was synced."""

    def __init__(self) -> None:
        self.durable = b""

    def sync(self, descriptor: int) -> None:
        """Sync the file and remember its content as durable."""
        super().sync(descriptor)
        self.durable = Path(f"/proc/self/fd/{descriptor}").read_bytes()


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    LocalIssuer(tmp_path / "pki", CONFIG).ensure_authorities()
    return tmp_path / "pki"


def new_token(pki: Path, spiffe_id: SpiffeId = WORKER) -> str:
    now = utc_now()
    record, text = mint(spiffe_id, AuthorityStore(pki).certificate(AuthorityKind.INTERNAL), now=now)
    TokenStore(pki).add(record, now=now)
    return text


def leaf_of(signed: SignedChain) -> x509.Certificate:
    return x509.load_pem_x509_certificates(signed.chain_pem.encode())[0]


def test_every_certificate_is_synced_to_the_ledger_before_it_leaves(pki: Path, tmp_path: Path) -> None:
    disk = CautiousDisk()
    authority = OnlineAuthority(pki, CONFIG, disk=disk)

    def recorded(certificate: x509.Certificate) -> LedgerRecord:
        found = {record.certificate: record for record in read_chain(disk.durable.splitlines(keepends=True))}
        return found[fingerprint(certificate)]

    authority.issue_own(tmp_path / "own", "ca-1", "127.0.0.1")
    assert recorded(TlsIdentity(tmp_path / "own").material.leaf).kind == "self"
    token = new_token(pki)
    worker = leaf_of(authority.enrol(token, new_csr(WORKER)[1]))
    assert recorded(worker).token == token.split("_")[1]
    assert recorded(leaf_of(authority.renew(worker, new_csr(WORKER)[1]))).requester == str(WORKER)
    driver = leaf_of(authority.issue_job(MASTER, str(DRIVER), new_csr(DRIVER)[1]))
    assert (recorded(driver).identity, recorded(driver).requester) == (str(DRIVER), str(MASTER))
    assert int(recorded(driver).serial, 16) == driver.serial_number
    assert authority.state.count == 4
    authority.close()


def test_the_certificate_of_an_authority_on_all_addresses_names_no_host(pki: Path, tmp_path: Path) -> None:
    authority = OnlineAuthority(pki, CONFIG)
    for host, names in (("::", 1), ("127.0.0.1", 2), ("ca.example.org", 2)):
        authority.issue_own(tmp_path / "own", "ca-1", host)
        alternative = TlsIdentity(tmp_path / "own").material.leaf.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
        assert len(list(alternative.value)) == names
    authority.close()


def test_a_join_token_is_good_once_even_when_its_file_is_restored(pki: Path) -> None:
    """The ledger decides, not the file: a restored copy of the file enrols nobody."""
    token = new_token(pki)
    file = pki / "ca" / "tokens" / f"{token.split('_')[1]}.json"
    kept = file.read_bytes()
    authority = OnlineAuthority(pki, CONFIG)
    authority.enrol(token, new_csr(WORKER)[1])
    assert not file.exists()
    for restart in (False, True):
        if restart:
            authority.close()
            authority = OnlineAuthority(pki, CONFIG)
        with pytest.raises(EnrolmentRefused, match="used already"):
            authority.enrol(token, new_csr(WORKER)[1])
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(descriptor, kept)
        os.close(descriptor)
        with pytest.raises(EnrolmentRefused, match="used already"):
            authority.enrol(token, new_csr(WORKER)[1])
        file.unlink()
    authority.close()


def test_bad_request_does_not_use_the_token_up(pki: Path) -> None:
    token = new_token(pki)
    authority = OnlineAuthority(pki, CONFIG)
    with pytest.raises(CertificateRejected):
        authority.enrol(token, new_csr(MASTER)[1])
    assert leaf_of(authority.enrol(token, new_csr(WORKER)[1]))
    authority.close()
    assert len(list(read_ledger(ledger_path(pki)))) == 1


class NoDisk(Disk):
    """A disk that is full from the beginning."""

    def write(self, descriptor: int, data: bytes) -> int:
        """Write nothing."""
        return super().write(descriptor, data[:0])


def test_nothing_is_issued_and_no_token_is_used_when_the_ledger_cannot_be_written(pki: Path) -> None:
    token = new_token(pki)
    authority = OnlineAuthority(pki, CONFIG, disk=NoDisk())
    with pytest.raises(LedgerError):
        authority.enrol(token, new_csr(WORKER)[1])
    authority.close()
    authority = OnlineAuthority(pki, CONFIG)
    assert authority.state.count == 0
    authority.enrol(token, new_csr(WORKER)[1])
    authority.close()


def test_a_join_token_that_expired_by_the_clock_of_the_authority_is_refused(pki: Path) -> None:
    token = new_token(pki)
    authority = OnlineAuthority(pki, CONFIG, clock=lambda: utc_now() + dt.timedelta(minutes=16))
    with pytest.raises(EnrolmentRefused, match="expired"):
        authority.enrol(token, new_csr(WORKER)[1])
    authority.close()


def test_authority_without_key_or_of_another_trust_domain_does_not_start(pki: Path) -> None:
    with pytest.raises(StoreError, match="trust domain"):
        OnlineAuthority(pki, PkiConfig(trust_domain="other"))
    (pki / "authorities" / "internal" / "key.pem").unlink()
    with pytest.raises(StoreError, match="key of the internal authority"):
        OnlineAuthority(pki, CONFIG)
