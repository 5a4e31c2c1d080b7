"""Signing and checking CRLs: what is accepted, and what is refused."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Callable

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings, strategies as st

from sluice.core.errors import CrlRejected
from sluice.pki.authorities.signing import Authority, create_intermediate, create_root
from sluice.pki.config import PkiConfig
from sluice.pki.revocation.crl import (
    MAX_LISTS,
    Reason,
    Revocation,
    RevocationList,
    check_crl,
    load_crls,
    sign_crl,
)
from sluice.pki.revocation.crl_files import take_newer
from sluice.pki.x509.keys import ALGORITHMS
from sluice.pki.x509.profiles import AuthorityKind

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
CONFIG = PkiConfig()
ROOT = create_root(CONFIG, NOW)
INTERNAL = create_intermediate(AuthorityKind.INTERNAL, ROOT, CONFIG, NOW)
FOREIGN = create_intermediate(AuthorityKind.INTERNAL, ROOT, CONFIG, NOW)
ANCHORS = (INTERNAL.certificate,)


def signed(*revocations: Revocation, number: int = 1, now: dt.datetime = NOW, by: Authority = INTERNAL) -> bytes:
    """Return a CRL that is valid for one day."""
    return sign_crl(by, revocations, number=number, now=now, lifetime=DAY)


def judged(pem: bytes, now: dt.datetime = NOW) -> RevocationList:
    """Return the only CRL in ``pem`` after checking it."""
    (crl,) = load_crls(pem)
    return check_crl(crl, ANCHORS, now)


def raw(
    change: Callable[[x509.CertificateRevocationListBuilder], x509.CertificateRevocationListBuilder],
    key: ec.EllipticCurvePrivateKey | None = None,
) -> bytes:
    """Return a CRL as changed by ``change``, signed by the internal authority unless ``key`` is given."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(INTERNAL.certificate.subject)
        .last_update(NOW)
        .next_update(NOW + DAY)
    )
    signer = key or INTERNAL.key
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    return change(builder).sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (Reason.UNSPECIFIED, "unspecified"),
        (Reason.KEY_COMPROMISE, "keyCompromise"),
        (Reason.CA_COMPROMISE, "cACompromise"),
        (Reason.AFFILIATION_CHANGED, "affiliationChanged"),
        (Reason.SUPERSEDED, "superseded"),
        (Reason.CESSATION_OF_OPERATION, "cessationOfOperation"),
        (Reason.PRIVILEGE_WITHDRAWN, "privilegeWithdrawn"),
    ],
)
def test_each_reason_is_read_back_and_unspecified_has_no_crl_entry_extension(reason: Reason, said: str) -> None:
    pem = signed(Revocation("ab", NOW, reason))
    assert judged(pem).revoked[0xAB].reason == said
    (entry,) = load_crls(pem)[0]
    assert bool(list(entry.extensions)) == (reason is not Reason.UNSPECIFIED), "RFC 5280, 5.3.1"


def test_only_hold_remove_and_attribute_authority_reasons_are_unsupported() -> None:
    flags = {reason.flag for reason in Reason}
    missing = {x509.ReasonFlags.certificate_hold, x509.ReasonFlags.remove_from_crl, x509.ReasonFlags.aa_compromise}
    assert set(x509.ReasonFlags) - flags == missing
    assert {reason for reason in Reason if not reason.bars} == {Reason.SUPERSEDED}


@settings(max_examples=40)
@given(
    st.dictionaries(
        st.integers(1, 2**159 - 1),
        st.tuples(st.sampled_from(Reason), st.integers(0, 2**31)),
        max_size=20,
    ),
    st.integers(0, 2**64),
)
def test_a_signed_crl_is_read_back_unchanged(entries: dict[int, tuple[Reason, int]], number: int) -> None:
    revocations = [
        Revocation(f"{serial:x}", dt.datetime.fromtimestamp(at, dt.UTC), reason)
        for serial, (reason, at) in entries.items()
    ]
    found = judged(signed(*revocations, number=number))
    assert found.number == number
    assert {serial: entry.revoked_at for serial, entry in found.revoked.items()} == {
        entry.number: entry.revoked_at for entry in revocations
    }
    assert judged(found.pem) == found


WHOLE = load_crls(signed(Revocation("ab", NOW, Reason.SUPERSEDED)))[0].public_bytes(Encoding.DER)


def armoured(der: bytes | bytearray) -> bytes:
    return b"-----BEGIN X509 CRL-----\n" + base64.encodebytes(der) + b"-----END X509 CRL-----\n"


@settings(max_examples=100)
@given(st.integers(0, len(WHOLE) * 8 - 1))
def test_a_crl_with_any_bit_changed_is_refused(bit: int) -> None:
    damaged = bytearray(WHOLE)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CrlRejected):
        judged(armoured(damaged))


@pytest.mark.parametrize("count", range(1, 8))
def test_a_crl_whose_signature_claims_unused_bits_is_refused(count: int) -> None:
    """The library reads past the count of unused bits when the bits themselves are zero."""
    lists = (load_crls(signed(Revocation("ab", NOW, Reason.SUPERSEDED)))[0] for _ in range(10_000))
    crl = next(each for each in lists if each.signature[-1] % 2**count == 0)
    whole = bytearray(crl.public_bytes(Encoding.DER))
    whole[-len(crl.signature) - 1] = count
    with pytest.raises(CrlRejected):
        judged(armoured(whole))


@pytest.mark.parametrize("algorithm", [each for each in ALGORITHMS if each != "rsa-4096"])  # as rsa-3072, but slow
def test_every_kind_of_authority_key_signs_crls(algorithm: str) -> None:
    authority = create_root(PkiConfig(key_algorithm=algorithm), NOW)
    (crl,) = load_crls(signed(Revocation("1", NOW, Reason.SUPERSEDED), by=authority))
    assert set(check_crl(crl, (authority.certificate,), NOW).revoked) == {1}


def with_number(builder: x509.CertificateRevocationListBuilder) -> x509.CertificateRevocationListBuilder:
    return builder.add_extension(x509.CRLNumber(1), critical=False)


def as_delta(builder: x509.CertificateRevocationListBuilder) -> x509.CertificateRevocationListBuilder:
    return with_number(builder).add_extension(x509.DeltaCRLIndicator(1), critical=True)


def as_part(builder: x509.CertificateRevocationListBuilder) -> x509.CertificateRevocationListBuilder:
    part = x509.IssuingDistributionPoint(
        full_name=None,
        relative_name=None,
        only_contains_user_certs=True,
        only_contains_ca_certs=False,
        only_some_reasons=None,
        indirect_crl=False,
        only_contains_attribute_certs=False,
    )
    return with_number(builder).add_extension(part, critical=True)


def indirect(builder: x509.CertificateRevocationListBuilder) -> x509.CertificateRevocationListBuilder:
    entry = x509.RevokedCertificateBuilder().serial_number(5).revocation_date(NOW)
    name = x509.DirectoryName(FOREIGN.certificate.subject)
    return with_number(builder).add_revoked_certificate(
        entry.add_extension(x509.CertificateIssuer([name]), critical=True).build()
    )


REFUSED = [
    pytest.param(b"", "not a PEM file", id="empty"),
    pytest.param(b"garbage", "not a PEM file", id="garbage"),
    pytest.param(signed()[:-30], "cut off", id="cut off"),
    pytest.param(signed() + b"garbage", "cut off", id="something after it"),
    pytest.param(b"garbage" + signed().replace(b"M", b"!", 3), "cannot be read", id="damaged base64"),
    pytest.param(signed() * (MAX_LISTS + 1), "more than", id="too many"),
    pytest.param(signed(by=FOREIGN), "not trusted here", id="another authority"),
    pytest.param(raw(with_number, ec.generate_private_key(ec.SECP256R1())), "not signed by its issuer", id="forged"),
    pytest.param(raw(lambda builder: builder), "has no number", id="no number"),
    pytest.param(raw(as_delta), "critical extension", id="delta"),
    pytest.param(raw(as_part), "critical extension", id="partial"),
    pytest.param(raw(indirect), "entry with the critical extension", id="indirect"),
    pytest.param(signed(now=NOW - 2 * DAY), "expired", id="expired"),
    pytest.param(signed(now=NOW + DAY), "in the future", id="from the future"),
]


@pytest.mark.parametrize(("pem", "why"), REFUSED)
def test_a_bad_crl_is_refused_with_the_reason(pem: bytes, why: str) -> None:
    with pytest.raises(CrlRejected, match=why):
        judged(pem)


def test_a_crl_is_refused_if_the_key_usage_of_its_issuer_lacks_crl_signing() -> None:
    """The key usage of the issuer decides, not only its signature."""
    leafish = create_intermediate(AuthorityKind.INTERNAL, ROOT, CONFIG, NOW)
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    assert isinstance(ROOT.key, ec.EllipticCurvePrivateKey)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(leafish.certificate.subject)
        .issuer_name(ROOT.certificate.subject)
        .public_key(leafish.certificate.public_key())
        .serial_number(1)
        .not_valid_before(NOW)
        .not_valid_after(NOW + DAY)
        .add_extension(usage, critical=True)
        .sign(ROOT.key, hashes.SHA256())
    )
    (crl,) = load_crls(signed(by=leafish))
    with pytest.raises(CrlRejected, match="not signed by its issuer"):
        check_crl(crl, (certificate,), NOW)


def test_merging_takes_a_newer_crl_and_refuses_older_foreign_or_expired_ones() -> None:
    old = load_crls(signed(Revocation("1", NOW, Reason.SUPERSEDED), number=7))
    known, refused = take_newer({}, old, ANCHORS, NOW)
    assert not refused
    for pem in (signed(number=6), signed(number=9, by=FOREIGN), signed(number=9, now=NOW - 2 * DAY)):
        merged, refused = take_newer(known, load_crls(pem), ANCHORS, NOW)
        assert merged == known
        assert len(refused) == 1
    merged, refused = take_newer(known, load_crls(signed(number=8)), ANCHORS, NOW)
    assert [each.number for each in merged.values()] == [8]
    assert not refused
