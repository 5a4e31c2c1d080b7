"""Certificates signed without the online authority are recorded in its ledger.

Each is recorded once, and noted before it leaves.
"""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import msgspec
import pytest
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.core.errors import StoreError
from sluice.core.files.append_log import Disk
from sluice.core.home import Home
from sluice.pki.ca.authority import OnlineAuthority
from sluice.pki.config import PkiConfig
from sluice.pki.identities.database import IdentityStore
from sluice.pki.identities.directory import read_identity
from sluice.pki.issuing.bulk import (
    DatabaseDestination,
    DirectoryDestination,
    issue_all,
)
from sluice.pki.issuing.engine import IssuingEngine
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.issuing.leaf import LeafRequest
from sluice.pki.ledger.file import Ledger, ledger_path, read_ledger
from sluice.pki.ledger.offline_issuance import IssuanceNotes, issuance_note
from sluice.pki.ledger.records import LedgerRecord
from sluice.pki.ledger.unexpired import unexpired_certificates
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.key_identifiers import fingerprint
from sluice.pki.x509.profiles import AuthorityKind, Names, workload_profile

CONFIG = PkiConfig(trust_domain="td")
WORKER = SpiffeId.process("td", Role.TASKMANAGER, "tm-1")
EDGE = SpiffeId.process("td", Role.GATEWAY, "edge")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home with authorities and a ledger."""
    made = Home.at(tmp_path / "home")
    LocalIssuer(made, CONFIG).ensure_authorities()
    OnlineAuthority(made.pki, CONFIG).close()
    return made


def recorded(home: Home) -> list[LedgerRecord]:
    """Return the ledger records after the online authority has taken in the notes."""
    authority = OnlineAuthority(home.pki, CONFIG)
    authority.take_notes()
    authority.close()
    return list(read_ledger(ledger_path(home.pki)))


def test_certificates_of_the_local_issuer_are_noted_when_issued_and_later_recorded_in_the_ledger(
    home: Home, tmp_path: Path
) -> None:
    issuer = LocalIssuer(home, CONFIG)
    issuer.issue_to(tmp_path / "tm-1", WORKER)
    issuer.issue_edge_server(tmp_path / "edge", EDGE, dns=["cluster.example.org"])
    signed = issuer.sign_csr(new_csr(WORKER)[1], WORKER)
    assert IssuanceNotes(home.pki).waiting() == 3
    leaves = [read_identity(tmp_path / name)[0].leaf for name in ("tm-1", "edge")]
    leaves.append(x509.load_pem_x509_certificates(signed.chain_pem.encode())[0])
    kinds = {each.certificate: each.kind for each in recorded(home)}
    assert kinds == dict(zip(map(fingerprint, leaves), ["local", "edge-local", "local"], strict=True))
    assert IssuanceNotes(home.pki).waiting() == 0
    assert len(recorded(home)) == 3


def test_a_certificate_is_noted_while_the_online_authority_holds_the_ledger(home: Home, tmp_path: Path) -> None:
    authority = OnlineAuthority(home.pki, CONFIG)
    LocalIssuer(home, CONFIG).issue_to(tmp_path / "tm-1", WORKER)
    authority.take_notes()
    assert authority.state.count == 1
    authority.close()


def test_without_a_ledger_nothing_is_noted(tmp_path: Path) -> None:
    home = Home.at(tmp_path / "home")
    issuer = LocalIssuer(home, CONFIG)
    issuer.ensure_authorities()
    issuer.issue_to(tmp_path / "tm-1", WORKER)
    assert not (home.pki / "ca").exists()


@pytest.mark.parametrize("together", [False, True], ids=["directories", "one file"])
def test_a_whole_inventory_is_recorded(together: bool, home: Home, tmp_path: Path) -> None:
    names = [SpiffeId.process("td", Role.TASKMANAGER, f"tm-{number}") for number in range(5)]
    requests = [
        LeafRequest(Names.checked(each, (), ()), workload_profile(each.role, CONFIG), None, ()) for each in names
    ]
    engine = IssuingEngine(home.pki, CONFIG, read_once=True)
    if together:
        with IdentityStore(tmp_path / "store", create=True) as store:
            assert len(list(issue_all(requests, DatabaseDestination(store), engine))) == 5
            assert IssuanceNotes(home.pki).waiting() == 1, "before the store is committed"
            store.commit()
    else:
        assert len(list(issue_all(requests, DirectoryDestination(engine, home), engine))) == 5
    assert {record.identity for record in recorded(home)} == {str(each) for each in names}


def test_a_certificate_that_cannot_be_noted_is_not_issued(home: Home, tmp_path: Path) -> None:
    (home.pki / "ca" / "notes").write_text("in the way")
    with pytest.raises(StoreError):
        LocalIssuer(home, CONFIG).issue_to(tmp_path / "tm-1", WORKER)
    assert not (tmp_path / "tm-1").exists()


class DiesAfterSync(Disk):
    """A disk whose process is killed as soon as the records are on it."""

    def sync(self, descriptor: int) -> None:
        """Sync, then simulate the kill."""
        super().sync(descriptor)
        raise KeyboardInterrupt


def test_a_note_taken_in_twice_is_recorded_once(home: Home, tmp_path: Path) -> None:
    LocalIssuer(home, CONFIG).issue_to(tmp_path / "tm-1", WORKER)
    ledger = Ledger(ledger_path(home.pki), clock=utc_now)
    ledger._disk = DiesAfterSync()
    with pytest.raises(KeyboardInterrupt):
        IssuanceNotes(home.pki).take_in(ledger)
    ledger.close()
    assert IssuanceNotes(home.pki).waiting() == 1
    assert len(recorded(home)) == 1
    assert IssuanceNotes(home.pki).waiting() == 0


HONEST = LedgerRecord(
    event="issued", kind="local", identity=str(WORKER), serial="1", certificate="aa", not_after="", requester="uid:0"
)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"x", id="garbage"),
        pytest.param(msgspec.json.encode(msgspec.structs.replace(HONEST, kind="enrolment")), id="an enrolment"),
        pytest.param(msgspec.json.encode(msgspec.structs.replace(HONEST, requester=str(WORKER))), id="a requester"),
        pytest.param(msgspec.json.encode(msgspec.structs.replace(HONEST, token="0" * 12)), id="a token"),
        pytest.param(msgspec.json.encode(msgspec.structs.replace(HONEST, sequence=7)), id="a place in the chain"),
        pytest.param(json.dumps({"event": "issued", "evil": 1}).encode(), id="a field more"),
    ],
)
def test_an_invalid_note_is_set_aside_and_does_not_block_the_others(line: bytes, home: Home, tmp_path: Path) -> None:
    notes = home.pki / "ca" / "notes"
    LocalIssuer(home, CONFIG).issue_to(tmp_path / "tm-1", WORKER)
    bad = notes / "0.jsonl"
    bad.write_bytes(line + b"\n")
    bad.chmod(0o600)
    assert [record.identity for record in recorded(home)] == [str(WORKER)]
    assert [path.name for path in notes.iterdir()] == ["0.damaged"]


def test_unexpired_certificates_are_found_by_identity_and_serial_in_ledger_and_notes(
    home: Home, tmp_path: Path
) -> None:
    issuer = LocalIssuer(home, CONFIG)
    issuer.issue_to(tmp_path / "tm-1", WORKER)
    recorded(home)
    issuer.issue_to(tmp_path / "tm-1", WORKER)
    issuer.issue_edge_server(tmp_path / "edge", EDGE, dns=["cluster.example.org"])
    root = x509.load_pem_x509_certificate((home.pki / "authorities" / "root" / "cert.pem").read_bytes())
    IssuanceNotes(home.pki).write([issuance_note(root, "spiffe://td", "authority")])
    now = utc_now()
    assert [kind for kind, _ in unexpired_certificates(home.pki, now, identity=WORKER)] == [AuthorityKind.INTERNAL] * 2
    edge = read_identity(tmp_path / "edge")[0].leaf
    [(kind, destination)] = unexpired_certificates(home.pki, now, serial=edge.serial_number)
    assert (kind, destination.serial, destination.identity) == (AuthorityKind.EDGE, edge.serial_number, str(EDGE))
    assert list(unexpired_certificates(home.pki, now + dt.timedelta(days=2))) == []
