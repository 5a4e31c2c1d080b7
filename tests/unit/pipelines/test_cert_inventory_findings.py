"""Each finding of the certificate inventory: certificates that must have it, and similar ones without."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from sluice.pipelines import cert_inventory as inventory
from sluice.pipelines.cert_inventory import Row
from tests.unit.pipelines import certificates as made
from tests.unit.pipelines.certificates import AS_OF, CA, END_ENTITY, SERIAL, make, name, usage

SIGNS = usage(sign_certificates=True)
SIGNS_NOT = usage(sign_certificates=False)
SECOND = timedelta(seconds=1)
RSA_LEAF = make(END_ENTITY, key=made.RSA_KEY)
RSA_ROOT = make(CA, SIGNS, subject=name("root"), issuer=name("root"), key=made.RSA_KEY)


def parse(der: bytes, as_of: datetime = AS_OF) -> Row:
    (block,) = inventory.split_pem("x.pem", made.pem(der))
    return inventory.parse_block(block, as_of)


def signed_with(der: bytes, oid: bytes) -> bytes:
    """Return ``der`` with both its RSA-SHA256 algorithm identifiers replaced.

    The one inside and the one outside the signed part change, so the signature becomes invalid.
    """
    assert der.count(made.SHA256_RSA) == 2
    return der.replace(made.SHA256_RSA, oid)


CASES = [
    pytest.param(make(END_ENTITY), set(), id="a good end entity has no finding"),
    pytest.param(make(), set(), id="an end entity needs no basic constraints"),
    pytest.param(make(CA, SIGNS), set(), id="a good CA has no finding"),
    pytest.param(make(not_after=AS_OF - SECOND), {"expired"}, id="expired a second ago"),
    pytest.param(make(not_after=AS_OF), {"expires-soon"}, id="notAfter is inclusive"),
    pytest.param(make(not_before=AS_OF + SECOND), {"not-yet-valid"}, id="valid in a second"),
    pytest.param(make(not_before=AS_OF), set(), id="notBefore is inclusive"),
    pytest.param(make(not_after=AS_OF + timedelta(days=90) - SECOND), {"expires-soon"}, id="expires in under 90 days"),
    pytest.param(make(not_after=AS_OF + timedelta(days=90)), set(), id="expires in 90 days"),
    pytest.param(signed_with(RSA_LEAF, made.SHA1_RSA), {"sha1-signature"}, id="SHA-1"),
    pytest.param(signed_with(RSA_LEAF, made.MD5_RSA), {"md5-signature"}, id="MD5"),
    pytest.param(signed_with(RSA_LEAF, made.MD2_RSA), {"md5-signature"}, id="MD2"),
    pytest.param(RSA_LEAF, set(), id="SHA-256"),
    pytest.param(signed_with(RSA_ROOT, made.SHA1_RSA), {"weak-self-signature"}, id="SHA-1 on a self-signed root"),
    pytest.param(signed_with(RSA_ROOT, made.MD5_RSA), {"weak-self-signature"}, id="MD5 on a self-signed root"),
    pytest.param(RSA_ROOT, set(), id="SHA-256 on a self-signed root"),
    pytest.param(make(key=made.RSA_SHORT_KEY, signer=made.RSA_KEY), {"rsa-key-short"}, id="RSA 1024"),
    pytest.param(make(key=made.RSA_KEY), set(), id="RSA 2048"),
    pytest.param(make(CA, SIGNS_NOT), {"ca-without-key-cert-sign"}, id="CA whose key usage lacks keyCertSign"),
    pytest.param(make(CA), {"ca-without-key-usage"}, id="CA without key usage"),
    pytest.param(make(END_ENTITY, SIGNS_NOT), set(), id="an end entity may have key usage without keyCertSign"),
    pytest.param(make(SIGNS), {"basic-constraints-missing"}, id="keyCertSign without basic constraints"),
    pytest.param(
        make(subject=name("root"), issuer=name("root")), {"basic-constraints-missing"}, id="root without constraints"
    ),
    pytest.param(made.with_serial(make(), b"\x80" + b"\0" * 14), {"serial-negative"}, id="negative serial"),
    pytest.param(made.with_serial(make(), b"\0\x80" + b"\0" * 14), set(), id="positive serial with the top bit used"),
    pytest.param(made.with_serial(make(), b"\0"), {"serial-zero"}, id="serial zero"),
    pytest.param(make(serial=1), {"serial-short"}, id="serial one"),
    pytest.param(make(serial=(1 << 47) - 1), {"serial-short"}, id="47 bit serial"),
    pytest.param(make(serial=1 << 47), set(), id="48 bit serial"),
    pytest.param(make(serial=(1 << 159) - 1), set(), id="serial of 20 octets"),
    pytest.param(made.with_serial(make(), b"\x7f" + b"\0" * 20), {"serial-long"}, id="serial of 21 octets"),
    pytest.param(made.version_1(make()), {"version-1"}, id="version 1"),
    pytest.param(
        made.with_tbs(make(END_ENTITY, SIGNS_NOT), b"\x06\x03\x55\x1d\x0f", b"\x06\x03\x55\x1d\x13"),
        {"extensions-malformed"},
        id="basic constraints twice",
    ),
    pytest.param(
        made.with_tbs(make(), bytes.fromhex("06082a8648ce3d030107"), bytes.fromhex("06082a8648ce3d03017f")),
        {"key-unreadable"},
        id="unknown curve",
    ),
]


@pytest.mark.parametrize(("der", "expected"), CASES)
def test_each_certificate_has_exactly_the_expected_findings(der: bytes, expected: set[str]) -> None:
    row = parse(der)
    assert row.reason == ""
    assert set(row.findings) == expected


def test_every_finding_has_a_severity_and_every_severity_has_a_test_case() -> None:
    """A finding without a severity would vanish in the join; ``duplicate`` is found by Spark."""
    certificates = [case.values[0] for case in CASES]
    covered = {finding for der in certificates if isinstance(der, bytes) for finding in parse(der).findings}
    assert covered | {"duplicate"} == {severity.finding for severity in inventory.SEVERITIES}


def test_expiry_is_judged_at_the_time_given() -> None:
    der = make()
    assert parse(der, datetime(2029, 6, 1, tzinfo=UTC)).findings == ()
    assert parse(der, datetime(2031, 1, 1, tzinfo=UTC)).findings == ("expired",)


def test_a_certificate_is_described_by_its_own_fields() -> None:
    der = make(subject=name("www.example"), issuer=name("CA 1", "Example Trust"))
    row = parse(der)
    assert (row.subject, row.issuer, row.expires, row.expiry_year) == (
        "www.example",
        "Example Trust",
        "2030-01-01",
        2030,
    )
    assert (row.key, row.signature) == ("EC secp256r1", "ECDSA with SHA-256")
    assert row.fingerprint == x509.load_der_x509_certificate(der).fingerprint(hashes.SHA256()).hex()


@pytest.mark.parametrize(
    ("der", "key", "signature"),
    [
        pytest.param(RSA_LEAF, "RSA 2048", "RSA with SHA-256", id="RSA"),
        pytest.param(signed_with(RSA_LEAF, made.SHA1_RSA), "RSA 2048", "RSA with SHA-1", id="RSA-SHA1"),
        pytest.param(signed_with(RSA_LEAF, made.MD2_RSA), "RSA 2048", "RSA with MD2", id="RSA-MD2"),
        pytest.param(
            signed_with(RSA_LEAF, bytes.fromhex("2a864886f70d01017f")),
            "RSA 2048",
            "OID 1.2.840.113549.1.1.127",
            id="unknown algorithm",
        ),
        pytest.param(
            make(key=ec.generate_private_key(ec.SECP384R1())), "EC secp384r1", "ECDSA with SHA-256", id="P-384"
        ),
    ],
)
def test_key_and_signature_are_named(der: bytes, key: str, signature: str) -> None:
    row = parse(der)
    assert (row.key, row.signature) == (key, signature)


def test_an_ed25519_signature_is_named_without_a_hash() -> None:
    key = ed25519.Ed25519PrivateKey.generate()
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name("leaf"))
        .issuer_name(name("authority"))
        .public_key(key.public_key())
        .serial_number(SERIAL)
        .not_valid_before(datetime(2025, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2030, 1, 1, tzinfo=UTC))
        .sign(key, None)
    )
    row = parse(certificate.public_bytes(Encoding.DER))
    assert (row.key, row.signature, row.findings) == ("Ed25519", "Ed25519", ())


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        pytest.param([(NameOID.ORGANIZATION_NAME, "Org"), (NameOID.COMMON_NAME, "CN")], "Org", id="organisation"),
        pytest.param([(NameOID.ORGANIZATIONAL_UNIT_NAME, "Unit"), (NameOID.COMMON_NAME, "CN")], "Unit", id="unit"),
        pytest.param([(NameOID.COMMON_NAME, "CN")], "CN", id="common name"),
        pytest.param([(NameOID.COUNTRY_NAME, "DE")], "(none)", id="neither"),
        pytest.param([], "(none)", id="empty name"),
        pytest.param([(NameOID.ORGANIZATION_NAME, "\x1b[31mred\n")], "�[31mred�", id="control characters"),
        pytest.param([(NameOID.ORGANIZATION_NAME, "x" * 64)] * 4, "x" * 64 + " / " + "x" * 64, id="many and long"),
    ],
)
def test_the_issuer_name_is_printable_and_bounded(
    attributes: list[tuple[x509.ObjectIdentifier, str]], expected: str
) -> None:
    """Names come from strangers: none may send a control sequence to a terminal."""
    issuer = x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])
    text = parse(make(issuer=issuer)).issuer
    assert text.startswith(expected)
    assert text.isprintable()
    assert len(text) <= inventory.MAX_TEXT


@pytest.mark.parametrize("cut", [1, 10, 100, 200])
def test_a_truncated_certificate_is_a_bad_input(cut: int) -> None:
    assert parse(make()[:-cut]) == Row("x.pem", 1, inventory.NOT_PARSED)


def test_bytes_after_the_certificate_make_it_a_bad_input() -> None:
    assert parse(make() + b"\0").reason == inventory.NOT_PARSED


def test_an_impossible_date_makes_it_a_bad_input() -> None:
    """cryptography parses the validity only on access."""
    assert parse(made.with_tbs(make(), b"300101000000Z", b"301301000000Z")).reason == inventory.NOT_PARSED
