"""Parsing foreign certificates: failures raise known exceptions and never a warning."""

from __future__ import annotations

import base64
import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings, strategies as st

from sluice.core.errors import CertificateRejected
from sluice.pki.authorities.signing import create_root
from sluice.pki.config import PkiConfig
from sluice.pki.inspect.describe import inspect_bytes
from sluice.pki.x509.loading import load_certificate, load_certificate_block
from sluice.pki.x509.parse_errors import DAMAGED

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
CERTIFICATE = create_root(PkiConfig(), NOW).certificate
DER = CERTIFICATE.public_bytes(Encoding.DER)
SERIAL = DER.index(b"\xa0\x03\x02\x01\x02\x02") + 5
"""Where the serial number stands, right behind the version."""


def with_serial(number: bytes) -> bytes:
    """Return the certificate with this serial number, padded to the same length."""
    size = DER[SERIAL + 1]
    return DER[: SERIAL + 2] + number.rjust(size, number[:1]) + DER[SERIAL + 2 + size :]


def test_a_certificate_is_loaded_from_der_and_pem() -> None:
    assert load_certificate(DER) == CERTIFICATE
    assert load_certificate_block(CERTIFICATE.public_bytes(Encoding.PEM).strip()) == CERTIFICATE


@pytest.mark.parametrize("number", [b"\x00", b"\xff", b"\x80"], ids=["zero", "minus-one", "negative"])
def test_a_certificate_whose_serial_number_is_not_positive_is_refused(number: bytes) -> None:
    bad = with_serial(number)
    with pytest.raises(ValueError, match="not positive"):
        load_certificate(bad)
    pem = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(bad) + b"-----END CERTIFICATE-----\n"
    for data in (bad, pem):
        with pytest.raises(CertificateRejected):
            inspect_bytes(data, NOW)


@pytest.mark.parametrize(
    "der",
    [
        b"",
        b"\x30",
        b"\x30\x80",
        b"\x30\x84\xff\xff\xff\xff",
        b"\x30\x02\x30\x00",
        b"\x30\x05\x30\x03\xa0\x01\x00",
        DER[:-1],
    ],
)
def test_malformed_certificate_bytes_raise_a_damage_error(der: bytes) -> None:
    with pytest.raises(DAMAGED):
        load_certificate(der)


@settings(max_examples=300)
@given(position=st.integers(0, len(DER)), noise=st.binary(min_size=1, max_size=6))
def test_a_certificate_with_noise_in_it_is_loaded_or_raises_a_damage_error(position: int, noise: bytes) -> None:
    """What loads has a positive serial number; all other bytes raise errors of the known kinds."""
    der = DER[:position] + noise + DER[position + len(noise) :]
    try:
        certificate = load_certificate(der)
    except DAMAGED:
        return
    assert isinstance(certificate, x509.Certificate)
    assert certificate.serial_number > 0
