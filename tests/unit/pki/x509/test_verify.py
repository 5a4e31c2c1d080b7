"""Chain verification: each hostile identity has its reason; paths follow signatures, not file order."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings, strategies as st

from sluice.core.errors import PeerRefused, PkiError
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.channels import Channel, client_policy
from sluice.pki.identities.directory import read_certificates, read_identity
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.peer_identity import MAX_PEER_CERTIFICATE_BYTES, check_peer
from sluice.pki.x509.profiles import AuthorityKind, Purpose
from sluice.pki.x509.verification import MAX_CANDIDATES, Verified, verify_chain
from tests.hostile import TRUST_DOMAIN, Hostile, TestPki

TASKMANAGER = SpiffeId.process(TRUST_DOMAIN, Role.TASKMANAGER, "tm-1")
POLICY = client_policy(Channel.RPC, TRUST_DOMAIN)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> TestPki:
    return TestPki(tmp_path_factory.mktemp("verify"))


@pytest.fixture(scope="module")
def good(pki: TestPki) -> Path:
    return pki.directory(TASKMANAGER)


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def verify(directory: Path, *, at: dt.datetime | None = None, purpose: Purpose | None = Purpose.CLIENT) -> Verified:
    leaf, *chain = read_certificates(directory / "chain.pem")
    anchors = read_certificates(directory / "ca.pem")
    return verify_chain(leaf, chain, anchors, now=at or now(), purpose=purpose)


def test_a_good_identity_verifies(good: Path) -> None:
    verified = verify(good)
    assert verified.spiffe_id == TASKMANAGER
    assert len(verified.path) == 2
    assert verified.expires_at == verified.path[0].not_valid_after_utc


REASONS = {
    Hostile.SELF_SIGNED: "no path to a trust anchor",
    Hostile.FOREIGN_CA: "no path to a trust anchor",
    Hostile.EDGE_CERTIFICATE: "no path to a trust anchor",
    Hostile.EXPIRED: "expired at",
    Hostile.NOT_YET_VALID: "not valid before",
    Hostile.WRONG_EKU: "not meant for a client",
    Hostile.NO_EKU: "no extended key usage",
    Hostile.NO_SPIFFE_ID: "0 URI names",
    Hostile.TWO_SPIFFE_IDS: "2 URI names",
    Hostile.AUTHORITY_AS_LEAF: "belongs to an authority",
    Hostile.SIGNED_BY_LEAF: "is not an authority",
}


@pytest.mark.parametrize(("case", "reason"), REASONS.items())
def test_each_hostile_identity_is_refused_with_its_reason(case: Hostile, reason: str, pki: TestPki) -> None:
    with pytest.raises(PkiError, match=reason):
        verify(pki.hostile(case, pretending=TASKMANAGER).directory)


def test_a_leaf_is_verified_at_the_given_time(good: Path) -> None:
    with pytest.raises(PkiError, match="expired"):
        verify(good, at=now() + dt.timedelta(days=2))
    with pytest.raises(PkiError, match="not valid before"):
        verify(good, at=now() - dt.timedelta(days=2))


def test_a_leaf_is_refused_once_its_authority_has_expired(pki: TestPki, good: Path) -> None:
    leaf, *chain = read_certificates(good / "chain.pem")
    root = AuthorityStore(pki.home.pki).certificate(AuthorityKind.ROOT)
    later = chain[0].not_valid_after_utc + dt.timedelta(days=1)
    with pytest.raises(PkiError, match="expired"):
        verify_chain(leaf, chain, [root], now=later)


def test_path_to_the_root_is_found_whatever_the_order(pki: TestPki, good: Path) -> None:
    store = AuthorityStore(pki.home.pki)
    leaf, internal = read_certificates(good / "chain.pem")
    noise = store.certificate(AuthorityKind.EDGE)
    verified = verify_chain(leaf, [noise, leaf, internal], [noise, store.certificate(AuthorityKind.ROOT)], now=now())
    assert [certificate.subject for certificate in verified.path][:2] == [leaf.subject, internal.subject]
    assert len(verified.path) == 3


def test_a_chain_is_refused_if_its_identity_is_not_the_expected_one(good: Path) -> None:
    leaf, *chain = read_certificates(good / "chain.pem")
    anchors = read_certificates(good / "ca.pem")
    assert verify_chain(leaf, chain, anchors, now=now(), expected=TASKMANAGER).spiffe_id == TASKMANAGER
    with pytest.raises(PkiError, match="tm-2"):
        verify_chain(leaf, chain, anchors, now=now(), expected=replace(TASKMANAGER, name="tm-2"))


def test_a_public_gateway_certificate_is_refused_for_clients(pki: TestPki) -> None:
    directory = pki.edge_server()
    assert verify(directory, purpose=Purpose.SERVER).spiffe_id.role is Role.GATEWAY
    with pytest.raises(PkiError, match="not meant for a client"):
        verify(directory, purpose=Purpose.CLIENT)


def test_a_chain_with_too_many_certificates_is_refused(good: Path) -> None:
    leaf, internal = read_certificates(good / "chain.pem")
    with pytest.raises(PkiError, match="more than"):
        verify_chain(leaf, [internal] * MAX_CANDIDATES, [internal], now=now())


@pytest.mark.parametrize(
    ("weak", "reason"), [(False, r"unknown critical extension 1\.2\.3\.4"), (True, "RSA key of 2048 bits")]
)
def test_a_leaf_with_a_weak_key_or_an_unknown_critical_extension_is_refused(
    weak: bool, reason: str, pki: TestPki
) -> None:
    internal = AuthorityStore(pki.home.pki).load(AuthorityKind.INTERNAL)
    key = rsa.generate_private_key(65537, 2048) if weak else ec.generate_private_key(ec.SECP256R1())
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(internal.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() - dt.timedelta(hours=1))
        .not_valid_after(now() + dt.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(str(TASKMANAGER))]), critical=True)
    )
    if not weak:
        unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")
        builder = builder.add_extension(unknown, critical=True)
    leaf = builder.sign(internal.key, hashes.SHA256())
    with pytest.raises(PkiError, match=reason):
        verify_chain(leaf, [], [internal.certificate], now=now())


def test_a_peer_with_a_good_certificate_is_identified(good: Path) -> None:
    der = read_identity(good)[0].leaf.public_bytes(Encoding.DER)
    assert check_peer(der, POLICY, Purpose.CLIENT) == TASKMANAGER


@pytest.mark.parametrize(
    "der", [None, b"", b"\x30\x00", b"x" * (MAX_PEER_CERTIFICATE_BYTES + 1)], ids=["none", "empty", "garbage", "large"]
)
def test_a_peer_without_a_readable_certificate_is_refused(der: bytes | None) -> None:
    with pytest.raises(PeerRefused):
        check_peer(der, POLICY, Purpose.CLIENT)


@pytest.mark.parametrize("serial", [0x00, 0xFF], ids=["zero", "negative"])
def test_a_peer_whose_serial_number_no_crl_can_name_is_refused(serial: int) -> None:
    der = bytearray(_LEAF)
    der[_LEAF.index(b"\x02\x01\x01") + 2] = serial
    with pytest.raises(PeerRefused, match="serial number is not positive"):
        check_peer(bytes(der), POLICY, Purpose.CLIENT)


@settings(max_examples=300)
@given(position=st.integers(0, 600), noise=st.binary(min_size=1, max_size=4))
def test_a_damaged_peer_certificate_is_refused_or_yields_the_identity_it_spells(position: int, noise: bytes) -> None:
    """Any bytes lead to a refusal or to the identity they spell; never to another exception."""
    der = bytearray(_LEAF)
    der[position : position + len(noise)] = noise
    try:
        peer = check_peer(bytes(der), POLICY, Purpose.CLIENT)
    except PeerRefused:
        return
    POLICY.admit(peer)
    assert str(peer).encode() in bytes(der)


def _leaf_der() -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")])
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
        .not_valid_after(dt.datetime(2040, 1, 1, tzinfo=dt.UTC))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(str(TASKMANAGER))]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([Purpose.CLIENT.oid, Purpose.SERVER.oid]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.DER)
    )


_LEAF = _leaf_der()
