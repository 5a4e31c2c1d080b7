"""Signing requests of ACME clients: they must ask for exactly the order's names, with a strong key. No I/O."""

from __future__ import annotations

from collections.abc import Iterable

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.x509.oid import NameOID

from sluice.core import CertificateRejected
from sluice.pki.acme.identifiers import Identifier, parse_identifier
from sluice.pki.x509 import DAMAGED, MAX_CSR_BYTES, SIGNATURE_HASHES, PublicKey, check_edge_key, check_strength

_EXTENSION_REQUEST = "1.2.840.113549.1.9.14"
_TOLERATED = (x509.KeyUsage, x509.ExtendedKeyUsage, x509.BasicConstraints)
"""Extensions that common clients ask for; the profile sets them anyway: a server's certificate, no authority's."""


def check_csr_for(der: bytes, identifiers: Iterable[Identifier]) -> PublicKey:
    """Return the key of a request for exactly these names.

    Raises:
        CertificateRejected: the first rule that the request breaks.
    """
    if len(der) > MAX_CSR_BYTES:
        raise CertificateRejected(f"the request is larger than {MAX_CSR_BYTES} bytes")
    try:
        return _check(x509.load_der_x509_csr(der), set(identifiers))
    except DAMAGED as error:
        raise CertificateRejected("the request is damaged: it is not PKCS #10 in DER") from error


def _check(csr: x509.CertificateSigningRequest, identifiers: set[Identifier]) -> PublicKey:
    # 1. Strength first, so that no time is spent on an absurd key.
    key = check_strength(csr.public_key())
    check_edge_key(key)
    # 2. Proof of possession (RFC 2986, section 3).
    if not isinstance(key, ed25519.Ed25519PublicKey) and not isinstance(csr.signature_hash_algorithm, SIGNATURE_HASHES):
        raise CertificateRejected("the request is signed with a weak hash", "sign it with SHA-256 or better")
    if not csr.is_signature_valid:
        raise CertificateRejected("the request's signature does not verify")
    # 3. No attributes but the extensions.
    for attribute in csr.attributes:
        if attribute.oid.dotted_string != _EXTENSION_REQUEST:
            raise CertificateRejected(f"the request carries the attribute {attribute.oid.dotted_string}")
    # 4. The names of the order and no others (RFC 8555, 7.4).
    if (asked := _common_names(csr) | _alternative_names(csr)) != identifiers:
        beyond = ", ".join(sorted(str(each) for each in asked - identifiers)[:5])
        missing = ", ".join(sorted(str(each) for each in identifiers - asked)[:5])
        raise CertificateRejected(
            f"the request is not for the names of the order; beyond them: {beyond or 'none'}, missing: "
            f"{missing or 'none'}"
        )
    return key


def _common_names(csr: x509.CertificateSigningRequest) -> set[Identifier]:
    found = set()
    for attribute in csr.subject:
        if attribute.oid != NameOID.COMMON_NAME:
            raise CertificateRejected("the request's subject has more than a common name", "leave the rest out")
        text = str(attribute.value)
        try:
            found.add(parse_identifier("ip", text))
        except CertificateRejected:
            found.add(parse_identifier("dns", text))
    return found


def _alternative_names(csr: x509.CertificateSigningRequest) -> set[Identifier]:
    found = set()
    for extension in csr.extensions:
        value = extension.value
        if isinstance(value, x509.BasicConstraints) and value.ca:
            raise CertificateRejected("the request is for an authority")
        if isinstance(value, _TOLERATED):
            continue
        if not isinstance(value, x509.SubjectAlternativeName):
            raise CertificateRejected(f"the request asks for the extension {extension.oid.dotted_string}")
        for name in value:
            match name:
                case x509.DNSName():
                    found.add(parse_identifier("dns", name.value))
                case x509.IPAddress():
                    found.add(parse_identifier("ip", str(name.value)))
                case _:
                    raise CertificateRejected("the request asks for a name that is neither DNS name nor address")
    return found
