"""Credentials that no listener may admit, issued by the audit's own authorities. In memory only."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sluice.audit.wire import Credential
from sluice.pki.x509 import PrivateKey, authority_key_usage, leaf_key_usage, signature_hash

LIFETIME = dt.timedelta(minutes=5)
BOTH_USAGES = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH)
_SKEW = dt.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Signer:
    """A signer: a certificate and its key; ``chain`` is what its holder presents besides its own certificate."""

    certificate: x509.Certificate
    key: PrivateKey = field(repr=False)
    chain: tuple[x509.Certificate, ...] = ()


@dataclass(frozen=True, slots=True)
class ForgedLeaf:
    """The contents of a forged leaf; by default all correct."""

    uris: tuple[str, ...]
    start: dt.datetime
    end: dt.datetime
    usages: tuple[x509.ObjectIdentifier, ...] = BOTH_USAGES
    common_name: str = "audit"

    @classmethod
    def at(cls, now: dt.datetime, *uris: str) -> ForgedLeaf:
        """Contents that are valid now, for minutes."""
        return cls(uris, now - _SKEW, now + LIFETIME)


def self_signed(wanted: ForgedLeaf) -> Credential:
    """A self-signed leaf."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Credential((_leaf(wanted, key, None),), key)


def forge(wanted: ForgedLeaf, signer: Signer) -> Credential:
    """A leaf signed by ``signer``, with a key of its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Credential((_leaf(wanted, key, signer), *signer.chain), key)


def foreign_authority(now: dt.datetime) -> Signer:
    """A root of the audit and an intermediate below it."""
    return _intermediate(_root(_name("Audit root"), now), _name("Audit authority"), now)


def impostor_authority(genuine: x509.Certificate, now: dt.datetime) -> Signer:
    """An authority with the name, serial number and key identifier of ``genuine``, and another key."""
    return _intermediate(_root(genuine.issuer, now), genuine.subject, now, like=genuine)


def without_intermediate(credential: Credential) -> Credential:
    """The leaf alone."""
    return replace(credential, chain=credential.chain[:1])


def leaf_as_authority(credential: Credential) -> Signer:
    """A signer that uses a leaf as if it were an authority."""
    return Signer(credential.chain[0], credential.key, credential.chain)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _root(name: x509.Name, now: dt.datetime) -> Signer:
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _authority(name, name, key.public_key(), now, path_length=1).sign(key, hashes.SHA256())
    return Signer(certificate, key)


def _intermediate(root: Signer, name: x509.Name, now: dt.datetime, *, like: x509.Certificate | None = None) -> Signer:
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    serial = x509.random_serial_number()
    if like is not None:
        serial = like.serial_number
        identifier = _key_identifier(like) or identifier
    builder = _authority(
        name, root.certificate.subject, key.public_key(), now, path_length=0, serial=serial, identifier=identifier
    )
    certificate = builder.sign(root.key, signature_hash(root.key))
    return Signer(certificate, key, (certificate, root.certificate))


def _authority(
    name: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: dt.datetime,
    *,
    path_length: int,
    serial: int | None = None,
    identifier: x509.SubjectKeyIdentifier | None = None,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial or x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.BasicConstraints(ca=True, path_length=path_length), critical=True)
        .add_extension(authority_key_usage(), critical=True)
        .add_extension(identifier or x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _leaf(wanted: ForgedLeaf, key: ec.EllipticCurvePrivateKey, signer: Signer | None) -> x509.Certificate:
    own = _name(wanted.common_name)
    builder = (
        x509.CertificateBuilder()
        .subject_name(own)
        .issuer_name(own if signer is None else signer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(wanted.start)
        .not_valid_after(wanted.end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(leaf_key_usage(), critical=True)
        .add_extension(x509.SubjectAlternativeName(_names(wanted.uris)), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if wanted.usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(list(wanted.usages)), critical=False)
    if signer is None:
        return builder.sign(key, hashes.SHA256())
    identifier = _key_identifier(signer.certificate)
    if identifier is not None:
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
        builder = builder.add_extension(issuer, critical=False)
    return builder.sign(signer.key, signature_hash(signer.key))


def _names(uris: Sequence[str]) -> list[x509.GeneralName]:
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
    return [*names, x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]


def _key_identifier(certificate: x509.Certificate) -> x509.SubjectKeyIdentifier | None:
    try:
        return certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        return None
