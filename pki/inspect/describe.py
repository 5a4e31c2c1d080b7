"""Describes certificates, requests, CRLs, keys and keystores as plain data, without secrets.

Takes bytes and returns values; :func:`inspect_path` alone reads files.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID

from sluice.core import CertificateRejected, StoreError, read_bounded
from sluice.pki.identities import Known, directory as identity_files
from sluice.pki.inspect.describe_crl import CrlSummary, extension_value, signature_hash, summarize_crl
from sluice.pki.revocation import CRL_FILE, MAX_CRL_BYTES
from sluice.pki.x509 import (
    DAMAGED,
    MAGIC,
    describe_constraints,
    describe_key,
    load_certificate,
    load_certificate_block,
    public_key_der,
    read_jks,
)

MAX_ITEMS = 1000
"""Most PEM blocks read in one file."""

JKS_MAGIC = MAGIC.to_bytes(4, "big")
_DIRECTORY_FILES = (
    identity_files.CHAIN_FILE,
    identity_files.CA_FILE,
    identity_files.KEY_FILE,
    identity_files.KEYSTORE_FILE,
    "cert.pem",
    CRL_FILE,
)
"""The files to inspect in the directory of an identity or an authority."""
_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----.*?-----END \1-----", re.DOTALL)
_USAGES = {
    ExtendedKeyUsageOID.CLIENT_AUTH: "client",
    ExtendedKeyUsageOID.SERVER_AUTH: "server",
}

State = Literal["valid", "expired", "not yet valid"]


class CertificateSummary(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="certificate"):
    """One certificate; times are UTC."""

    subject: str
    issuer: str
    serial: str
    spiffe_ids: tuple[str, ...]
    dns: tuple[str, ...]
    ips: tuple[str, ...]
    not_before: dt.datetime
    not_after: dt.datetime
    state: State
    key: str
    signature: str
    purposes: tuple[str, ...]
    authority: bool
    path_length: int | None
    name_constraints: tuple[str, ...]
    subject_key_id: str
    authority_key_id: str
    sha256: str


class RequestSummary(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="request"):
    """One certificate signing request."""

    subject: str
    spiffe_ids: tuple[str, ...]
    dns: tuple[str, ...]
    ips: tuple[str, ...]
    key: str
    signature_valid: bool


class KeySummary(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="private key"):
    """One private key, described by its public part; ``public_sha256`` is of the SubjectPublicKeyInfo."""

    key: str
    public_sha256: str


class KeystoreSummary(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="keystore"):
    """A PKCS#12 or JKS file; ``items`` are the certificates in it, the one of its key first."""

    has_key: bool
    items: tuple[CertificateSummary, ...]


Summary = CertificateSummary | RequestSummary | KeySummary | KeystoreSummary | CrlSummary


class FileContent(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in one file."""

    file: str
    items: tuple[Summary, ...]


def summarize_certificate(certificate: x509.Certificate, now: dt.datetime) -> CertificateSummary:
    """Summarize ``certificate`` as of ``now``; damaged extensions are an error."""
    try:
        extensions = certificate.extensions
        key = certificate.public_key()
    except DAMAGED as error:
        raise CertificateRejected(f"the certificate is damaged: {error}") from error
    uris, dns, ips = _names(extensions)
    constraints = extension_value(extensions, x509.BasicConstraints)
    usages = extension_value(extensions, x509.ExtendedKeyUsage)
    own_id = extension_value(extensions, x509.SubjectKeyIdentifier)
    issuer_id = extension_value(extensions, x509.AuthorityKeyIdentifier)
    return CertificateSummary(
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        serial=f"{certificate.serial_number:x}",
        spiffe_ids=uris,
        dns=dns,
        ips=ips,
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        state=_state(certificate, now),
        key=describe_key(key),
        signature=signature_hash(certificate),
        purposes=tuple(_USAGES.get(usage, usage.dotted_string) for usage in usages or ()),
        authority=bool(constraints and constraints.ca),
        path_length=constraints.path_length if constraints else None,
        name_constraints=describe_constraints(extension_value(extensions, x509.NameConstraints)),
        subject_key_id=own_id.digest.hex() if own_id else "",
        authority_key_id=(issuer_id.key_identifier or b"").hex() if issuer_id else "",
        sha256=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def inspect_bytes(
    data: bytes, now: dt.datetime, *, password: bytes | None = None, authorities: Sequence[Known] = ()
) -> tuple[Summary, ...]:
    """Recognize PEM blocks, else a DER certificate, request or revocation list, else PKCS#12 or JKS.

    ``authorities`` may have signed a CRL.

    Raises:
        CertificateRejected: nothing recognized, or a block is damaged (its number is named).
    """
    blocks = list(_PEM.finditer(data))
    if len(blocks) > MAX_ITEMS:
        raise CertificateRejected(f"more than {MAX_ITEMS} PEM blocks")
    if blocks:
        return tuple(
            _inspect_block(match.group(1).decode(), match.group(0), number, now, authorities)
            for number, match in enumerate(blocks, 1)
        )
    if b"-----BEGIN" in data:
        raise CertificateRejected("a PEM block begins but does not end", "the file was cut off: copy it again")
    attempts: tuple[Callable[[], Summary], ...] = (
        lambda: summarize_certificate(load_certificate(data), now),
        lambda: _summarize_request(x509.load_der_x509_csr(data)),
        lambda: summarize_crl(x509.load_der_x509_crl(data), now, authorities),
        lambda: _summarize_keystore(data, password, now),
    )
    for attempt in attempts:
        try:
            return (attempt(),)
        except DAMAGED:
            continue
    raise CertificateRejected(
        "neither PEM, nor a DER certificate, request or revocation list, nor a PKCS#12 or JKS file that this "
        "password opens",
        "a keystore's password is read from the file beside it, NAME.pass",
    )


def inspect_path(path: Path, now: dt.datetime, *, authorities: Sequence[Known] = ()) -> tuple[FileContent, ...]:
    """Inspect a file, or the certificate and key files of a directory; a keystore's password is in ``NAME.pass``."""
    if not path.is_dir():
        return (_inspect_file(path, now, authorities),)
    found = tuple(_inspect_file(path / name, now, authorities) for name in _DIRECTORY_FILES if (path / name).is_file())
    if not found:
        raise StoreError(f"{path} holds no identity and no authority", "name a file, or a directory with chain.pem")
    return found


def public_pem(path: Path) -> bytes:
    """The public parts of ``path`` as PEM: certificates, requests and CRLs, without keys. Empty when there are none."""
    if path.is_dir():
        return b"".join(public_pem(path / name) for name in _DIRECTORY_FILES if (path / name).is_file())
    data = read_bounded(path, MAX_CRL_BYTES)
    if blocks := list(_PEM.finditer(data)):
        return b"".join(each.group(0) + b"\n" for each in blocks if not each.group(1).endswith(b"PRIVATE KEY"))
    attempts: tuple[Callable[[], bytes], ...] = (
        lambda: load_certificate(data).public_bytes(Encoding.PEM),
        lambda: x509.load_der_x509_csr(data).public_bytes(Encoding.PEM),
        lambda: x509.load_der_x509_crl(data).public_bytes(Encoding.PEM),
        lambda: b"".join(each.public_bytes(Encoding.PEM) for each in _open_keystore(data, _password(path))[1]),
    )
    for attempt in attempts:
        try:
            return attempt()
        except DAMAGED:
            continue
    raise CertificateRejected(f"{path} holds nothing that is public and understood")


def _password(path: Path) -> bytes | None:
    beside = path.with_name(f"{path.name}.pass")
    return read_bounded(beside, identity_files.MAX_PASSWORD_BYTES).strip() if beside.is_file() else None


def _inspect_file(path: Path, now: dt.datetime, authorities: Sequence[Known]) -> FileContent:
    try:
        data = read_bounded(path, MAX_CRL_BYTES)  # the largest kind
        items = inspect_bytes(data, now, password=_password(path), authorities=authorities)
        return FileContent(file=str(path), items=items)
    except CertificateRejected as error:
        raise CertificateRejected(f"{path}: {error.what}", error.remedy) from error


def _inspect_block(label: str, block: bytes, number: int, now: dt.datetime, authorities: Sequence[Known]) -> Summary:
    try:
        match label:
            case "CERTIFICATE" | "X509 CERTIFICATE":
                return summarize_certificate(load_certificate_block(block), now)
            case "CERTIFICATE REQUEST" | "NEW CERTIFICATE REQUEST":
                return _summarize_request(x509.load_pem_x509_csr(block))
            case "X509 CRL":
                return summarize_crl(x509.load_pem_x509_crl(block), now, authorities)
            case _ if label.endswith("PRIVATE KEY"):
                return _summarize_key(block)
    except CertificateRejected as error:
        raise CertificateRejected(f"block {number} ({label}): {error.what}") from error
    except DAMAGED:
        raise CertificateRejected(f"block {number} ({label}) is damaged") from None
    raise CertificateRejected(f"block {number} is a {label}, which is not understood")


def _summarize_request(csr: x509.CertificateSigningRequest) -> RequestSummary:
    uris, dns, ips = _names(csr.extensions)
    return RequestSummary(
        subject=csr.subject.rfc4514_string(),
        spiffe_ids=uris,
        dns=dns,
        ips=ips,
        key=describe_key(csr.public_key()),
        signature_valid=csr.is_signature_valid,
    )


def _summarize_key(pem: bytes) -> KeySummary:
    try:
        public = load_pem_private_key(pem, password=None).public_key()
    except TypeError:
        return KeySummary(key="encrypted", public_sha256="")
    return KeySummary(key=describe_key(public), public_sha256=public_fingerprint(public))


def _summarize_keystore(data: bytes, password: bytes | None, now: dt.datetime) -> KeystoreSummary:
    has_key, certificates = _open_keystore(data, password)
    return KeystoreSummary(has_key=has_key, items=tuple(summarize_certificate(each, now) for each in certificates))


def _open_keystore(data: bytes, password: bytes | None) -> tuple[bool, list[x509.Certificate]]:
    if data.startswith(JKS_MAGIC):
        return read_jks(data, password or b"")
    store = load_pkcs12(data, password)
    entries = [store.cert, *store.additional_certs] if store.cert else store.additional_certs
    return store.key is not None, [entry.certificate for entry in entries]


def public_fingerprint(key: CertificatePublicKeyTypes | PublicKeyTypes) -> str:
    """SHA-256 of the SubjectPublicKeyInfo, in hex: equal for a key and its certificate."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(public_key_der(key))
    return digest.finalize().hex()


def _names(extensions: x509.Extensions) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    names = extension_value(extensions, x509.SubjectAlternativeName)
    if names is None:
        return (), (), ()
    return (
        tuple(names.get_values_for_type(x509.UniformResourceIdentifier)),
        tuple(names.get_values_for_type(x509.DNSName)),
        tuple(str(address) for address in names.get_values_for_type(x509.IPAddress)),
    )


def _state(certificate: x509.Certificate, now: dt.datetime) -> State:
    if now > certificate.not_valid_after_utc:
        return "expired"
    return "not yet valid" if now < certificate.not_valid_before_utc else "valid"
