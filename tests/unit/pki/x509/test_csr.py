"""What a signing request may ask for: exactly what it is to get, signed with the key it presents."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AttributeOID, ExtendedKeyUsageOID, NameOID
from hypothesis import given, strategies as st

from sluice.core.errors import CertificateRejected, PkiError
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import parse_identity
from sluice.pki.issuing.issuer import LocalIssuer
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.csr import MAX_CSR_BYTES, check_csr, new_csr
from sluice.pki.x509.keys import ALGORITHMS, describe_key
from sluice.pki.x509.profiles import Names, authority_key_usage

DOMAIN = "sluice.local"
SPIFFE_ID = SpiffeId.process(DOMAIN, Role.TASKMANAGER, "tm-1")
NAMES = Names.checked(SPIFFE_ID, ["localhost"], ["127.0.0.1"])
KEY = ec.generate_private_key(ec.SECP256R1())

Builder = x509.CertificateSigningRequestBuilder
RIGHT: list[x509.GeneralName] = [
    x509.UniformResourceIdentifier(str(SPIFFE_ID)),
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
]


def builder(names: list[x509.GeneralName] | None = None, subject: x509.Name | None = None) -> Builder:
    made = Builder().subject_name(x509.Name([]) if subject is None else subject)
    wanted = RIGHT if names is None else names
    return made.add_extension(x509.SubjectAlternativeName(wanted), critical=False) if wanted else made


def pem(made: Builder) -> bytes:
    return made.sign(KEY, hashes.SHA256()).public_bytes(Encoding.PEM)


def named(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


@pytest.fixture
def issuer(tmp_path: Path) -> LocalIssuer:
    made = LocalIssuer(tmp_path / "pki", PkiConfig(trust_domain=DOMAIN))
    made.ensure_authorities()
    return made


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_our_own_request_is_certified(algorithm: str, issuer: LocalIssuer) -> None:
    key_pem, csr_pem = new_csr(SPIFFE_ID, algorithm=algorithm)
    signed = issuer.sign_csr(csr_pem, SPIFFE_ID, lifetime=dt.timedelta(minutes=30))
    material = parse_identity(key_pem, signed.chain_pem.encode(), signed.ca_pem.encode(), "here")
    assert material.spiffe_id == SPIFFE_ID
    assert describe_key(material.leaf.public_key()) == algorithm


@pytest.mark.parametrize("subject", [x509.Name([]), NAMES.subject()], ids=["empty", "as-issued"])
def test_a_request_with_an_acceptable_subject_passes_the_check(subject: x509.Name) -> None:
    assert describe_key(check_csr(pem(builder(subject=subject)), NAMES)) == "ecdsa-p256"


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        pytest.param(builder(names=[]), "does not ask for", id="no-names"),
        pytest.param(builder(names=RIGHT[:1]), "does not ask for", id="names-missing"),
        pytest.param(builder(names=[*RIGHT, x509.DNSName("evil.example")]), "may not have", id="another-host"),
        pytest.param(builder(names=[*RIGHT, RIGHT[1]]), "twice", id="name-twice"),
        pytest.param(
            builder(names=[*RIGHT, x509.UniformResourceIdentifier(f"spiffe://{DOMAIN}/jobmanager/jm-1")]),
            "may not have",
            id="another-identity-too",
        ),
        pytest.param(
            builder(names=[x509.UniformResourceIdentifier(f"spiffe://{DOMAIN}/jobmanager/jm-1"), *RIGHT[1:]]),
            "may not have",
            id="another-identity-instead",
        ),
        pytest.param(builder(names=[*RIGHT, x509.RFC822Name("a@b.example")]), "may not have", id="mail-address"),
        pytest.param(builder(names=[*RIGHT, x509.DirectoryName(named("x"))]), "may not have", id="directory-name"),
        pytest.param(builder(subject=named("jobmanager/jm-1")), "subject", id="another-subject"),
        pytest.param(
            builder().add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True),
            "extension 2.5.29.19",
            id="wants-to-be-an-authority",
        ),
        pytest.param(
            builder().add_extension(authority_key_usage(), critical=True), "extension 2.5.29.15", id="wants-to-sign"
        ),
        pytest.param(
            builder().add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False),
            "extension 2.5.29.37",
            id="wants-another-purpose",
        ),
        pytest.param(
            builder().add_extension(
                x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00"), critical=False
            ),
            "extension 1.2.3.4",
            id="unknown-extension",
        ),
        pytest.param(
            builder().add_attribute(AttributeOID.CHALLENGE_PASSWORD, b"hunter2"), "attribute", id="challenge-password"
        ),
    ],
)
def test_a_request_with_other_names_subject_extensions_or_attributes_is_refused(made: Builder, reason: str) -> None:
    with pytest.raises(CertificateRejected, match=reason):
        check_csr(pem(made), NAMES)


@pytest.mark.parametrize(
    "generate",
    [
        pytest.param(lambda: rsa.generate_private_key(65537, 2048), id="rsa-2048"),
        pytest.param(lambda: rsa.generate_private_key(3, 3072), id="rsa-exponent-3"),
        pytest.param(lambda: ec.generate_private_key(ec.SECP256K1()), id="secp256k1"),
        pytest.param(lambda: ec.generate_private_key(ec.SECP521R1()), id="p-521"),
        pytest.param(lambda: dsa.generate_private_key(2048), id="dsa"),
        pytest.param(ed448.Ed448PrivateKey.generate, id="ed448"),
    ],
)
def test_weak_and_unusual_keys_are_refused(
    generate: Callable[[], rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | dsa.DSAPrivateKey | ed448.Ed448PrivateKey],
) -> None:
    key = generate()
    digest = None if isinstance(key, ed448.Ed448PrivateKey) else hashes.SHA256()
    csr = builder().sign(key, digest).public_bytes(Encoding.PEM)
    with pytest.raises(CertificateRejected):
        check_csr(csr, NAMES)


def test_request_without_proof_of_possession_is_refused() -> None:
    """The key in the request belongs to somebody else: the signature does not fit it."""
    der = bytearray(builder().sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER))
    der[-1] ^= 1
    forged = x509.load_der_x509_csr(bytes(der)).public_bytes(Encoding.PEM)
    with pytest.raises(CertificateRejected, match="proof"):
        check_csr(forged, NAMES)


def test_an_ed25519_key_is_refused_for_an_edge_user_because_envoy_rejects_it(issuer: LocalIssuer) -> None:
    user = SpiffeId.process(DOMAIN, Role.USER, "ada")
    _, csr_pem = new_csr(user, algorithm="ed25519")
    with pytest.raises(CertificateRejected, match="Envoy"):
        issuer.sign_csr(csr_pem, user)
    assert isinstance(check_csr(csr_pem, Names(user)), ed25519.Ed25519PublicKey)


def test_a_request_for_one_identity_is_not_certified_as_another(issuer: LocalIssuer) -> None:
    _, csr_pem = new_csr(SPIFFE_ID)
    with pytest.raises(CertificateRejected, match="asks for"):
        issuer.sign_csr(csr_pem, SpiffeId.process(DOMAIN, Role.JOBMANAGER, "jm-1"))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"hello", id="text"),
        pytest.param(pem(builder())[:200], id="cut-off"),
        pytest.param(builder().sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER), id="der"),
        pytest.param(b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", id="garbage"),
        pytest.param(b"A" * (MAX_CSR_BYTES + 1), id="too-large"),
    ],
)
def test_a_malformed_request_is_refused(data: bytes) -> None:
    with pytest.raises(CertificateRejected):
        check_csr(data, NAMES)


@given(st.binary(max_size=300), st.integers(0, 400))
def test_damaged_request_is_never_certified_and_never_crashes(noise: bytes, position: int) -> None:
    good = builder().sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER)
    damaged = good[:position] + noise + good[position + len(noise) :]
    if damaged == good:
        return
    try:
        csr_pem = x509.load_der_x509_csr(damaged).public_bytes(Encoding.PEM)
    except ValueError:
        return
    with pytest.raises(PkiError):
        check_csr(csr_pem, NAMES)


names_asked = st.lists(
    st.one_of(
        st.sampled_from(RIGHT),
        st.from_regex(r"[a-z]{1,10}\.example", fullmatch=True).map(x509.DNSName),
        st.ip_addresses().map(x509.IPAddress),
        st.from_regex(r"spiffe://sluice\.local/user/[a-z]{1,10}", fullmatch=True).map(x509.UniformResourceIdentifier),
    ),
    min_size=1,
    max_size=6,
)


@given(names_asked)
def test_only_the_exact_set_of_names_passes(asked: list[x509.GeneralName]) -> None:
    exact = len(asked) == len(RIGHT) and all(name in asked for name in RIGHT)
    csr_pem = pem(builder(names=asked))
    if exact:
        check_csr(csr_pem, NAMES)
    else:
        with pytest.raises(CertificateRejected):
            check_csr(csr_pem, NAMES)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        pytest.param(lambda _: b"", "the request is empty", id="empty"),
        pytest.param(lambda _: b"hello", "there is no PEM in it", id="text"),
        pytest.param(
            lambda pem: pem.replace(b"CERTIFICATE REQUEST", b"CERTIFICATE"), "a certificate", id="certificate"
        ),
        pytest.param(lambda pem: pem.replace(b"CERTIFICATE REQUEST", b"PRIVATE KEY"), "a private key", id="key"),
        pytest.param(lambda pem: pem[:200], "cut off before its end", id="cut-off"),
        pytest.param(lambda pem: pem[:100] + b"A" + pem[101:-60] + pem[-58:], "is damaged", id="damaged"),
        pytest.param(
            lambda pem: x509.load_pem_x509_csr(pem).public_bytes(Encoding.DER), "not in PEM but in DER", id="der"
        ),
    ],
)
def test_an_unreadable_request_is_described_without_the_wording_of_the_library(
    change: Callable[[bytes], bytes], says: str
) -> None:
    with pytest.raises(CertificateRejected, match=says) as refused:
        check_csr(change(pem(builder())), NAMES)
    assert "cryptography" not in str(refused.value)
    assert "Framing" not in str(refused.value)
    assert refused.value.remedy
