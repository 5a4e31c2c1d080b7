"""The tls-alpn-01 certificate: exactly one name, and the digest in a critical extension (RFC 8737)."""

from __future__ import annotations

import datetime as dt
import hashlib

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.pki.acme.identifiers import Identifier
from sluice.pki.acme.problems import AcmeProblem
from sluice.pki.acme.validation.tls_alpn01 import check_challenge_certificate
from sluice.pki.x509 import ACME_IDENTIFIER
from tests.acme_client import p256

NAME = Identifier("dns", "www.internal.example")
AUTHORIZATION = "token.thumbprint"
DIGEST = hashlib.sha256(AUTHORIZATION.encode()).digest()
RIGHT = b"\x04\x20" + DIGEST


def shown(names: list[str], value: bytes | None = RIGHT, *, critical: bool = True) -> bytes:
    key, now = p256(), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([]))
        .issuer_name(x509.Name([]))
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=1))
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in names]), True)
    if value is not None:
        builder = builder.add_extension(x509.UnrecognizedExtension(ACME_IDENTIFIER, value), critical)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def test_a_correct_challenge_certificate_is_accepted() -> None:
    check_challenge_certificate(shown([NAME.value]), NAME, AUTHORIZATION)


@pytest.mark.parametrize(
    "der",
    [
        pytest.param(shown([NAME.value], None), id="no acmeIdentifier"),
        pytest.param(shown([NAME.value], critical=False), id="not critical"),
        pytest.param(shown([NAME.value], b"\x04\x20" + b"\0" * 32), id="another digest"),
        pytest.param(shown([NAME.value], DIGEST), id="not an octet string"),
        pytest.param(shown([NAME.value], RIGHT + b"\0"), id="trailing bytes"),
        pytest.param(shown(["other.internal.example"]), id="another name"),
        pytest.param(shown([NAME.value, "other.internal.example"]), id="two names"),
        pytest.param(shown([NAME.value, NAME.value]), id="the name twice"),
        pytest.param(shown([]), id="no name"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x30\x03\x02\x01\x01", id="no certificate"),
    ],
)
def test_a_wrong_challenge_certificate_is_refused(der: bytes) -> None:
    with pytest.raises(AcmeProblem):
        check_challenge_certificate(der, NAME, AUTHORIZATION)
