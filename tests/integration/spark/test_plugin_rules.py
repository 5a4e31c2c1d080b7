"""What the plugin in driver and executor accepts from an identity directory, tested without Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from sluice.core.clock import utc_now
from sluice.pki.authorities.signing import (
    Authority,
    authority_key_identifier,
    create_intermediate,
    create_root,
    to_pem,
)
from sluice.pki.authorities.store import AuthorityStore
from sluice.pki.config import PkiConfig
from sluice.pki.identities.directory import read_certificates
from sluice.pki.spiffe_id import SpiffeId
from sluice.pki.x509.profiles import AuthorityKind
from sluice.runtime.spark.evidence import MAX_EVIDENCE_LINES, read_evidence
from sluice.runtime.spark.jvm.command import SparkRuntime
from tests.hostile import TRUST_DOMAIN, TestPki
from tests.integration.spark.plugin_jvm import plugin_jvm
from tests.integration.spark.small_cluster import JOB_ID

pytestmark = pytest.mark.spark

EXECUTOR = SpiffeId.executor(TRUST_DOMAIN, JOB_ID, 7)
ACCEPT = (f"spiffe://{TRUST_DOMAIN}/job/{JOB_ID}/*",)


@pytest.fixture(scope="module")
def jvm(spark: SparkRuntime) -> Iterator[Any]:
    with plugin_jvm(spark) as packages:
        yield packages


@pytest.fixture(scope="module")
def directory(pki: TestPki) -> Path:
    return pki.directory(EXECUTOR, accept=ACCEPT)


def new_authority(*, age: dt.timedelta = dt.timedelta(0)) -> Authority:
    """Create another internal authority of the same trust domain; at an age of ten years it has expired."""
    config, now = PkiConfig(trust_domain=TRUST_DOMAIN), utc_now() - age
    return create_intermediate(AuthorityKind.INTERNAL, create_root(config, now), config, now)


def internal(pki: TestPki) -> Authority:
    return AuthorityStore(pki.home.pki).load(AuthorityKind.INTERNAL)


# --- trust bundles ---

LONG_AGO = dt.timedelta(days=400)


def key_ids(jvm: Any, generation: Any) -> list[str]:
    anchors = generation.anchors()
    return [jvm.io.sluice.tls.KeyIds.subject(anchors.apply(index)) for index in range(anchors.size())]


def key_id(certificate: x509.Certificate) -> str:
    return certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest.hex()


@pytest.mark.parametrize("phase", ["A", "A+B", "B+A", "B", "A+B+C+D", "expired+A"])
def test_the_trust_bundle_of_every_rotation_phase_is_loaded(jvm: Any, pki: TestPki, phase: str) -> None:
    """An expired authority beside its successor is left out and does not invalidate the others."""
    known = {"A": internal(pki), "expired": new_authority(age=LONG_AGO), **{name: new_authority() for name in "BCD"}}
    directory = pki.directory(EXECUTOR, accept=ACCEPT)
    names = phase.split("+")
    (directory / "ca.pem").write_bytes(to_pem(*(known[name].certificate for name in names)))
    generation = jvm.io.sluice.tls.IdentityFiles.load(directory_of(jvm, directory))
    assert key_ids(jvm, generation) == [key_id(known[name].certificate) for name in names if name != "expired"]
    leaf = read_certificates(directory / "chain.pem")[0]
    assert jvm.io.sluice.tls.KeyIds.issuer(generation.chain()[0]) == key_id(known["A"].certificate)
    assert generation.alias() == f"sluice-{leaf.serial_number:x}"


def directory_of(jvm: Any, directory: Path) -> Any:
    return jvm.java.io.File(str(directory)).toPath()


def cut_off(pki: TestPki) -> bytes:
    return to_pem(internal(pki).certificate, new_authority().certificate)[:-100]


DAMAGED: dict[str, Callable[[TestPki], bytes]] = {
    "empty": lambda _: b"",
    "cut off in the second certificate": cut_off,
    "garbage": lambda _: b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    "a leaf as anchor": lambda pki: (pki.directory(EXECUTOR) / "chain.pem").read_bytes(),
    "all have expired": lambda _: to_pem(new_authority(age=LONG_AGO).certificate),
    "too many": lambda pki: to_pem(internal(pki).certificate) * 101,
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_trust_bundle_is_refused_as_a_whole(jvm: Any, pki: TestPki, damage: str) -> None:
    directory = pki.directory(EXECUTOR, accept=ACCEPT)
    (directory / "ca.pem").write_bytes(DAMAGED[damage](pki))
    with pytest.raises(Py4JJavaError, match="no usable identity"):
        jvm.io.sluice.tls.IdentityFiles.load(directory_of(jvm, directory))


# --- revocation lists ---


def signed(
    authority: Authority,
    number: int,
    entries: Sequence[tuple[int, x509.ReasonFlags | None]],
    *,
    base: int | None = None,
    critical: bool = True,
    age: dt.timedelta = dt.timedelta(0),
) -> bytes:
    """Sign a complete CRL or, with ``base``, a delta CRL to the CRL with that number."""
    now = utc_now() - age
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.certificate.subject)
        .last_update(now)
        .next_update(now + dt.timedelta(days=1))
        .add_extension(authority_key_identifier(authority.certificate), critical=False)
        .add_extension(x509.CRLNumber(number), critical=False)
    )
    if base is not None:
        builder = builder.add_extension(x509.DeltaCRLIndicator(base), critical=critical)
    for serial, reason in entries:
        entry = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
        if reason is not None:
            entry = entry.add_extension(x509.CRLReason(reason), critical=False)
        builder = builder.add_revoked_certificate(entry.build())
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(Encoding.PEM)


class Lists:
    """The CRLs that one process uses; it is given one file after another."""

    def __init__(self, jvm: Any, generation: Any) -> None:
        self._jvm = jvm
        self._anchors = generation.anchors()
        self._lists = jvm.io.sluice.tls.Revocations.Empty()

    def take(self, *lists: bytes) -> list[str]:
        """Offer a file of CRLs; returns what was wrong with it."""
        result = self._lists.updated(b"".join(lists), self._anchors, self._jvm.java.util.Date())
        self._lists = result._1()
        return [str(result._2().apply(index)) for index in range(result._2().size())]

    def refuses(self, leaf: Any) -> bool:
        try:
            self._lists.check(leaf)
        except Py4JJavaError as error:
            if "was revoked at" not in str(error):
                raise
            return True
        return False

    def number(self) -> int:
        numbers = self._lists.numbers().values().toSeq()
        assert numbers.size() == 1
        return int(str(numbers.head()))


COMPROMISED = x509.ReasonFlags.key_compromise
ON_HOLD = x509.ReasonFlags.certificate_hold
TAKEN_OFF = x509.ReasonFlags.remove_from_crl


class Signer:
    """The PKI's authority, which signs CRLs about two leaves, X and Y."""

    def __init__(self, jvm: Any, pki: TestPki) -> None:
        self.authority = internal(pki)
        directories = [pki.directory(EXECUTOR, accept=ACCEPT) for _ in "XY"]
        load = jvm.io.sluice.tls.IdentityFiles.load
        self.x, self.y = (load(directory_of(jvm, each)).chain()[0] for each in directories)
        self._serials = {
            name: read_certificates(each / "chain.pem")[0].serial_number
            for name, each in zip("XY", directories, strict=True)
        }

    def complete(self, number: int, entries: str = "") -> bytes:
        return signed(self.authority, number, [(self._serials[name], COMPROMISED) for name in entries])

    def delta(
        self, number: int, base: int, entries: str = "", *, hold: str = "", off: str = "", critical: bool = True
    ) -> bytes:
        wanted = [(self._serials[name], COMPROMISED) for name in entries]
        wanted += [(self._serials[name], ON_HOLD) for name in hold]
        wanted += [(self._serials[name], TAKEN_OFF) for name in off]
        return signed(self.authority, number, wanted, base=base, critical=critical)


@pytest.fixture(scope="module")
def signer(jvm: Any, pki: TestPki) -> Signer:
    return Signer(jvm, pki)


@pytest.fixture
def lists(jvm: Any, directory: Path) -> Lists:
    return Lists(jvm, jvm.io.sluice.tls.IdentityFiles.load(directory_of(jvm, directory)))


def test_a_delta_crl_is_applied_on_top_of_its_base(lists: Lists, signer: Signer) -> None:
    assert lists.take(signer.complete(5, "X")) == []
    assert lists.take(signer.complete(5, "X"), signer.delta(6, 5, "Y")) == []
    assert lists.refuses(signer.x)
    assert lists.refuses(signer.y)
    assert lists.number() == 6


def test_a_delta_crl_may_precede_its_base_and_build_on_an_older_one(lists: Lists, signer: Signer) -> None:
    assert lists.take(signer.delta(9, 3, "Y"), signer.complete(5, "X")) == []
    assert lists.refuses(signer.x)
    assert lists.refuses(signer.y)


def test_a_delta_crl_without_a_critical_indicator_is_not_taken_for_a_complete_crl(lists: Lists, signer: Signer) -> None:
    """Taken for a complete CRL it would reinstate everybody on the base."""
    (problem,) = lists.take(signer.complete(5, "X"), signer.delta(6, 5, "Y", critical=False))
    assert "does not say critically" in problem
    assert lists.refuses(signer.x)
    assert not lists.refuses(signer.y)


def test_a_later_delta_crl_releases_only_a_certificate_on_hold(lists: Lists, signer: Signer) -> None:
    base = signer.complete(5, "X")
    assert lists.take(base, signer.delta(6, 5, hold="Y")) == []
    assert lists.refuses(signer.y)
    assert lists.take(base, signer.delta(7, 5, off="XY")) == []
    assert lists.refuses(signer.x)
    assert not lists.refuses(signer.y)


def test_a_delta_crl_may_build_on_the_result_of_another_delta(lists: Lists, signer: Signer) -> None:
    assert lists.take(signer.complete(5), signer.delta(6, 5, "X"), signer.delta(7, 6, "Y")) == []
    assert lists.refuses(signer.x)
    assert lists.refuses(signer.y)


def test_the_next_complete_crl_replaces_base_and_deltas(lists: Lists, signer: Signer) -> None:
    assert lists.take(signer.complete(5, "X"), signer.delta(6, 5, "Y")) == []
    assert lists.take(signer.complete(7, "Y")) == []
    assert not lists.refuses(signer.x)
    assert lists.refuses(signer.y)
    assert lists.take(signer.complete(7, "Y"), signer.delta(6, 5, "X")) == []  # says nothing new
    assert lists.number() == 7


def test_the_same_crl_is_accepted_as_a_complete_crl_and_as_deltas(lists: Lists, signer: Signer) -> None:
    assert lists.take(signer.complete(7, "X")) == []
    assert lists.take(signer.complete(5), signer.delta(7, 5, "X")) == []
    assert lists.take(signer.complete(5), signer.delta(8, 5, "XY")) == []
    assert lists.take(signer.complete(8, "XY")) == []
    assert lists.refuses(signer.x)
    assert lists.refuses(signer.y)
    assert lists.number() == 8


@pytest.mark.parametrize(
    ("files", "said"),
    [
        pytest.param(lambda s: [s.delta(6, 5, "Y")], "has no complete list to build on", id="no base at all"),
        pytest.param(lambda s: [s.complete(5), s.delta(9, 6, "Y")], "builds on number 6", id="base too old"),
        pytest.param(lambda s: [s.complete(5), signed(new_authority(), 6, [], base=5)], "trusted", id="foreign"),
        pytest.param(
            lambda s: [s.complete(5), signed(s.authority, 6, [], base=5, age=dt.timedelta(days=2))],
            "expired at",
            id="expired",
        ),
    ],
)
def test_an_unusable_delta_crl_is_ignored_and_reported(
    lists: Lists, signer: Signer, files: Callable[[Signer], list[bytes]], said: str
) -> None:
    (problem,) = lists.take(*files(signer))
    assert said in problem
    assert not lists.refuses(signer.y)


@pytest.mark.parametrize(
    "older",
    [
        pytest.param(lambda s: [s.complete(5), s.delta(6, 5)], id="older delta"),
        pytest.param(lambda s: [s.complete(5)], id="base without its delta"),
        pytest.param(lambda s: [s.complete(6)], id="complete list older than the delta"),
        pytest.param(lambda s: [s.complete(4)], id="complete list older than the base"),
    ],
)
def test_an_older_crl_never_reinstates_a_revoked_certificate(
    lists: Lists, signer: Signer, older: Callable[[Signer], list[bytes]]
) -> None:
    assert lists.take(signer.complete(5, "X"), signer.delta(7, 5, "Y")) == []
    problems = lists.take(*older(signer))
    assert problems
    assert all("older than the one in use" in problem for problem in problems)
    assert lists.refuses(signer.x)
    assert lists.refuses(signer.y)


def test_crls_of_two_authorities_are_kept_apart(jvm: Any, pki: TestPki, signer: Signer) -> None:
    """As during a rotation: each CRL covers its own issuer's certificates and carries its number."""
    directory = pki.directory(EXECUTOR, accept=ACCEPT)
    other = new_authority()
    (directory / "ca.pem").write_bytes(to_pem(signer.authority.certificate, other.certificate))
    lists = Lists(jvm, jvm.io.sluice.tls.IdentityFiles.load(directory_of(jvm, directory)))
    assert lists.take(signer.complete(5, "X"), signed(other, 2, [(signer._serials["Y"], None)])) == []
    assert lists.refuses(signer.x)
    assert not lists.refuses(signer.y)


# --- evidence of connections ---


def test_the_latest_connections_are_kept_and_all_are_counted(jvm: Any, directory: Path, tmp_path: Path) -> None:
    chain = jvm.java.io.FileInputStream(str(directory / "chain.pem"))
    shown = jvm.java.security.cert.CertificateFactory.getInstance("X.509").generateCertificate(chain)
    evidence = jvm.io.sluice.tls.Evidence(jvm.java.io.File(str(tmp_path)).toPath())
    for number in range(2 * MAX_EVIDENCE_LINES + 3):
        on = evidence.on("shuffle") if number % 2 else evidence
        on.record("spiffe://td/a", f"spiffe://td/b/{number}", True, "TLSv1.3", "TLS_AES_128_GCM_SHA256", shown)
    found = read_evidence(tmp_path)
    numbers = [int(each.peer.rpartition("/")[2]) for each in found.connections]
    assert numbers == list(range(MAX_EVIDENCE_LINES + 3, 2 * MAX_EVIDENCE_LINES + 3))
    assert found.dropped == MAX_EVIDENCE_LINES + 3
    assert {each.channel for each in found.connections} == {"data", "shuffle"}
