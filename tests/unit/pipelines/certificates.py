"""Certificates as others make them: by cryptography's builder, or patched as bytes where it refuses."""

from __future__ import annotations

import base64
import textwrap
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

AS_OF = datetime(2026, 6, 1, tzinfo=UTC)
SERIAL = 0x3F << 120
SHA256_RSA = bytes.fromhex("2a864886f70d01010b")
SHA1_RSA = bytes.fromhex("2a864886f70d010105")
MD5_RSA = bytes.fromhex("2a864886f70d010104")
MD2_RSA = bytes.fromhex("2a864886f70d010102")

EC_KEY = ec.generate_private_key(ec.SECP256R1())
RSA_KEY = rsa.generate_private_key(65537, 2048)
RSA_SHORT_KEY = rsa.generate_private_key(65537, 1024)  # noqa: S505 - a short key is what the finding is about

CA = x509.BasicConstraints(ca=True, path_length=None)
END_ENTITY = x509.BasicConstraints(ca=False, path_length=None)


def usage(*, sign_certificates: bool) -> x509.KeyUsage:
    """A key usage with or without keyCertSign."""
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=sign_certificates,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def name(common: str, organisation: str = "Example") -> x509.Name:
    """A distinguished name."""
    return x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organisation), x509.NameAttribute(NameOID.COMMON_NAME, common)]
    )


def make(
    *extensions: x509.ExtensionType,
    subject: x509.Name | None = None,
    issuer: x509.Name | None = None,
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = EC_KEY,
    signer: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | None = None,
    not_before: datetime = datetime(2025, 1, 1, tzinfo=UTC),
    not_after: datetime = datetime(2030, 1, 1, tzinfo=UTC),
    serial: int = SERIAL,
) -> bytes:
    """Return a DER end-entity certificate that has no findings unless the arguments cause some."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(name("leaf") if subject is None else subject)
        .issuer_name(name("authority") if issuer is None else issuer)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(not_before)
        .not_valid_after(not_after)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(signer or key, hashes.SHA256()).public_bytes(Encoding.DER)


def length(size: int) -> bytes:
    """A DER length (X.690 8.1.3)."""
    if size < 0x80:
        return bytes([size])
    octets = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([0x80 | len(octets)]) + octets


def with_tbs(der: bytes, before: bytes, after: bytes) -> bytes:
    """Return ``der`` with the first ``before`` in its signed part replaced and all lengths corrected."""
    certificate = x509.load_der_x509_certificate(der)
    tbs = certificate.tbs_certificate_bytes
    content = tbs[2 + (tbs[1] & 0x7F if tbs[1] >= 0x80 else 0) :]
    assert before in content
    changed = content.replace(before, after, 1)
    signed = b"\x30" + length(len(changed)) + changed
    rest = der[der.index(tbs) + len(tbs) :]
    return b"\x30" + length(len(signed) + len(rest)) + signed + rest


def version_1(der: bytes) -> bytes:
    """Return ``der``, which must have no extensions, as X.509 version 1: without the version field."""
    return with_tbs(der, bytes.fromhex("a003020102"), b"")


def with_serial(der: bytes, content: bytes) -> bytes:
    """``der``, made with :data:`SERIAL`, with another DER INTEGER content as its serial number."""
    before = b"\x02\x10" + SERIAL.to_bytes(16)
    return with_tbs(der, before, b"\x02" + length(len(content)) + content)


def pem(der: bytes, label: str = "CERTIFICATE", newline: str = "\n") -> bytes:
    """``der`` as a PEM block."""
    body = textwrap.wrap(base64.b64encode(der).decode(), 64)
    return newline.join([f"-----BEGIN {label}-----", *body, f"-----END {label}-----", ""]).encode()
