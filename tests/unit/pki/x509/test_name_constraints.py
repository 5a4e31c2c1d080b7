"""Name constraints on authorities, enforced by us, and by OpenSSL where the authority is the anchor."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import ExtensionPolicy, PolicyBuilder, Store, VerificationError
from hypothesis import given, settings, strategies as st

from sluice.core.errors import CertificateRejected
from sluice.pki.authorities.offline import check_signed, request_authority, sign_authority
from sluice.pki.authorities.signing import (
    Authority,
    authority_key_identifier,
    create_intermediate,
    create_root,
    sign_leaf,
    to_pem,
)
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.inspect.describe import summarize_certificate
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.keys import generate_key, signature_hash
from sluice.pki.x509.name_constraints import (
    MAX_SUBTREES,
    check_names,
    constraints_for,
    constraints_of,
)
from sluice.pki.x509.profiles import (
    AuthorityKind,
    Names,
    leaf_key_usage,
    workload_profile,
)
from sluice.pki.x509.verification import verify_chain

INTERNAL = AuthorityKind.INTERNAL
NOW = dt.datetime.now(dt.UTC)
HOUR = dt.timedelta(hours=1)
OPEN = PkiConfig()
LISTED = PkiConfig(
    internal_names=("localhost", "example.org", "127.0.0.0/8", "::1"), edge_names=("gateway.example.org", "192.0.2.7")
)
ROOT = create_root(OPEN, NOW)
BY_OPEN = create_intermediate(INTERNAL, ROOT, OPEN, NOW)
BY_LISTED = create_intermediate(INTERNAL, ROOT, LISTED, NOW)
VIOLATION = "permitted subtree violation"
TASKMANAGER = SpiffeId.process("sluice.local", Role.TASKMANAGER, "tm-1")
GOOD = x509.UniformResourceIdentifier(str(TASKMANAGER))


def uri(value: str) -> x509.GeneralName:
    return x509.UniformResourceIdentifier(value)


def dns(value: str) -> x509.GeneralName:
    return x509.DNSName(value)


def ip(value: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(value))


def forged(
    authority: Authority, *names: x509.GeneralName, subject: x509.Name | None = None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Sign a leaf with any names, as someone with the authority's key could, bypassing all checks."""
    key = ec.generate_private_key(ec.SECP256R1())
    assert isinstance(authority.key, ec.EllipticCurvePrivateKey)
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject or x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "taskmanager/tm-1")]))
        .issuer_name(authority.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - HOUR)
        .not_valid_after(NOW + HOUR)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(leaf_key_usage(), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(authority_key_identifier(authority.certificate), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return certificate, key


def openssl_says(
    directory: Path, authority: Authority, leaf: x509.Certificate, key: ec.EllipticCurvePrivateKey, *, anchor: bool
) -> str:
    """Return why OpenSSL rejects the leaf in an in-memory handshake; empty if it accepts.

    The client's anchor is the authority itself if ``anchor`` is set, otherwise the root.
    """
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (directory / "pair.pem").write_bytes(pem + to_pem(leaf, authority.certificate))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(directory / "pair.pem")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_STRICT
    client.load_verify_locations(cadata=to_pem(authority.certificate if anchor else ROOT.certificate).decode())
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepting = server.wrap_bio(to_server, to_client, server_side=True)
    dialing = client.wrap_bio(to_client, to_server)
    for _ in range(4):
        for side in (dialing, accepting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError as error:
                return error.verify_message
    return ""


def we_say(authority: Authority, leaf: x509.Certificate, *, anchor: bool) -> str:
    """Return why our own verification rejects the leaf; empty if it accepts."""
    anchors = [authority.certificate if anchor else ROOT.certificate]
    try:
        verify_chain(leaf, [authority.certificate], anchors, now=NOW)
    except CertificateRejected as error:
        return error.what
    return ""


PERMITTED = [
    pytest.param(BY_OPEN, [GOOD], id="identity alone"),
    pytest.param(BY_OPEN, [GOOD, dns("anything.example.com"), ip("203.0.113.9")], id="nothing listed: any host"),
    pytest.param(BY_LISTED, [GOOD, dns("localhost"), ip("127.0.0.1"), ip("::1")], id="listed host and addresses"),
    pytest.param(BY_LISTED, [GOOD, dns("worker.rack1.example.org")], id="below a listed domain"),
]
OUTSIDE = [
    pytest.param(BY_OPEN, [GOOD, x509.RFC822Name("ada@example.org")], id="mail address"),
    pytest.param(BY_LISTED, [GOOD, dns("example.com")], id="other domain"),
    pytest.param(BY_LISTED, [GOOD, dns("badexample.org")], id="domain that only ends alike"),
    pytest.param(BY_LISTED, [GOOD, dns("localhost"), dns("evil.test")], id="second name"),
    pytest.param(BY_LISTED, [GOOD, ip("128.0.0.1")], id="other network"),
    pytest.param(BY_LISTED, [GOOD, ip("::2")], id="other address"),
]
FOREIGN = [
    pytest.param("spiffe://evil.example/taskmanager/tm-1", id="other trust domain"),
    pytest.param("spiffe://x.sluice.local/taskmanager/tm-1", id="trust domain below ours"),
    pytest.param("spiffe://local/taskmanager/tm-1", id="trust domain above ours"),
    pytest.param("spiffe://sluice.local.evil/taskmanager/tm-1", id="ours at the beginning"),
]


@pytest.mark.parametrize("anchor", [True, False], ids=["authority is the anchor", "root is the anchor"])
@pytest.mark.parametrize(("authority", "names"), PERMITTED)
def test_permitted_names_are_accepted_by_openssl_and_by_us(
    authority: Authority, names: Sequence[x509.GeneralName], anchor: bool, tmp_path: Path
) -> None:
    leaf, key = forged(authority, *names)
    assert we_say(authority, leaf, anchor=anchor) == ""
    assert openssl_says(tmp_path, authority, leaf, key, anchor=anchor) == ""


@pytest.mark.parametrize("anchor", [True, False], ids=["authority is the anchor", "root is the anchor"])
@pytest.mark.parametrize(("authority", "names"), OUTSIDE)
def test_names_outside_are_refused_by_openssl_and_by_us(
    authority: Authority, names: Sequence[x509.GeneralName], anchor: bool, tmp_path: Path
) -> None:
    leaf, key = forged(authority, *names)
    assert "that its authority may certify" in we_say(authority, leaf, anchor=anchor)
    assert openssl_says(tmp_path, authority, leaf, key, anchor=anchor) == VIOLATION


@pytest.mark.parametrize("anchor", [True, False], ids=["authority is the anchor", "root is the anchor"])
@pytest.mark.parametrize("identity", FOREIGN)
def test_an_identity_of_another_trust_domain_is_refused_by_openssl_and_by_us(
    identity: str, anchor: bool, tmp_path: Path
) -> None:
    leaf, key = forged(BY_OPEN, uri(identity))
    assert "that its authority may certify" in we_say(BY_OPEN, leaf, anchor=anchor)
    assert openssl_says(tmp_path, BY_OPEN, leaf, key, anchor=anchor) == VIOLATION


@pytest.mark.parametrize("identity", FOREIGN)
def test_the_cryptography_verifier_refuses_an_identity_of_another_trust_domain_too(identity: str) -> None:
    """The verifier knows no URI constraints yet and refuses every chain with them; see ADR 19."""
    leaf, _ = forged(BY_OPEN, uri(identity))
    verifier = (
        PolicyBuilder()
        .store(Store([BY_OPEN.certificate]))
        .extension_policies(ca_policy=ExtensionPolicy.webpki_defaults_ca(), ee_policy=ExtensionPolicy.permit_all())
        .build_client_verifier()
    )
    with pytest.raises(VerificationError):
        verifier.verify(leaf, [])


def test_an_email_address_in_the_subject_is_held_to_the_name_constraints() -> None:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.EMAIL_ADDRESS, "ada@example.org")])
    leaf, _ = forged(BY_OPEN, GOOD, subject=subject)
    assert "that its authority may certify" in we_say(BY_OPEN, leaf, anchor=True)


@pytest.mark.parametrize(
    ("names", "what"), [((("evil.test",), ()), "DNS evil.test"), (((), ("192.0.2.1",)), "IP 192.0.2.1")]
)
def test_a_leaf_with_names_outside_the_constraints_of_its_authority_is_not_signed(
    names: tuple[Sequence[str], Sequence[str]], what: str
) -> None:
    with pytest.raises(CertificateRejected, match=what) as caught:
        sign_leaf(
            BY_LISTED,
            generate_key().public_key(),
            Names.checked(TASKMANAGER, *names),
            workload_profile(Role.TASKMANAGER, LISTED),
            now=NOW,
            backdate=dt.timedelta(),
        )
    assert caught.value.remedy.startswith("it may: ")


@pytest.mark.parametrize("kind", [AuthorityKind.INTERNAL, AuthorityKind.EDGE])
def test_an_authority_signed_elsewhere_gets_the_constraints_configured_at_the_root(kind: AuthorityKind) -> None:
    key, csr = request_authority(kind, OPEN)
    chain = x509.load_pem_x509_certificates(sign_authority(csr, kind, ROOT, LISTED, NOW))
    authority, _ = check_signed(kind, key, chain, OPEN, NOW)
    assert constraints_of(authority.certificate) == constraints_for(kind, LISTED)
    extension = authority.certificate.extensions.get_extension_for_class(x509.NameConstraints)
    assert extension.critical, "RFC 5280, 4.2.1.10"


def resigned(authority: Authority, constraints: x509.NameConstraints | None) -> Authority:
    """The same authority with other constraints."""
    before = authority.certificate
    builder = (
        x509.CertificateBuilder()
        .subject_name(before.subject)
        .issuer_name(before.issuer)
        .public_key(before.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(before.not_valid_before_utc)
        .not_valid_after(before.not_valid_after_utc)
    )
    for extension in before.extensions:
        if not isinstance(extension.value, x509.NameConstraints):
            builder = builder.add_extension(extension.value, extension.critical)
    if constraints is not None:
        builder = builder.add_extension(constraints, critical=True)
    return Authority(authority.kind, builder.sign(ROOT.key, signature_hash(ROOT.key)), authority.key)


def test_an_authority_that_may_not_certify_its_own_trust_domain_is_not_imported() -> None:
    wrong = resigned(BY_OPEN, constraints_for(INTERNAL, PkiConfig(trust_domain="other.example")))
    with pytest.raises(CertificateRejected, match="may certify"):
        check_signed(INTERNAL, wrong.key, [wrong.certificate, ROOT.certificate], OPEN, NOW)


def test_an_authority_without_name_constraints_is_still_accepted_and_certifies(tmp_path: Path) -> None:
    old = resigned(BY_OPEN, None)
    authority, root = check_signed(INTERNAL, old.key, [old.certificate, ROOT.certificate], OPEN, NOW)
    store = AuthorityStore(tmp_path)
    store.install_signed(authority, root)
    LocalIssuer(tmp_path, OPEN, clock=lambda: NOW).issue_to(tmp_path / "tm", TASKMANAGER, dns=["anything.test"])
    leaf, *chain = x509.load_pem_x509_certificates((tmp_path / "tm" / "chain.pem").read_bytes())
    assert verify_chain(leaf, chain, [store.certificate(INTERNAL)], now=NOW).spiffe_id == TASKMANAGER
    assert summarize_certificate(chain[0], NOW).name_constraints == ()


def test_a_certificate_summary_shows_the_name_constraints() -> None:
    assert summarize_certificate(BY_LISTED.certificate, NOW).name_constraints == (
        "only URI sluice.local",
        "only email invalid",
        "only DNS localhost",
        "only DNS example.org",
        "only IP 127.0.0.0/8",
        "only IP ::1/128",
    )


@pytest.mark.parametrize("trust_domain", ["under_score.example", "10.0.0.1", "a..b"])
def test_no_uri_constraint_is_made_for_a_trust_domain_that_is_not_a_host_name(trust_domain: str) -> None:
    """Not every verifier would read the constraint alike; our own check of the trust domain remains."""
    found = constraints_for(INTERNAL, PkiConfig(trust_domain=trust_domain)).permitted_subtrees
    assert found == [x509.RFC822Name("invalid")]


@pytest.mark.parametrize("entry", ["", "*.example.org", "exa mple", "10.0.0.1/8", "-a", "10.0.0", "a" * 300])
def test_an_invalid_entry_of_edge_names_is_refused_with_its_configuration_key(entry: str) -> None:
    with pytest.raises(CertificateRejected, match=r"pki\.edge_names"):
        create_intermediate(AuthorityKind.EDGE, ROOT, PkiConfig(edge_names=(entry,)), NOW)


def test_too_many_name_constraints_are_refused() -> None:
    with pytest.raises(CertificateRejected, match="lists"):
        constraints_for(INTERNAL, PkiConfig(internal_names=("a",) * MAX_SUBTREES))
    crowd = x509.NameConstraints([dns(f"a{number}") for number in range(MAX_SUBTREES + 1)], None)
    with pytest.raises(CertificateRejected, match="more than"):
        check_names(crowd, [GOOD])


SEMANTICS = [
    pytest.param(uri(".example.org"), uri("https://a.example.org/x"), True, id="uri below a domain"),
    pytest.param(uri(".example.org"), uri("https://example.org/x"), False, id="uri not the domain itself"),
    pytest.param(uri("example.org"), uri("https://EXAMPLE.org:99/x"), True, id="uri port and case"),
    pytest.param(uri("example.org"), uri("https://example.org@evil/x"), False, id="uri with a user part"),
    pytest.param(uri("example.org"), uri("urn:example.org"), False, id="uri without a host"),
    pytest.param(uri("example.org"), uri("https://[::1"), False, id="uri that is none"),
    pytest.param(dns("example.org"), dns("Example.ORG"), True, id="dns case"),
    pytest.param(x509.RFC822Name("example.org"), x509.RFC822Name("a@example.org"), True, id="mail host"),
    pytest.param(x509.RFC822Name(".example.org"), x509.RFC822Name("a@example.org"), False, id="mail below a host"),
    pytest.param(x509.RFC822Name("a@example.org"), x509.RFC822Name("b@example.org"), False, id="mailbox"),
    pytest.param(x509.RegisteredID(x509.OID_COMMON_NAME), x509.RegisteredID(x509.OID_COMMON_NAME), False, id="unknown"),
]


@pytest.mark.parametrize(("base", "name", "inside"), SEMANTICS)
def test_a_name_is_permitted_or_excluded_by_the_semantics_of_its_type(
    base: x509.GeneralName, name: x509.GeneralName, inside: bool
) -> None:
    permitted = x509.NameConstraints([base], None)
    if inside:
        check_names(permitted, [name])
        with pytest.raises(CertificateRejected, match="excluded"):
            check_names(x509.NameConstraints(None, [base]), [name])
    else:
        with pytest.raises(CertificateRejected):
            check_names(permitted, [name])


def test_a_subject_must_begin_with_the_permitted_directory_name() -> None:
    organization = x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "us")
    common = x509.NameAttribute(x509.NameOID.COMMON_NAME, "x")
    constraints = x509.NameConstraints([x509.DirectoryName(x509.Name([organization]))], None)
    check_names(constraints, [], x509.Name([organization, common]))
    with pytest.raises(CertificateRejected):
        check_names(constraints, [], x509.Name([common, organization]))


LABEL = st.text("abcdefghij", min_size=1, max_size=4)
HOSTS = st.lists(LABEL, min_size=1, max_size=4).map(".".join)


@settings(max_examples=200)
@given(HOSTS, HOSTS)
def test_a_name_is_within_a_domain_exactly_when_its_last_labels_are_the_domain(host: str, domain: str) -> None:
    labels, wanted = host.split("."), domain.split(".")
    inside = labels[-len(wanted) :] == wanted
    try:
        check_names(x509.NameConstraints([dns(domain)], None), [dns(host)])
    except CertificateRejected:
        assert not inside
    else:
        assert inside


def test_internal_and_edge_authorities_get_name_constraints_and_the_root_does_not() -> None:
    for kind in (AuthorityKind.INTERNAL, AuthorityKind.EDGE):
        assert constraints_of(create_intermediate(kind, ROOT, OPEN, NOW).certificate) == constraints_for(kind, OPEN)
    assert constraints_of(ROOT.certificate) is None
