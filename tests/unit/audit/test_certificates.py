"""What a listener shows: each thing wrong with it gives exactly its finding. No sockets."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from audit.checks.certificates import CHECKS
from audit.model import Kind, Listener, Outcome
from audit.rogue import BOTH_USAGES, Signer, Wish, foreign_authority, forge, self_signed
from audit.runner import run_check
from audit.subject import Options, Subject
from audit.wire.client import Handshake
from pki.channels import Channel

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
JOB = "0123456789abcdef" * 2
JOBMANAGER = "spiffe://sluice.local/jobmanager/jobmanager-1"
Chain = tuple[x509.Certificate, ...]


def chain(*uris: str, signer: Signer | None = None, change: Callable[[Wish], Wish] = lambda wish: wish) -> Chain:
    """A leaf and the authority that signed it, without the root above."""
    wish = change(Wish.at(NOW, *(uris or (JOBMANAGER,))))
    return forge(wish, signer or foreign_authority(NOW)).chain[:2]


def found(certificates: Chain, *, channel: Channel = Channel.RPC, job_id: str = "", valid: bool = True) -> set[str]:
    """What is found about a listener that shows ``certificates``."""
    listener = Listener(name="x", kind=Kind.MUTUAL, channel=channel, host="h", port=1, job_id=job_id)
    shown = Handshake(version=0x0304, certificates=certificates, signature_valid=valid)
    subject = Subject(listener, Options(clock=lambda: NOW), _shown=[shown])
    results = [run_check(subject, check) for check in CHECKS]
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
    """No library signs with SHA-1 any more: the algorithm's name is exchanged, which breaks the signature as well."""
    leaf, above = chain(signer=_rsa_authority(2048))
    sha256, sha1 = bytes.fromhex("2a864886f70d01010b"), bytes.fromhex("2a864886f70d010105")
    return x509.load_der_x509_certificate(leaf.public_bytes(Encoding.DER).replace(sha256, sha1)), above


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
            lambda: chain(change=lambda wish: replace(wish, end=NOW - dt.timedelta(seconds=1))),
            {"CRT-02"},
            id="expired",
        ),
        pytest.param(
            lambda: chain(change=lambda wish: replace(wish, start=NOW + dt.timedelta(seconds=9))),
            {"CRT-02"},
            id="not yet valid",
        ),
        pytest.param(
            lambda: chain(change=lambda wish: replace(wish, end=NOW + dt.timedelta(days=90))),
            {"CRT-03"},
            id="long-lived",
        ),
        pytest.param(lambda: chain(signer=_rsa_authority(1024)), {"CRT-04"}, id="RSA of 1024 bits"),
        pytest.param(lambda: _curve(ec.SECP192R1()), {"CRT-04", "CRT-09"}, id="P-192"),
        pytest.param(_said_to_be_sha1, {"CRT-05", "CRT-06"}, id="SHA-1"),
        pytest.param(lambda: chain()[:1], {"CRT-06"}, id="intermediate missing"),
        pytest.param(lambda: (chain()[0], chain()[1]), {"CRT-06"}, id="the wrong intermediate"),
        pytest.param(
            lambda: chain(change=lambda wish: replace(wish, usages=(ExtendedKeyUsageOID.CLIENT_AUTH,))),
            {"CRT-07"},
            id="for clients only",
        ),
        pytest.param(lambda: chain(change=lambda wish: replace(wish, usages=())), {"CRT-07"}, id="for nothing"),
        pytest.param(lambda: chain(JOBMANAGER, "spiffe://sluice.local/auth/a"), {"CRT-08"}, id="two SPIFFE IDs"),
        pytest.param(lambda: chain("https://example.org"), {"CRT-08"}, id="no SPIFFE ID"),
        pytest.param(lambda: chain("spiffe://sluice.local/user/ada"), {"CRT-08"}, id="role that listens nowhere"),
    ],
)
def test_what_is_wrong_gives_its_finding(certificates: Callable[[], Chain], expected: set[str]) -> None:
    assert found(certificates()) == expected


def test_who_does_not_hold_the_key_is_found() -> None:
    assert found(chain(), valid=False) == {"CRT-01"}


def test_an_executor_of_another_job_is_found_on_a_data_channel() -> None:
    own = chain(f"spiffe://sluice.local/job/{JOB}/executor/1")
    other = chain(f"spiffe://sluice.local/job/{'f' * 32}/executor/1")
    assert found(own, channel=Channel.DATA, job_id=JOB) == set()
    assert found(other, channel=Channel.DATA, job_id=JOB) == {"CRT-08"}


def test_a_self_signed_leaf_shows_a_whole_chain_and_an_authority_as_leaf_is_found() -> None:
    assert found(self_signed(Wish.at(NOW, JOBMANAGER)).chain) == {"CRT-09"}
    assert "CRT-07" in found((foreign_authority(NOW).certificate,))


def test_only_an_authority_that_is_trusted_vouches_for_a_listener() -> None:
    def seen(anchors: Chain) -> Outcome:
        subject = Subject(listener, Options(clock=lambda: NOW), anchors=anchors, _shown=[shown])
        return run_check(subject, next(check for check in CHECKS if check.id == "CRT-09")).outcome

    listener = Listener(name="x", kind=Kind.MUTUAL, host="h", port=1)
    certificates = chain()
    shown = Handshake(version=0x0304, certificates=certificates)
    assert seen(certificates[1:]) is Outcome.PASSED
    assert seen((foreign_authority(NOW).certificate,)) is Outcome.FINDING
    assert seen(()) is Outcome.NOT_EXAMINED


def test_without_a_handshake_nothing_passes() -> None:
    listener = Listener(name="x", kind=Kind.MUTUAL, channel=Channel.RPC, host="h", port=1)
    subject = Subject(listener, Options(), _shown=[None], _shown_before=[None])
    assert {run_check(subject, check).outcome for check in CHECKS} == {Outcome.NOT_EXAMINED}
