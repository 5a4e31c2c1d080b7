"""Certificate authorities in memory: making them, and signing with them.

Takes values and returns values; keys and certificates come from and go to :mod:`sluice.pki.authorities.store`.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from sluice.core import CertificateRejected, StoreError
from sluice.pki.config import PkiConfig
from sluice.pki.x509 import (
    DAMAGED,
    AuthorityKind,
    HostNames,
    Names,
    PrivateKey,
    Profile,
    PublicKey,
    authority_key_usage,
    check_names,
    constraints_for,
    constraints_of,
    edge_algorithm,
    generate_key,
    leaf_key_usage,
    leaf_validity,
    lifetime_words,
    signature_hash,
)

Generate = Callable[[str], PrivateKey]
"""Makes a key of the named algorithm."""


@dataclass(frozen=True, slots=True)
class Authority:
    """An authority that can sign: its certificate and its key."""

    kind: AuthorityKind
    certificate: x509.Certificate
    key: PrivateKey

    def __repr__(self) -> str:
        return f"Authority({self.kind}, serial={self.certificate.serial_number:x})"

    @property
    def end(self) -> dt.datetime:
        """When its certificate expires."""
        return self.certificate.not_valid_after_utc


def create_root(config: PkiConfig, now: dt.datetime, generate: Generate = generate_key) -> Authority:
    """A self-signed root: it may sign one level of authorities below it, and they only leaves."""
    key = generate(config.key_algorithm)
    name = authority_name(AuthorityKind.ROOT, key.public_key(), config.trust_domain)
    lifetime = dt.timedelta(days=config.root_days)
    builder = _authority_builder(key.public_key(), config, name, now, now + lifetime, path_length=1)
    certificate = (
        builder.issuer_name(name)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, signature_hash(key))
    )
    return Authority(AuthorityKind.ROOT, certificate, key)


def create_intermediate(
    kind: AuthorityKind, root: Authority, config: PkiConfig, now: dt.datetime, generate: Generate = generate_key
) -> Authority:
    """The internal or the edge authority, signed by ``root``: path length 0, so it signs leaves only."""
    key = intermediate_key(kind, config, generate)
    return Authority(kind, sign_intermediate(kind, key.public_key(), root, config, now), key)


def intermediate_key(kind: AuthorityKind, config: PkiConfig, generate: Generate = generate_key) -> PrivateKey:
    """A new key for the authority ``kind``."""
    algorithm = config.key_algorithm
    return generate(edge_algorithm(algorithm) if kind is AuthorityKind.EDGE else algorithm)


def sign_intermediate(
    kind: AuthorityKind, key: PublicKey, root: Authority, config: PkiConfig, now: dt.datetime
) -> x509.Certificate:
    """The certificate of the internal or the edge authority that holds ``key``."""
    if kind is AuthorityKind.ROOT or root.kind is not AuthorityKind.ROOT:
        raise CertificateRejected(f"{root.kind} cannot sign an authority of kind {kind}")
    if now >= root.end:
        raise CertificateRejected(f"the root expired at {root.end:%Y-%m-%d %H:%M} UTC", "make a new home")
    end = min(now + dt.timedelta(days=config.authority_days), root.end)
    name = authority_name(kind, key, config.trust_domain)
    return (
        _authority_builder(key, config, name, now, end, path_length=0)
        .issuer_name(root.certificate.subject)
        .add_extension(authority_key_identifier(root.certificate), critical=False)
        # Critical, as RFC 5280 requires: a verifier that does not understand constraints must not trust this authority.
        .add_extension(constraints_for(kind, config), critical=True)
        .sign(root.key, signature_hash(root.key))
    )


def sign_leaf(
    authority: Authority,
    key: PublicKey,
    names: Names | HostNames,
    profile: Profile,
    *,
    now: dt.datetime,
    backdate: dt.timedelta,
    lifetime: dt.timedelta | None = None,
) -> x509.Certificate:
    """Sign a leaf for ``key`` with exactly ``names`` as ``profile`` prescribes.

    Raises:
        CertificateRejected: ``authority`` is not the one for it, or may not certify one of the names; or a wildcard is
            requested for a certificate that is not for servers only.
    """
    if authority.kind is not profile.authority:
        raise CertificateRejected(f"the {authority.kind} authority does not sign what belongs to {profile.authority}")
    names.check_wildcards(profile.purposes)
    alternative_names = names.extension()
    if (constraints := constraints_of(authority.certificate)) is not None:
        check_names(constraints, alternative_names)
    validity = leaf_validity(now, lifetime or profile.lifetime, backdate=backdate, issuer_end=authority.end)
    if lifetime is not None and lifetime > profile.longest:
        raise CertificateRejected(
            f"{_subject_of(names)} cannot live {lifetime_words(lifetime)}",
            f"at most {lifetime_words(profile.longest)} (pki.max_leaf_hours)",
        )
    subject = names.subject()
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.certificate.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(max(validity.start, authority.certificate.not_valid_before_utc))
        .not_valid_after(validity.end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(leaf_key_usage(), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose.oid for purpose in profile.purposes]), critical=False)
        # Critical where the subject is empty (RFC 5280, 4.2.1.6).
        .add_extension(alternative_names, critical=not list(subject))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(authority_key_identifier(authority.certificate), critical=False)
        .sign(authority.key, signature_hash(authority.key))
    )


def _subject_of(names: Names | HostNames) -> str:
    return str(names.spiffe_id if isinstance(names, Names) else names)


def authority_key_identifier(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """The identifier that ``issuer`` carries of its own key (RFC 5280, 4.2.1.1)."""
    own = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own)


def trust_domain_of(certificate: x509.Certificate) -> str:
    """The trust domain an authority's certificate was made for (its only URI name, X509-SVID section 2)."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, *DAMAGED):
        uris = []
    if len(uris) != 1 or not uris[0].startswith("spiffe://"):
        raise StoreError("the authority's certificate names no trust domain", "was it made by `sluice pki init`?")
    return uris[0].removeprefix("spiffe://")


def to_pem(*certificates: x509.Certificate) -> bytes:
    """Certificates as concatenated PEM, in the given order."""
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def authority_name(kind: AuthorityKind, key: PublicKey, trust_domain: str) -> x509.Name:
    """The name of an authority. It differs between generations, so that path building never tries the wrong one."""
    digest = x509.SubjectKeyIdentifier.from_public_key(key).digest.hex()[:8]
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, trust_domain[:64]),
            x509.NameAttribute(NameOID.COMMON_NAME, f"Sluice {kind} authority {digest}"),
        ]
    )


def _authority_builder(
    key: PublicKey, config: PkiConfig, name: x509.Name, now: dt.datetime, end: dt.datetime, *, path_length: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=config.backdate_minutes))
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(authority_key_usage(), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(f"spiffe://{config.trust_domain}")]),
            critical=False,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
