"""The certificates that a listener shows: each defect gives exactly its own finding. No sockets."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from sluice.audit.catalogue import CHECKS as ALL
from sluice.audit.checks.certificates import CHECKS
from sluice.audit.model import Kind, Listener, Outcome
from sluice.audit.rogue import (
    BOTH_USAGES,
    ForgedLeaf,
    Signer,
    foreign_authority,
    forge,
    leaf_as_authority,
    self_signed,
)
from sluice.audit.runner import run_check
from sluice.audit.subject import Options, Subject
from sluice.audit.wire.client import Handshake
from sluice.pki.channels import Channel

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
JOB = "0123456789abcdef" * 2
JOBMANAGER = "spiffe://sluice.local/jobmanager/jobmanager-1"
Chain = tuple[x509.Certificate, ...]


def chain(
    *uris: str, signer: Signer | None = None, change: Callable[[ForgedLeaf], ForgedLeaf] = lambda wanted: wanted
) -> Chain:
    """A leaf certificate and the authority that signed it, without the root."""
    wanted = change(ForgedLeaf.at(NOW, *(uris or (JOBMANAGER,))))
    return forge(wanted, signer or foreign_authority(NOW)).chain[:2]


def found(
    certificates: Chain,
    *,
    channel: Channel = Channel.RPC,
    job_id: str = "",
    valid: bool = True,
    anchors: Chain = (),
    foreign: bool = False,
) -> set[str]:
    """The findings for a listener that shows ``certificates``; if ``foreign``, it has no channel."""
    declared = None if foreign else channel
    listener = Listener(name="x", kind=Kind.MUTUAL, channel=declared, host="h", port=1, job_id=job_id, foreign=foreign)
    shown = Handshake(version=0x0304, certificates=certificates, signature_valid=valid)
    subject = Subject(listener, Options(clock=lambda: NOW), anchors=anchors, _shown=[shown])
    results = [run_check(subject, check) for check in CHECKS if check.applies_to(listener)]
    assert all(result.seen for result in results)
    return {result.check for result in results if result.outcome is Outcome.FINDING}


def test_a_chain_in_order_gives_no_finding() -> None:
    assert found(chain()) == set()


def _rsa_authority(bits: int) -> Signer:
    """An authority with an RSA key."""
    key = rsa.generate_private_key(65537, bits)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "old authority")])
    above = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "old root")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(above)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - dt.timedelta(days=1))
        .not_valid_after(NOW + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Signer(certificate, key, (certificate,))


def _said_to_be_sha1() -> Chain:
    """A chain whose leaf claims a SHA-1 signature.

    No library signs with SHA-1 any more, so the name of the algorithm is replaced, which also breaks the
    signature.
    """
    leaf, above = chain(signer=_rsa_authority(2048))
    sha256, sha1 = bytes.fromhex("2a864886f70d01010b"), bytes.fromhex("2a864886f70d010105")
    return x509.load_der_x509_certificate(leaf.public_bytes(Encoding.DER).replace(sha256, sha1)), above


def sha1_signed(certificate: x509.Certificate, key: rsa.RSAPrivateKey) -> x509.Certificate:
    """The certificate, which has an RSA signature with SHA-256, re-signed with SHA-1 by ``key``.

    No certificate builder does that.
    """
    sha256, sha1 = bytes.fromhex("2a864886f70d01010b"), bytes.fromhex("2a864886f70d010105")
    renamed = certificate.public_bytes(Encoding.DER).replace(sha256, sha1)
    body = x509.load_der_x509_certificate(renamed).tbs_certificate_bytes
    signature = key.sign(body, padding.PKCS1v15(), hashes.SHA1())  # noqa: S303  the weakness that is to be found
    return x509.load_der_x509_certificate(renamed[: -len(signature)] + signature)


def _rsa_root() -> tuple[x509.Certificate, rsa.RSAPrivateKey]:
    """A self-signed root authority whose signature uses SHA-1, and its key."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "old root")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - dt.timedelta(days=1))
        .not_valid_after(NOW + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return sha1_signed(certificate, key), key


def test_sha1_is_a_finding_on_a_self_signed_leaf_and_not_on_an_anchor() -> None:
    root, key = _rsa_root()
    leaf = chain(signer=Signer(root, key, (root,)))[0]
    assert "CRT-05" in found((root,))
    assert found((root,), anchors=(root,), foreign=True) == {"CRT-07"}
    assert "CRT-05" not in found((leaf, root), anchors=(root,))
    assert "CRT-05" not in found((leaf, root))  # at the end of the chain, only its place in trust stores counts
    assert found((sha1_signed(leaf, key), root), anchors=(root,)) == {"CRT-05"}


def test_sha1_is_a_finding_on_a_self_issued_intermediate() -> None:
    """Self-issued, as for a key rollover, but not self-signed: its signature is relied upon."""
    root, key = _rsa_root()
    other = rsa.generate_private_key(65537, 2048)
    issued = (
        x509.CertificateBuilder()
        .subject_name(root.subject)
        .issuer_name(root.subject)
        .public_key(other.public_key())
        .serial_number(2)
        .not_valid_before(NOW - dt.timedelta(days=1))
        .not_valid_after(NOW + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    between = sha1_signed(issued, key)
    assert found((chain(signer=Signer(between, other))[0], between, root), anchors=(root,)) == {"CRT-05"}


def test_a_self_signed_leaf_that_is_configured_as_an_anchor_is_trusted() -> None:
    leaf = self_signed(ForgedLeaf.at(NOW, JOBMANAGER)).chain
    assert found(leaf, anchors=leaf) == set()
    assert found(leaf, anchors=self_signed(ForgedLeaf.at(NOW, JOBMANAGER)).chain) == {"CRT-09"}


def test_a_chain_through_a_leaf_that_signs_others_is_not_trusted() -> None:
    root = foreign_authority(NOW)
    honest = forge(ForgedLeaf.at(NOW, "spiffe://sluice.local/taskmanager/tm-1"), root)
    forged = forge(ForgedLeaf.at(NOW, JOBMANAGER), leaf_as_authority(honest)).chain
    assert found(forged, anchors=root.chain[:1]) == {"CRT-09"}


def test_a_foreign_server_is_exempt_from_our_rules_and_gets_no_advice_about_sluice() -> None:
    plain = chain(
        "https://example.org", change=lambda wanted: replace(wanted, end=NOW + dt.timedelta(days=90), usages=())
    )
    assert found(plain, foreign=True) == set()
    assert found(plain) == {"CRT-03", "CRT-07", "CRT-08"}
    years = chain(change=lambda wanted: replace(wanted, end=NOW + dt.timedelta(days=3650)))
    assert found(years, foreign=True) == {"CRT-03"}
    foreign = Listener(name="x", kind=Kind.MUTUAL, host="h", port=1, foreign=True)
    for check in (check.on(foreign) for check in ALL if check.applies_to(foreign)):
        told = f"{check.title} {check.expected} {check.remedy}"
        assert not {word for word in ("sluice", "[pki]", "SPIFFE", "channel table", "our ") if word in told}, check.id


def _curve(curve: ec.EllipticCurve) -> Chain:
    key = ec.generate_private_key(curve)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "leaf")])
    names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(JOBMANAGER)])
    leaf = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - dt.timedelta(days=1))
        .not_valid_after(NOW + dt.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.ExtendedKeyUsage(list(BOTH_USAGES)), critical=False)
        .sign(key, hashes.SHA256())
    )
    return (leaf,)


@pytest.mark.parametrize(
    ("certificates", "expected"),
    [
        pytest.param(
            lambda: chain(change=lambda wanted: replace(wanted, end=NOW - dt.timedelta(seconds=1))),
            {"CRT-02"},
            id="expired",
        ),
        pytest.param(
            lambda: chain(change=lambda wanted: replace(wanted, start=NOW + dt.timedelta(seconds=9))),
            {"CRT-02"},
            id="not yet valid",
        ),
        pytest.param(
            lambda: chain(change=lambda wanted: replace(wanted, end=NOW + dt.timedelta(days=90))),
            {"CRT-03"},
            id="long-lived",
        ),
        pytest.param(lambda: chain(signer=_rsa_authority(1024)), {"CRT-04"}, id="RSA of 1024 bits"),
        pytest.param(lambda: _curve(ec.SECP192R1()), {"CRT-04", "CRT-09"}, id="P-192"),
        pytest.param(_said_to_be_sha1, {"CRT-05", "CRT-06"}, id="SHA-1"),
        pytest.param(lambda: chain()[:1], {"CRT-06"}, id="intermediate missing"),
        pytest.param(lambda: (chain()[0], chain()[1]), {"CRT-06"}, id="the wrong intermediate"),
        pytest.param(
            lambda: chain(change=lambda wanted: replace(wanted, usages=(ExtendedKeyUsageOID.CLIENT_AUTH,))),
            {"CRT-07"},
            id="for clients only",
        ),
        pytest.param(lambda: chain(change=lambda wanted: replace(wanted, usages=())), {"CRT-07"}, id="for nothing"),
        pytest.param(lambda: chain(JOBMANAGER, "spiffe://sluice.local/auth/a"), {"CRT-08"}, id="two SPIFFE IDs"),
        pytest.param(lambda: chain("https://example.org"), {"CRT-08"}, id="no SPIFFE ID"),
        pytest.param(lambda: chain("spiffe://sluice.local/user/ada"), {"CRT-08"}, id="role that listens nowhere"),
    ],
)
def test_each_fault_of_a_certificate_gives_exactly_its_finding(
    certificates: Callable[[], Chain], expected: set[str]
) -> None:
    assert found(certificates()) == expected


def test_a_server_that_does_not_hold_the_key_is_a_finding() -> None:
    assert found(chain(), valid=False) == {"CRT-01"}


def test_an_executor_of_another_job_on_a_data_channel_is_a_finding() -> None:
    own = chain(f"spiffe://sluice.local/job/{JOB}/executor/1")
    other = chain(f"spiffe://sluice.local/job/{'f' * 32}/executor/1")
    assert found(own, channel=Channel.DATA, job_id=JOB) == set()
    assert found(other, channel=Channel.DATA, job_id=JOB) == {"CRT-08"}


def test_a_self_signed_leaf_and_an_authority_as_leaf_are_findings() -> None:
    assert found(self_signed(ForgedLeaf.at(NOW, JOBMANAGER)).chain) == {"CRT-09"}
    assert "CRT-07" in found((foreign_authority(NOW).certificate,))


def test_a_chain_passes_only_with_a_trusted_authority() -> None:
    def seen(anchors: Chain) -> Outcome:
        subject = Subject(listener, Options(clock=lambda: NOW), anchors=anchors, _shown=[shown])
        return run_check(subject, next(check for check in CHECKS if check.id == "CRT-09")).outcome

    listener = Listener(name="x", kind=Kind.MUTUAL, host="h", port=1)
    certificates = chain()
    shown = Handshake(version=0x0304, certificates=certificates)
    assert seen(certificates[1:]) is Outcome.PASSED
    assert seen((foreign_authority(NOW).certificate,)) is Outcome.FINDING
    assert seen(()) is Outcome.NOT_EXAMINED


def test_no_check_is_examined_without_a_handshake() -> None:
    listener = Listener(name="x", kind=Kind.MUTUAL, channel=Channel.RPC, host="h", port=1)
    subject = Subject(listener, Options(), _shown=[None], _shown_before=[None])
    assert {run_check(subject, check).outcome for check in CHECKS} == {Outcome.NOT_EXAMINED}
