"""Authorities signed on another machine: only what was requested is signed and imported."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.core.errors import CertificateRejected, PkiError, StoreError
from sluice.pki.authorities.offline import check_signed, request_authority, sign_authority
from sluice.pki.authorities.signing import (
    authority_name,
    create_intermediate,
    create_root,
    sign_leaf,
)
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.spiffe_id import Role, SpiffeId
from sluice.pki.x509.keys import (
    ALGORITHMS,
    PrivateKey,
    describe_key,
    generate_key,
    signature_hash,
)
from sluice.pki.x509.profiles import (
    AuthorityKind,
    Names,
    Purpose,
    workload_profile,
)
from sluice.pki.x509.verification import verify_chain

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
CONFIG = PkiConfig()
ROOT = create_root(CONFIG, NOW)
INTERNAL = AuthorityKind.INTERNAL


def chain_of(pem: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(pem)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("kind", [AuthorityKind.INTERNAL, AuthorityKind.EDGE])
def test_an_authority_signed_offline_is_imported_and_can_be_used(
    kind: AuthorityKind, algorithm: str, tmp_path: Path
) -> None:
    config = PkiConfig(key_algorithm=algorithm)
    key, csr = request_authority(kind, config)
    authority, root = check_signed(kind, key, chain_of(sign_authority(csr, kind, ROOT, config, NOW)), config, NOW)
    store = AuthorityStore(tmp_path)
    store.install_signed(authority, root)
    loaded = store.load(kind)
    expected = "ecdsa-p256" if (kind, algorithm) == (AuthorityKind.EDGE, "ed25519") else algorithm
    assert describe_key(loaded.key.public_key()) == expected
    role = Role.TASKMANAGER if kind is INTERNAL else Role.USER
    leaf = sign_leaf(
        loaded,
        generate_key().public_key(),
        Names.checked(SpiffeId.process("sluice.local", role, "a"), (), ()),
        workload_profile(role, config),
        now=NOW,
        backdate=dt.timedelta(),
    )
    verify_chain(leaf, [loaded.certificate], [store.certificate(AuthorityKind.ROOT)], now=NOW, purpose=Purpose.CLIENT)
    with pytest.raises(StoreError, match="is not in"):
        store.load(AuthorityKind.ROOT)


def request(
    key: PrivateKey,
    *,
    kind: AuthorityKind = INTERNAL,
    uri: str = "spiffe://sluice.local",
    more: Callable[[x509.CertificateSigningRequestBuilder], x509.CertificateSigningRequestBuilder] = lambda one: one,
    digest: hashes.HashAlgorithm | None = None,
) -> bytes:
    """Return a CSR that is correct except for what the caller changes."""
    builder = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(authority_name(kind, key.public_key(), "sluice.local"))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)]), critical=False)
    )
    signing = digest or signature_hash(key)
    assert signing is None or isinstance(signing, hashes.SHA224 | hashes.SHA256 | hashes.SHA384)
    return more(builder).sign(key, signing).public_bytes(Encoding.PEM)


P256 = generate_key()
RIGHT = request(P256)


def test_the_unmodified_request_of_the_following_cases_is_signed() -> None:
    assert len(chain_of(sign_authority(RIGHT, INTERNAL, ROOT, CONFIG, NOW))) == 2


@pytest.mark.parametrize(
    ("csr", "says"),
    [
        pytest.param(b"hello", "not a certificate signing request", id="no-request"),
        pytest.param(RIGHT[:200] + b"AAAA" + RIGHT[204:], "request", id="damaged"),
        pytest.param(request(P256, kind=AuthorityKind.EDGE), "the request is for", id="other-kind"),
        pytest.param(request(P256, uri="spiffe://other"), "more than the trust domain", id="other-trust-domain"),
        pytest.param(request(P256, uri="spiffe://sluice.local/ca/a"), "more than the trust domain", id="an-identity"),
        pytest.param(request(P256, digest=hashes.SHA224()), "hash is weak", id="weak-hash"),
        pytest.param(request(rsa.generate_private_key(65537, 2048)), "2048 bits", id="weak-key"),
        pytest.param(request(ec.generate_private_key(ec.SECP521R1())), "not accepted", id="other-curve"),
        pytest.param(
            request(P256, more=lambda one: one.add_extension(x509.BasicConstraints(ca=True, path_length=5), True)),
            "more than the trust domain",
            id="path-length-of-its-own",
        ),
        pytest.param(
            request(P256, more=lambda one: one.add_attribute(x509.oid.AttributeOID.CHALLENGE_PASSWORD, b"x")),
            "more than the trust domain",
            id="attribute",
        ),
    ],
)
def test_a_malformed_or_unsuitable_authority_request_is_not_signed(csr: bytes, says: str) -> None:
    with pytest.raises(CertificateRejected, match=says):
        sign_authority(csr, INTERNAL, ROOT, CONFIG, NOW)


def test_an_edge_authority_with_a_key_that_browsers_do_not_accept_is_not_signed() -> None:
    csr = request(generate_key("ed25519"), kind=AuthorityKind.EDGE)
    with pytest.raises(CertificateRejected, match="do not take ed25519"):
        sign_authority(csr, AuthorityKind.EDGE, ROOT, CONFIG, NOW)


def test_only_a_root_signs_authorities_and_never_another_root() -> None:
    with pytest.raises(CertificateRejected, match="signs itself"):
        request_authority(AuthorityKind.ROOT, CONFIG)
    with pytest.raises(CertificateRejected, match="signs itself"):
        sign_authority(RIGHT, AuthorityKind.ROOT, ROOT, CONFIG, NOW)
    internal = create_intermediate(INTERNAL, ROOT, CONFIG, NOW)
    with pytest.raises(CertificateRejected, match="cannot sign"):
        sign_authority(RIGHT, INTERNAL, internal, CONFIG, NOW)
    with pytest.raises(CertificateRejected, match="not other"):
        sign_authority(RIGHT, INTERNAL, ROOT, PkiConfig(trust_domain="other"), NOW)


def signed_in_another_domain() -> list[x509.Certificate]:
    """Return a chain signed by the root of another trust domain, consistent in itself."""
    config = PkiConfig(trust_domain="other")
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier("spiffe://other")])
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(authority_name(INTERNAL, P256.public_key(), "other"))
        .add_extension(names, critical=False)
        .sign(P256, hashes.SHA256())
    )
    return chain_of(sign_authority(csr.public_bytes(Encoding.PEM), INTERNAL, create_root(config, NOW), config, NOW))


def forged(change: str) -> list[x509.Certificate]:
    """Return a chain as it comes back from signing, wrong in one way; correct for an empty ``change``."""
    certificate, root = chain_of(sign_authority(RIGHT, INTERNAL, ROOT, CONFIG, NOW))
    edge = request(P256, kind=AuthorityKind.EDGE)
    chains: dict[str, Callable[[], list[x509.Certificate]]] = {
        "": lambda: [certificate, root],
        "only-one": lambda: [certificate],
        "wrong-order": lambda: [root, certificate],
        "other-root": lambda: [certificate, create_root(CONFIG, NOW).certificate],
        "other-key": lambda: [create_intermediate(INTERNAL, ROOT, CONFIG, NOW).certificate, root],
        "other-kind": lambda: chain_of(sign_authority(edge, AuthorityKind.EDGE, ROOT, CONFIG, NOW)),
        "root-of-another-domain": signed_in_another_domain,
    }
    return chains[change]()


@pytest.mark.parametrize(
    ("change", "later_days", "says"),
    [
        pytest.param("only-one", 0, "1 certificates instead of two", id="only-one"),
        pytest.param("wrong-order", 0, "not of the key", id="wrong-order"),
        pytest.param("other-root", 0, "is not signed by", id="other-root"),
        pytest.param("other-key", 0, "not of the key", id="other-key"),
        pytest.param("other-kind", 0, "not the internal authority's", id="other-kind"),
        pytest.param("root-of-another-domain", 0, "not of trust domain", id="root-of-another-domain"),
        pytest.param("", 400, "not valid now", id="expired"),
        pytest.param("", -1, "not valid now", id="clock-behind"),
    ],
)
def test_an_invalid_signed_authority_is_not_imported(change: str, later_days: int, says: str) -> None:
    with pytest.raises(CertificateRejected, match=says):
        check_signed(INTERNAL, P256, forged(change), CONFIG, NOW + dt.timedelta(days=later_days))


def test_importing_replaces_no_existing_authority_and_accepts_no_other_root(tmp_path: Path) -> None:
    store = AuthorityStore(tmp_path)
    store.ensure(CONFIG, NOW)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.pem")}
    authority, root = check_signed(INTERNAL, P256, forged(""), CONFIG, NOW)
    with pytest.raises(PkiError, match="never overwritten"):
        store.install_signed(authority, root)
    internal = store.directory(INTERNAL)
    internal.rename(tmp_path / "away")
    with pytest.raises(PkiError, match="another root"):
        store.install_signed(authority, root)
    assert not store.exists(INTERNAL)
    (tmp_path / "away").rename(internal)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.pem")} == before
