"""Certificate signing requests: creating and checking them (RFC 2986).

A request for more than its profile allows is refused, not trimmed, so that the requester learns of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.core import CertificateRejected
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509.keys import (
    DEFAULT_ALGORITHM,
    PublicKey,
    check_strength,
    describe_key,
    edge_algorithm,
    generate_key,
    key_to_pem,
    signature_hash,
)
from sluice.pki.x509.parse_errors import DAMAGED
from sluice.pki.x509.profiles import Names

MAX_CSR_BYTES = 64 << 10
"""Largest signing request that is parsed, in bytes."""

_PEM_BEGINS = re.compile(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----")
_EXTENSION_REQUEST = "1.2.840.113549.1.9.14"
SIGNATURE_HASHES = (hashes.SHA256, hashes.SHA384, hashes.SHA512)


def new_csr(
    spiffe_id: SpiffeId, *, dns: Sequence[str] = (), ips: Sequence[str] = (), algorithm: str = DEFAULT_ALGORITHM
) -> tuple[bytes, bytes]:
    """Make a key and a request for ``spiffe_id``; returns the private key (PKCS#8) and the request, both PEM."""
    names = Names.checked(spiffe_id, dns, ips)
    key = generate_key(algorithm)
    csr = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(names.subject())
        .add_extension(names.extension(), critical=False)
        .sign(key, signature_hash(key))
    )
    return key_to_pem(key), csr.public_bytes(Encoding.PEM)


def check_csr(csr_pem: bytes, names: Names) -> PublicKey:
    """Return the public key of a request for exactly ``names``.

    Raises:
        CertificateRejected: the first rule that the request breaks.
    """
    csr = load_csr(csr_pem)
    try:
        return _check_csr(csr, names)
    except DAMAGED as error:
        raise CertificateRejected(f"the request is damaged: {error}") from error


def check_edge_key(key: PublicKey) -> None:
    """Raise :class:`CertificateRejected` for a key that browsers and Envoy do not support in a public certificate."""
    if edge_algorithm(kind := describe_key(key)) != kind:
        raise CertificateRejected(f"browsers and Envoy do not take {kind} certificates", f"use {edge_algorithm(kind)}")


def _check_csr(csr: x509.CertificateSigningRequest, names: Names) -> PublicKey:
    # 1. Strength first, to spend no time on an absurd key.
    key = check_strength(csr.public_key())
    # 2. Proof of possession: the request is signed with the key it presents (RFC 2986, section 3).
    if not isinstance(key, ed25519.Ed25519PublicKey) and not isinstance(csr.signature_hash_algorithm, SIGNATURE_HASHES):
        raise CertificateRejected("the request is signed with a weak hash", "sign it with SHA-256 or better")
    if not csr.is_signature_valid:
        raise CertificateRejected(
            "the request's signature does not verify: no proof that the requester holds the key", "make it again"
        )
    # 3. The subject is empty or the one of the certificate.
    if csr.subject not in (x509.Name([]), names.subject()):
        raise CertificateRejected(
            f"the request asks for the subject {csr.subject.rfc4514_string()[:200]!r}",
            f"leave it empty or use {names.subject().rfc4514_string()}",
        )
    # 4. No attributes but the extensions, no extension but the names, no names but the expected ones.
    for attribute in csr.attributes:
        if attribute.oid.dotted_string != _EXTENSION_REQUEST:
            raise CertificateRejected(
                f"the request carries the attribute {attribute.oid.dotted_string}", "leave it out"
            )
    _check_names(csr, names)
    return key


def load_csr(csr_pem: bytes) -> x509.CertificateSigningRequest:
    """Parse a PEM request of bounded size; :class:`CertificateRejected` says what the text is instead."""
    if len(csr_pem) > MAX_CSR_BYTES:
        raise CertificateRejected(f"the request is larger than {MAX_CSR_BYTES} bytes")
    try:
        csr = x509.load_pem_x509_csr(csr_pem)
        csr.public_key()
    except DAMAGED as error:
        raise CertificateRejected(*_why_unreadable(csr_pem)) from error
    return csr


def _why_unreadable(content: bytes) -> tuple[str, str]:
    """What is wrong with ``content``, in more detail than the library says, and the remedy."""
    remedy = "make a request: `openssl req -new -key KEY -subj / -addext subjectAltName=URI:spiffe://…`"
    if not content.strip():
        return "the request is empty", remedy
    found = _PEM_BEGINS.search(content)
    if found is None:
        if content.startswith(b"\x30"):
            return "the request is not in PEM but in DER", "convert it: `openssl req -inform der`"
        return "this is not a certificate signing request: there is no PEM in it", remedy
    label = found[1].decode()
    if label not in {"CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST"}:
        return f"this is not a certificate signing request but a {label.lower()}", remedy
    if f"-----END {label}-----".encode() not in content[found.end() :]:
        return "the request is cut off before its end", "copy all of it"
    return "the request is damaged: its content is not PKCS #10", "copy it again, or make another one"


def _check_names(csr: x509.CertificateSigningRequest, names: Names) -> None:
    asked: list[x509.GeneralName] = []
    for extension in csr.extensions:
        if not isinstance(extension.value, x509.SubjectAlternativeName):
            raise CertificateRejected(
                f"the request asks for the extension {extension.oid.dotted_string}",
                "ask for subject alternative names only; usages come from the profile",
            )
        asked = list(extension.value)
    expected = list(names.extension())
    beyond = [name for name in asked if name not in expected]
    missing = [name for name in expected if name not in asked]
    if beyond:
        raise CertificateRejected(f"the request asks for names it may not have: {_show(beyond)}")
    if missing:
        raise CertificateRejected(f"the request does not ask for {_show(missing)}", "make it for exactly these names")
    if len(asked) != len(expected):
        raise CertificateRejected("the request asks for the same name twice")


def _show(names: list[x509.GeneralName]) -> str:
    return ", ".join(str(name.value)[:200] for name in names[:5])
