"""What is reported about a CRL, good or bad."""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from sluice.core.errors import CertificateRejected
from sluice.pki.authorities.signing import Authority, create_intermediate, create_root
from sluice.pki.config import PkiConfig
from sluice.pki.identities.known_authorities import Known
from sluice.pki.inspect.describe import inspect_bytes
from sluice.pki.inspect.describe_crl import CrlSummary
from sluice.pki.revocation.crl import Reason, Revocation, sign_crl
from sluice.pki.x509.profiles import AuthorityKind
from tests.hostile import TRUST_DOMAIN

NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
CONFIG = PkiConfig(trust_domain=TRUST_DOMAIN)


@pytest.fixture(scope="module")
def root() -> Authority:
    return create_root(CONFIG, NOW - DAY)


@pytest.fixture(scope="module")
def internal(root: Authority) -> Authority:
    return create_intermediate(AuthorityKind.INTERNAL, root, CONFIG, NOW - DAY)


@pytest.fixture(scope="module")
def pem(internal: Authority) -> bytes:
    revoked = [
        Revocation("5a3f", NOW - DAY, Reason.KEY_COMPROMISE),
        Revocation("ff", NOW, Reason.UNSPECIFIED),
    ]
    return sign_crl(internal, revoked, number=17, now=NOW, lifetime=DAY)


def summary(data: bytes, *known: Known, at: dt.datetime = NOW) -> CrlSummary:
    (found,) = inspect_bytes(data, at, authorities=known)
    assert isinstance(found, CrlSummary)
    return found


def test_a_crl_is_summarized_completely(pem: bytes, internal: Authority, root: Authority) -> None:
    known = Known("the root", root.certificate), Known("the internal one", internal.certificate)
    found = summary(pem, *known)
    assert (found.number, found.delta_base, found.state, found.hash) == (17, None, "current", "sha256")
    assert (found.this_update, found.next_update) == (NOW, NOW + DAY)
    assert (found.signature, found.signed_by) == ("good", "the internal one")
    assert [(each.serial, each.revoked_at, each.reason) for each in found.entries] == [
        ("5a3f", NOW - DAY, "keyCompromise"),
        ("ff", NOW, "unspecified"),
    ]
    der = x509.load_pem_x509_crl(pem).public_bytes(Encoding.DER)
    assert summary(der, *known) == found


def test_a_crl_of_an_unknown_issuer_is_reported(pem: bytes, root: Authority) -> None:
    found = summary(pem, Known("the root", root.certificate))
    assert (found.signature, found.signed_by) == ("unknown issuer", "")


def test_a_crl_with_a_forged_signature_is_reported(internal: Authority, root: Authority) -> None:
    forger = Authority(AuthorityKind.INTERNAL, internal.certificate, root.key)
    forged = sign_crl(forger, [], number=1, now=NOW, lifetime=DAY)
    found = summary(forged, Known("the root", root.certificate), Known("the internal one", internal.certificate))
    assert (found.signature, found.signed_by) == ("bad", "the internal one")


@pytest.mark.parametrize(("at", "state"), [(NOW - DAY, "not yet valid"), (NOW + 2 * DAY, "expired")])
def test_the_state_of_a_crl_follows_from_the_time(at: dt.datetime, state: str, pem: bytes) -> None:
    assert summary(pem, at=at).state == state


def test_a_delta_crl_with_ed25519_and_without_next_update_is_summarized(root: Authority) -> None:
    signer = create_root(replace_algorithm("ed25519"), NOW - DAY)
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(signer.certificate.subject)
        .last_update(NOW)
        .next_update(NOW + DAY)
        .add_extension(x509.CRLNumber(9), critical=False)
        .add_extension(x509.DeltaCRLIndicator(7), critical=True)
    )
    found = summary(builder.sign(signer.key, None).public_bytes(Encoding.DER), Known("it", signer.certificate))
    assert (found.number, found.delta_base, found.hash, found.signature) == (9, 7, "ed25519", "good")
    # An authority with another kind of key is not asked in vain.
    assert summary(builder.sign(root.key, hashes.SHA256()).public_bytes(Encoding.PEM)).hash == "sha256"


def replace_algorithm(name: str) -> PkiConfig:
    return PkiConfig(trust_domain=TRUST_DOMAIN, key_algorithm=name)


def test_a_damaged_crl_is_refused(pem: bytes) -> None:
    with pytest.raises(CertificateRejected, match=r"block 1 \(X509 CRL\) is damaged"):
        inspect_bytes(pem[:40] + b"AAAA" + pem[44:], NOW)
