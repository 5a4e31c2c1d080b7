"""Parses an untrusted certificate; every defect is an exception, never a warning.

The library still accepts serial numbers that are zero or negative, with a warning at each access. RFC 5280, 4.1.2.2,
forbids them, and CRLs cannot name them. They are refused here, before the library sees them.
"""

from __future__ import annotations

import base64
import re

from cryptography import x509

_SEQUENCE, _INTEGER, _VERSION = 0x30, 0x02, 0xA0
_BODY = re.compile(rb"-----BEGIN [A-Z0-9 ]{1,40}-----\s(.*?)-----END ", re.DOTALL)


def load_certificate(der: bytes) -> x509.Certificate:
    """Parse one certificate; raises one of :data:`sluice.pki.x509.parse_errors.DAMAGED`."""
    _check_serial(der)
    return x509.load_der_x509_certificate(der)


def load_certificate_block(block: bytes) -> x509.Certificate:
    """Parse one PEM block, including its two boundary lines."""
    body = _BODY.search(block)
    if body is None:
        raise ValueError("this is not a PEM block")
    return load_certificate(base64.b64decode(b"".join(body.group(1).split()), validate=True))


def _check_serial(der: bytes) -> None:
    # Certificate ::= SEQUENCE { tbsCertificate SEQUENCE { [0] version OPTIONAL, serialNumber INTEGER, ... } ... }
    inside, _ = _enter(der, 0, _SEQUENCE)
    inside, _ = _enter(der, inside, _SEQUENCE)
    if der[inside : inside + 1] == bytes([_VERSION]):
        _, inside = _enter(der, inside, _VERSION)
    start, end = _enter(der, inside, _INTEGER)
    if int.from_bytes(der[start:end], "big", signed=True) <= 0:
        raise ValueError("its serial number is not positive (RFC 5280, 4.1.2.2)")


def _enter(der: bytes, at: int, tag: int) -> tuple[int, int]:
    """The start and end of the content of the element at ``at`` (X.690, 8.1)."""
    if len(der) < at + 2 or der[at] != tag:
        raise ValueError("it is not encoded as a certificate is")
    length, start = der[at + 1], at + 2
    if length & 0x80:
        octets = length & 0x7F
        start += octets
        length = int.from_bytes(der[at + 2 : start], "big")
    if length == 0 or start + length > len(der):
        raise ValueError("it is cut off")
    return start, start + length
