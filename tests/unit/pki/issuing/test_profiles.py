"""What certificates contain for each role, and how long they are valid."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from sluice.core.errors import CertificateRejected, StoreError
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import IdentityMaterial, read_identity
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.keys import ALGORITHMS, describe_key, public_key_der
from sluice.pki.x509.profiles import (
    MAX_NAMES,
    AuthorityKind,
    Names,
    leaf_validity,
)

DOMAIN = "sluice.local"
JOB_ID = "0123456789abcdef" * 2
NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> dt.datetime:
        """Return the time that the test has set."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def issuer(tmp_path: Path, clock: Clock) -> LocalIssuer:
    made = LocalIssuer(tmp_path / "pki", PkiConfig(trust_domain=DOMAIN), clock=clock)
    made.ensure_authorities()
    return made


def identity_of(role: Role) -> SpiffeId:
    match role:
        case Role.DRIVER:
            return SpiffeId.driver(DOMAIN, JOB_ID)
        case Role.EXECUTOR:
            return SpiffeId.executor(DOMAIN, JOB_ID, 7)
        case _:
            return SpiffeId.process(DOMAIN, role, "x")


def issued(issuer: LocalIssuer, directory: Path, spiffe_id: SpiffeId) -> IdentityMaterial:
    issuer.issue_to(directory, spiffe_id)
    return read_identity(directory)[0]


@pytest.mark.parametrize("role", Role)
def test_the_leaf_of_each_role_has_its_names_and_usages(role: Role, issuer: LocalIssuer, tmp_path: Path) -> None:
    spiffe_id = identity_of(role)
    material = issued(issuer, tmp_path / "identity", spiffe_id)
    leaf, extensions = material.leaf, material.leaf.extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    usage = extensions.get_extension_for_class(x509.KeyUsage)
    constraints = extensions.get_extension_for_class(x509.BasicConstraints)
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [str(spiffe_id)]
    assert usage.critical
    assert usage.value.digital_signature
    assert not usage.value.key_cert_sign
    assert constraints.critical
    assert not constraints.value.ca
    purposes = set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    assert purposes == ({CLIENT} if role is Role.USER else {CLIENT, SERVER})
    side = AuthorityKind.EDGE if role is Role.USER else AuthorityKind.INTERNAL
    authority = AuthorityStore(tmp_path / "pki").certificate(side)
    assert material.anchors == (authority,), "trust is the authority of its own side, and no other"
    leaf.verify_directly_issued_by(authority)
    hours = 1 if role in {Role.DRIVER, Role.EXECUTOR} else 24
    assert leaf.not_valid_before_utc == NOW - dt.timedelta(minutes=5) or (
        leaf.not_valid_before_utc == authority.not_valid_before_utc
    )
    assert leaf.not_valid_after_utc == NOW + dt.timedelta(hours=hours)


def test_public_certificate_of_the_gateway_is_for_servers_only(issuer: LocalIssuer, tmp_path: Path) -> None:
    gateway = identity_of(Role.GATEWAY)
    issuer.issue_edge_server(tmp_path / "edge", gateway, dns=["Cluster.Example.org"], ips=["::1"])
    material, _ = read_identity(tmp_path / "edge")
    names = material.leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(material.leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == {SERVER}
    assert names.get_values_for_type(x509.DNSName) == ["cluster.example.org"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["::1"]
    assert material.anchors == (AuthorityStore(tmp_path / "pki").certificate(AuthorityKind.EDGE),)


def test_only_the_gateway_has_a_public_certificate(issuer: LocalIssuer, tmp_path: Path) -> None:
    with pytest.raises(CertificateRejected, match="no public certificate"):
        issuer.issue_edge_server(tmp_path / "edge", identity_of(Role.JOBMANAGER), dns=["localhost"])
    with pytest.raises(CertificateRejected, match="without a host name"):
        issuer.issue_edge_server(tmp_path / "edge", identity_of(Role.GATEWAY))
    assert not (tmp_path / "edge").exists()


def test_leaf_never_outlives_its_authority(issuer: LocalIssuer, clock: Clock, tmp_path: Path) -> None:
    end = AuthorityStore(tmp_path / "pki").certificate(AuthorityKind.INTERNAL).not_valid_after_utc
    clock.now = end - dt.timedelta(hours=2)
    leaf = issued(issuer, tmp_path / "late", identity_of(Role.TASKMANAGER)).leaf
    assert leaf.not_valid_after_utc == end
    clock.now = end
    with pytest.raises(CertificateRejected, match="expired"):
        issuer.issue_to(tmp_path / "too-late", identity_of(Role.TASKMANAGER))


def test_identity_of_another_trust_domain_is_not_certified(issuer: LocalIssuer, tmp_path: Path) -> None:
    with pytest.raises(CertificateRejected, match="not of trust domain"):
        issuer.issue_to(tmp_path / "foreign", SpiffeId.process("other.local", Role.TASKMANAGER, "x"))


def test_an_issuer_configured_for_another_trust_domain_than_its_store_is_refused(
    issuer: LocalIssuer, tmp_path: Path
) -> None:
    assert issuer.ensure_authorities() == []
    changed = LocalIssuer(tmp_path / "pki", PkiConfig(trust_domain="other.local"))
    with pytest.raises(StoreError, match=r"of trust domain sluice\.local, not other\.local"):
        changed.issue_to(tmp_path / "x", SpiffeId.process("other.local", Role.TASKMANAGER, "x"))


@pytest.mark.parametrize(
    "lifetime",
    [
        pytest.param(dt.timedelta(0), id="none"),
        pytest.param(dt.timedelta(hours=-1), id="negative"),
        pytest.param(dt.timedelta(seconds=1), id="absurdly-short"),
        pytest.param(dt.timedelta(days=399), id="too-long"),
    ],
)
def test_an_impossible_lifetime_is_refused(lifetime: dt.timedelta) -> None:
    with pytest.raises(CertificateRejected, match="lifetime"):
        leaf_validity(NOW, lifetime, backdate=dt.timedelta(0), issuer_end=NOW + dt.timedelta(days=4000))


@pytest.mark.parametrize(
    ("dns", "ips"),
    [
        pytest.param([""], [], id="empty"),
        pytest.param(["a b"], [], id="space"),
        pytest.param(["-a.example"], [], id="leading-hyphen"),
        pytest.param(["a..example"], [], id="empty-label"),
        pytest.param(["*.org"], [], id="wildcard"),
        pytest.param(["a" * 64 + ".example"], [], id="long-label"),
        pytest.param(["a.example\n"], [], id="newline"),
        pytest.param(["b\u00fccher.example"], [], id="not-ascii"),
        pytest.param(["10.0.0.1"], [], id="address-as-name"),
        pytest.param([], ["localhost"], id="name-as-address"),
        pytest.param([], ["10.0.0.0/8"], id="network"),
        pytest.param([f"h{n}.example" for n in range(MAX_NAMES + 1)], [], id="too-many"),
    ],
)
def test_malformed_dns_names_and_addresses_are_refused(dns: list[str], ips: list[str]) -> None:
    with pytest.raises(CertificateRejected):
        Names.checked(identity_of(Role.TASKMANAGER), dns, ips)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_leaves_and_authorities_use_the_configured_key_algorithm(algorithm: str, tmp_path: Path) -> None:
    """The edge falls back to P-256 for Ed25519, which Envoy and browsers do not take."""
    issuer = LocalIssuer(tmp_path / "pki", PkiConfig(key_algorithm=algorithm))
    issuer.ensure_authorities()
    inside = issued(issuer, tmp_path / "inside", identity_of(Role.TASKMANAGER))
    outside = issued(issuer, tmp_path / "outside", identity_of(Role.USER))
    expected = "ecdsa-p256" if algorithm == "ed25519" else algorithm
    assert describe_key(inside.leaf.public_key()) == describe_key(inside.anchors[0].public_key()) == algorithm
    assert describe_key(outside.leaf.public_key()) == describe_key(outside.anchors[0].public_key()) == expected


def test_unknown_key_algorithm_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(CertificateRejected, match="ecdsa-p256"):
        LocalIssuer(tmp_path / "pki", PkiConfig(key_algorithm="rsa-1024")).ensure_authorities()
    assert not any((tmp_path / "pki" / "authorities").iterdir()), "nothing may be left behind"


def test_authorities_have_the_lengths_and_usages_that_rfc_5280_asks_for(issuer: LocalIssuer, tmp_path: Path) -> None:
    assert issuer.ensure_authorities() == []
    store = AuthorityStore(tmp_path / "pki")
    root = store.certificate(AuthorityKind.ROOT)
    for kind, length in ((AuthorityKind.ROOT, 1), (AuthorityKind.INTERNAL, 0), (AuthorityKind.EDGE, 0)):
        certificate = store.certificate(kind)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage)
        assert constraints.critical
        assert (constraints.value.ca, constraints.value.path_length) == (True, length)
        assert usage.critical
        assert (usage.value.key_cert_sign, usage.value.crl_sign) == (True, True)
        assert not usage.value.digital_signature
        certificate.verify_directly_issued_by(root)
        assert certificate.serial_number.bit_length() >= 96


def test_serial_numbers_and_keys_are_never_reused(issuer: LocalIssuer, tmp_path: Path) -> None:
    leaves = [issued(issuer, tmp_path / "same", identity_of(Role.TASKMANAGER)).leaf for _ in range(5)]
    assert len({leaf.serial_number for leaf in leaves}) == 5
    assert len({public_key_der(leaf.public_key()) for leaf in leaves}) == 5
