"""An authority whose root is on another machine: requested here, signed there, imported here.

Its key never leaves. Decisions only; the callers read and write files.
"""

from __future__ import annotations

import datetime as dt

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.core import CertificateRejected
from sluice.pki.authorities.signing import (
    Authority,
    Generate,
    authority_name,
    intermediate_key,
    sign_intermediate,
    to_pem,
    trust_domain_of,
)
from sluice.pki.config import PkiConfig
from sluice.pki.x509 import (
    DAMAGED,
    ISSUING,
    SIGNATURE_HASHES,
    AuthorityKind,
    PrivateKey,
    check_names,
    check_strength,
    constraints_of,
    describe,
    describe_key,
    edge_algorithm,
    generate_key,
    load_csr,
    same_public_key,
    signature_hash,
)


def request_authority(
    kind: AuthorityKind, config: PkiConfig, generate: Generate = generate_key
) -> tuple[PrivateKey, bytes]:
    """A new key for the authority ``kind``, and the request (PEM) for its certificate."""
    _check_kind(kind)
    key = intermediate_key(kind, config, generate)
    builder = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(authority_name(kind, key.public_key(), config.trust_domain))
        .add_extension(_names(config), critical=False)
    )
    return key, builder.sign(key, signature_hash(key)).public_bytes(Encoding.PEM)


def sign_authority(csr_pem: bytes, kind: AuthorityKind, root: Authority, config: PkiConfig, now: dt.datetime) -> bytes:
    """Certify the authority that a request asks for; returns its certificate and the root's (PEM).

    Raises:
        CertificateRejected: the request is not exactly what :func:`request_authority` makes for ``kind``.
    """
    _check_kind(kind)
    if (domain := trust_domain_of(root.certificate)) != config.trust_domain:
        raise CertificateRejected(f"the root is of trust domain {domain}, not {config.trust_domain}")
    csr = load_csr(csr_pem)
    try:
        # 1. The key is strong enough, and of a kind that its clients support.
        key = check_strength(csr.public_key())
        if kind is AuthorityKind.EDGE and edge_algorithm(name := describe_key(key)) != name:
            raise CertificateRejected(f"browsers and Envoy do not take {name} certificates")
        # 2. Proof of possession (RFC 2986, section 3).
        strong = isinstance(key, ed25519.Ed25519PublicKey) or isinstance(csr.signature_hash_algorithm, SIGNATURE_HASHES)
        if not strong or not csr.is_signature_valid:
            raise CertificateRejected("the request's signature does not verify, or its hash is weak", "make it again")
        # 3. It asks for this authority, this trust domain, and nothing else.
        expected = authority_name(kind, key, config.trust_domain)
        if csr.subject != expected:
            raise CertificateRejected(
                f"the request is for {csr.subject.rfc4514_string()[:200]!r}",
                f"the {kind} authority with this key is {expected.rfc4514_string()}",
            )
        if [extension.value for extension in csr.extensions] != [_names(config)] or len(csr.attributes) != 1:
            raise CertificateRejected("the request asks for more than the trust domain, or less", "make it again")
    except DAMAGED as error:
        raise CertificateRejected(f"the request is damaged: {error}") from error
    return to_pem(sign_intermediate(kind, key, root, config, now), root.certificate)


def check_signed(
    kind: AuthorityKind, key: PrivateKey, chain: list[x509.Certificate], config: PkiConfig, now: dt.datetime
) -> tuple[Authority, x509.Certificate]:
    """The authority that ``chain`` (its certificate, the root's) certifies for ``key``, and its root.

    Raises:
        CertificateRejected: names the rule that it breaks.
    """
    if len(chain) != 2:
        raise CertificateRejected(
            f"{len(chain)} certificates instead of two", "take what `sluice pki authority sign` wrote"
        )
    certificate, root = chain
    try:
        # 1. It is for our key, and signed by a self-signed root.
        if not same_public_key(key.public_key(), certificate.public_key()):
            raise CertificateRejected("the certificate is not of the key that was made here", "import the newest one")
        for below in (certificate, root):
            if not _signed_by(below, root):
                raise CertificateRejected(f"{describe(below)} is not signed by {describe(root)}")
        # 2. Both are authorities of this trust domain, valid now, and in the right order.
        for one, path_length in ((certificate, 0), (root, 1)):
            constraints = one.extensions.get_extension_for_class(x509.BasicConstraints).value
            if not constraints.ca or constraints.path_length != path_length:
                raise CertificateRejected(f"{describe(one)} is not an authority of path length {path_length}")
            if trust_domain_of(one) != config.trust_domain:
                raise CertificateRejected(f"{describe(one)} is not of trust domain {config.trust_domain}")
            if not one.not_valid_before_utc <= now <= one.not_valid_after_utc:
                raise CertificateRejected(f"{describe(one)} is not valid now", "check the clocks of both machines")
        # 3. It is the requested authority.
        if certificate.subject != authority_name(kind, key.public_key(), config.trust_domain):
            raise CertificateRejected(f"{describe(certificate)} is not the {kind} authority's")
        # 4. It may certify identities of this trust domain; one that an earlier version signed has no constraints.
        if (permits := constraints_of(certificate)) is not None:
            check_names(permits, _names(config))
    except (x509.ExtensionNotFound, *DAMAGED) as error:
        raise CertificateRejected(f"a certificate is damaged: {error}") from error
    return Authority(kind, certificate, key), root


def _signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names(config: PkiConfig) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{config.trust_domain}")])


def _check_kind(kind: AuthorityKind) -> None:
    if kind not in ISSUING:
        raise CertificateRejected(f"the {kind} signs itself", f"use {' or '.join(ISSUING)}")
