"""Certificates issued for places outside the home are recorded, in bounded number, until they expire."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from cryptography import x509

from sluice.core.clock import utc_now
from sluice.core.errors import StoreError
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import CHAIN_FILE, read_certificates
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.revocation.exported_certificates import OUTSIDE_FILE, ExportedCertificates
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.profiles import AuthorityKind

CONFIG = PkiConfig(trust_domain="td")
WORKER = SpiffeId.process("td", Role.TASKMANAGER, "tm-1")


def issued(tmp_path: Path, place: Path, hours: float = 24) -> x509.Certificate:
    issuer = LocalIssuer(tmp_path / "pki", CONFIG)
    issuer.ensure_authorities()
    issuer.issue_to(place, WORKER, lifetime=dt.timedelta(hours=hours))
    return read_certificates(place / CHAIN_FILE)[0]


def test_expired_certificates_are_forgotten_and_others_kept(tmp_path: Path) -> None:
    outside, now = ExportedCertificates(tmp_path / "pki"), utc_now()
    short = issued(tmp_path, tmp_path / "short", hours=1)
    outside.remember(short, str(WORKER), AuthorityKind.INTERNAL, tmp_path / "short", now)
    outside.remember(short, str(WORKER), AuthorityKind.INTERNAL, tmp_path / "short", now)
    long = issued(tmp_path, tmp_path / "long", hours=48)
    outside.remember(long, str(WORKER), AuthorityKind.INTERNAL, tmp_path / "long", now)
    assert [each.serial for each in outside.certificates()] == [f"{one.serial_number:x}" for one in (short, long)]
    later = now + dt.timedelta(hours=2)
    outside.remember(long, str(WORKER), AuthorityKind.INTERNAL, tmp_path / "elsewhere", later)
    assert {each.directory for each in outside.certificates()} == {str(tmp_path / "long"), str(tmp_path / "elsewhere")}
    assert outside.directories() == [tmp_path / "long"], "only what is there"


def test_a_certificate_inside_the_home_is_not_recorded_as_exported(tmp_path: Path) -> None:
    place = tmp_path / "pki" / "identities" / "taskmanager" / "tm-1"
    ExportedCertificates(tmp_path / "pki").remember(
        issued(tmp_path, place), str(WORKER), AuthorityKind.INTERNAL, place, utc_now()
    )
    assert not (tmp_path / "pki" / OUTSIDE_FILE).exists()


@pytest.mark.parametrize("content", [b"", b"{", b'{"certificates": [{}]}', b'{"unknown": 1}', b"\xff"])
def test_a_damaged_record_of_exported_certificates_is_an_error_and_is_not_replaced(
    content: bytes, tmp_path: Path
) -> None:
    leaf = issued(tmp_path, tmp_path / "out")
    (tmp_path / "pki" / OUTSIDE_FILE).write_bytes(content)
    with pytest.raises(StoreError, match="is damaged"):
        ExportedCertificates(tmp_path / "pki").remember(
            leaf, str(WORKER), AuthorityKind.INTERNAL, tmp_path / "out", utc_now()
        )
    assert (tmp_path / "pki" / OUTSIDE_FILE).read_bytes() == content
