"""Inspecting files: every kind is recognized, bad files are named, and no secret is shown."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat
from hypothesis import HealthCheck, given, settings, strategies as st

from sluice.core.errors import CertificateRejected, PkiError, StoreError
from sluice.pki.export.formats import Format, export_anchors, export_identity
from sluice.pki.identities.directory import read_identity
from sluice.pki.inspect.describe import (
    MAX_ITEMS,
    CertificateSummary,
    KeystoreSummary,
    KeySummary,
    RequestSummary,
    inspect_bytes,
    inspect_path,
)
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import new_csr
from sluice.pki.x509.keys import key_from_pem
from tests.hostile import TRUST_DOMAIN, Hostile, TestPki

TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> TestPki:
    return TestPki(tmp_path_factory.mktemp("inspect"))


@pytest.fixture(scope="module")
def directory(pki: TestPki) -> Path:
    return pki.directory(TASKMANAGER)


def test_an_identity_directory_is_summarized(directory: Path) -> None:
    chain, anchors, key, keystore = inspect_path(directory, now())
    leaf, internal = chain.items
    assert isinstance(leaf, CertificateSummary)
    assert isinstance(internal, CertificateSummary)
    assert leaf.spiffe_ids == (str(TASKMANAGER),)
    assert (leaf.dns, leaf.ips, leaf.purposes) == (("localhost",), ("127.0.0.1",), ("client", "server"))
    assert (leaf.state, leaf.key, leaf.signature, leaf.authority) == ("valid", "ecdsa-p256", "sha256", False)
    assert (internal.authority, internal.path_length) == (True, 0)
    assert leaf.authority_key_id == internal.subject_key_id != ""
    assert anchors.items == (internal,)
    (private,) = key.items
    assert isinstance(private, KeySummary)
    (store,) = keystore.items
    assert isinstance(store, KeystoreSummary)
    assert store.has_key
    assert store.items == (leaf, internal)


def test_the_summary_of_an_identity_contains_no_secrets(directory: Path) -> None:
    shown = msgspec.json.encode(inspect_path(directory, now()))
    key_lines = (directory / "key.pem").read_bytes().splitlines()[1:-1]
    assert not any(line in shown for line in key_lines)
    assert (directory / "identity.p12.pass").read_bytes().strip() not in shown


@pytest.mark.parametrize(("case", "state"), [(Hostile.EXPIRED, "expired"), (Hostile.NOT_YET_VALID, "not yet valid")])
def test_the_validity_state_of_a_certificate_is_reported(case: Hostile, state: str, pki: TestPki) -> None:
    (found, *_) = inspect_path(pki.hostile(case, pretending=TASKMANAGER).directory / "chain.pem", now())
    leaf = found.items[0]
    assert isinstance(leaf, CertificateSummary)
    assert leaf.state == state


def test_a_csr_is_summarized_from_pem_and_der() -> None:
    _, csr_pem = new_csr(TASKMANAGER, dns=["a.example"])
    (request,) = inspect_bytes(csr_pem, now())
    assert isinstance(request, RequestSummary)
    assert (request.spiffe_ids, request.dns, request.signature_valid) == ((str(TASKMANAGER),), ("a.example",), True)
    der = x509.load_pem_x509_csr(csr_pem).public_bytes(Encoding.DER)
    assert inspect_bytes(der, now()) == (request,)


def test_a_der_certificate_is_summarized_as_its_pem(directory: Path) -> None:
    leaf = read_identity(directory)[0].leaf
    assert inspect_bytes(leaf.public_bytes(Encoding.DER), now()) == inspect_bytes(
        leaf.public_bytes(Encoding.PEM), now()
    )


def test_an_encrypted_key_is_recognized_without_being_opened(directory: Path) -> None:
    key = key_from_pem((directory / "key.pem").read_bytes(), "key.pem")
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"passphrase"))
    assert inspect_bytes(pem, now()) == (KeySummary(key="encrypted", public_sha256=""),)
    with pytest.raises(StoreError, match="encrypted"):
        key_from_pem(pem, "key.pem")


def test_a_keystore_with_a_wrong_password_is_refused(directory: Path) -> None:
    with pytest.raises(CertificateRejected, match="this password"):
        inspect_bytes((directory / "identity.p12").read_bytes(), now(), password=b"wrong")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(b"", "neither PEM", id="empty"),
        pytest.param(b"\x30\x82\x01\x00garbage", "neither PEM", id="garbage"),
        pytest.param(b"-----BEGIN CERTIFICATE-----\nMIIB", "begins but does not end", id="cut-off"),
        pytest.param(
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", r"block 1 \(CERTIFICATE\)", id="damaged"
        ),
        pytest.param(b"-----BEGIN X-----\nAAAA\n-----END X-----\n", "is a X", id="unknown-block"),
        pytest.param(b"-----BEGIN X-----\nAAAA\n-----END X-----\n" * (MAX_ITEMS + 1), "more than", id="too-many"),
    ],
)
def test_data_that_cannot_be_inspected_is_refused_with_a_reason(data: bytes, reason: str, tmp_path: Path) -> None:
    with pytest.raises(CertificateRejected, match=reason):
        inspect_bytes(data, now())
    (tmp_path / "file.pem").write_bytes(data)
    with pytest.raises(CertificateRejected, match=r"file\.pem"):
        inspect_path(tmp_path / "file.pem", now())


def test_an_empty_directory_or_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no identity"):
        inspect_path(tmp_path, now())
    with pytest.raises(StoreError, match="No such file"):
        inspect_path(tmp_path / "missing.pem", now())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=200)
@given(position=st.integers(0, 2000), noise=st.binary(min_size=1, max_size=8))
def test_damaged_files_raise_only_clear_errors(directory: Path, position: int, noise: bytes) -> None:
    for name in ("chain.pem", "key.pem"):
        data = bytearray((directory / name).read_bytes())
        data[position : position + len(noise)] = noise
        try:
            items = inspect_bytes(bytes(data), now())
        except PkiError:
            continue
        assert items


@pytest.mark.parametrize("kind", Format)
def test_export_of_an_identity_can_be_read_back(kind: Format, directory: Path) -> None:
    material = read_identity(directory)[0]
    exported = export_identity(material, kind)
    items = inspect_bytes(exported.data, now(), password=exported.password)
    keystores = {Format.PKCS12, Format.PKCS12_LEGACY, Format.JKS}
    truststores = {Format.PKCS12_TRUST, Format.JKS_TRUST}
    assert exported.secret is (kind in {Format.BUNDLE, *keystores})
    assert (exported.password is not None) is (kind in keystores | truststores)
    if kind in keystores | truststores:
        assert [getattr(item, "has_key", None) for item in items] == [kind in keystores]
    names = {
        item.subject
        for entry in items
        for item in (entry.items if isinstance(entry, KeystoreSummary) else (entry,))
        if isinstance(item, CertificateSummary)
    }
    anchor, leaf = material.anchors[0].subject.rfc4514_string(), material.leaf.subject.rfc4514_string()
    assert names == ({anchor} if kind in {Format.CA, *truststores} else {leaf, anchor})


def test_authority_is_exported_without_a_key(directory: Path) -> None:
    anchors = read_identity(directory)[0].anchors
    assert not export_anchors(anchors, Format.CA).secret
    for kind in (Format.BUNDLE, Format.PKCS12, Format.CHAIN):
        with pytest.raises(StoreError, match="an authority is exported as"):
            export_anchors(anchors, kind)


def test_the_repr_of_identities_and_exports_shows_no_secrets(directory: Path) -> None:
    material = read_identity(directory)[0]
    exported = export_identity(material, Format.PKCS12)
    assert exported.password is not None
    for shown in (repr(material), repr(exported)):
        assert "PRIVATE KEY" not in shown
        assert exported.password.decode() not in shown
